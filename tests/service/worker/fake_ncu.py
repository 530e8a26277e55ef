"""A program that stands for Nsight Compute where there is no GPU. `installed` writes it to a folder.

It starts the program that it shall profile, as the real one does, and writes a report. `--import`
prints its details. What it does in place of that is in the file `mode` beside it.
"""

from __future__ import annotations

import sys
from pathlib import Path

PROGRAM = """#!{python}
# fmt: off
import os, pathlib, subprocess, sys, time
here = pathlib.Path(__file__).parent
mode = (here / "mode").read_text()
args = sys.argv[1:]
if "--import" in args:
    assert args[2:] == ["--page", "details"], args
    assert pathlib.Path(args[1]).read_bytes() == b"a report", args
    sys.stdout.write((here / "details").read_text())
    if mode == "unknown metric":
        print("    no_such_metric.sum                  (!) n/a")
        print("    some_have_it.sum                  (!) n/a")
        print("    some_have_it.sum          byte      4,096")
    sys.exit(1 if mode == "cannot print" else 0)
at = args.index("--export")
if os.access(here, os.W_OK):  # not in the sandbox
    (here / "args").write_text("\\n".join(args[:at]))
print("==PROF== Connected to process 1 (python)", flush=True)
if mode == "no permission":
    print("==ERROR== ERR_NVGPUCTRPERM - The user does not have permission to access NVIDIA GPU "
          "Performance Counters on the target device 0. For instructions on enabling permissions "
          "and to get more information see https://developer.nvidia.com/ERR_NVGPUCTRPERM")
if mode == "fails at once":
    print("==ERROR== Failed to initialize the profiler: LibraryNotLoaded")
    sys.exit(1)
if mode == "hangs":
    time.sleep(600)
status = subprocess.run(args[at + 2:]).returncode
if os.access(here, os.W_OK):  # not in the sandbox
    (here / "status").write_text(str(status))
if mode == "hangs later":
    time.sleep(600)
if mode == "is killed":
    os.kill(os.getpid(), 9)
if mode == "no section":
    print("==ERROR== Unable to find section 'Nothing'.")
    sys.exit(1)
if mode == "no kernels":
    print("==WARNING== No kernels were profiled.")
    if "--kernel-name" in args or "--launch-skip" in args:
        print("Available Kernels:\\n\\t1. _softmax\\n\\t2. void fill<float>(float *)\\n\\t3. _softmax")
    sys.exit(0)
if mode == "no permission":
    sys.exit(1)
pathlib.Path(args[at + 1]).write_bytes(b"a report")
"""


# As Nsight Compute prints one section of one kernel.
DETAILS = """\
[4242] python3.12@127.0.0.1
  _softmax (8192, 1, 1)x(256, 1, 1), Context 1, Stream 7, Device 0, CC 9.0
    Section: GPU Speed Of Light Throughput
    ----------------------- ----------- ------------
    Metric Name             Metric Unit Metric Value
    ----------------------- ----------- ------------
    Elapsed Cycles                cycle       61,338
    Memory Throughput                 %        78.70
    Duration                         us        34.78
    ----------------------- ----------- ------------

"""


def installed(folder: Path, mode: str = "") -> str:
    """Write the program to a folder, and return its path.

    Args:
        mode: what it does wrong.
    """
    folder.mkdir(parents=True, exist_ok=True)
    file = folder / "ncu"
    file.write_text(PROGRAM.format(python=sys.executable))
    file.chmod(0o755)
    (folder / "mode").write_text(mode)
    (folder / "details").write_text(DETAILS)
    return str(file)
