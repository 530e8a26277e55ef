"""A program that stands for compute-sanitizer where there is no GPU. `installed` writes it to a folder.

It runs the program that it gets, as the real one does, and then writes what is in the file of its tool
to the log. What it does in place of that is in the file `mode` beside it.
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
log = args.index("--log-file")
given, child = args[:log + 2], args[log + 2:]
tool = given[given.index("--tool") + 1]
if os.access(here, os.W_OK):  # not in the sandbox
    caching = os.environ.get("PYTORCH_NO_CUDA_MEMORY_CACHING", "")
    (here / "args").write_text("\\n".join([*given[:-1], caching]))
if mode == "fails at once":
    print("========= Error: No attachable process found")
    sys.exit(255)
if mode == "hangs":
    time.sleep(600)
status = subprocess.run(child).returncode
if mode == "is killed":
    os.kill(os.getpid(), 9)
pathlib.Path(given[-1]).write_text((here / tool).read_text())
sys.exit(status)
"""

# As the program writes them.
NO_ERROR = "========= COMPUTE-SANITIZER\n========= ERROR SUMMARY: 0 errors\n"
NO_RACE = (
    "========= COMPUTE-SANITIZER\n"
    "========= RACECHECK SUMMARY: 0 hazards displayed (0 errors, 0 warnings)\n"
)
OUT_OF_BOUNDS = """\
========= COMPUTE-SANITIZER
========= Invalid __global__ write of size 4 bytes
=========     at _copy+0x1d0 in /tmp/warpcall-8l2k/ann/mine.py:9
=========     by thread (96,0,0) in block (7,0,0)
=========     Access to 0x7f2c0a000480 is out of bounds
=========     and is 129 bytes after the nearest allocation at 0x7f2c0a000400 of size 128 bytes
========= 
========= Invalid __global__ write of size 4 bytes
=========     at _copy+0x1d0 in /tmp/warpcall-8l2k/ann/mine.py:9
=========     by thread (97,0,0) in block (7,0,0)
========= 
========= ERROR SUMMARY: 32 errors
========= ERROR SUMMARY: 12 errors were not printed. Increase --print-limit option to adjust the number of printed errors
"""
RACE = """\
========= COMPUTE-SANITIZER
========= Error: Race reported between Write access at sum(float *, int)+0x80 in mine.cu:12
=========     and Read access at sum(float *, int)+0x1c0 in mine.cu:14 [4096 hazards]
========= 
========= RACECHECK SUMMARY: 1 hazard displayed (1 error, 0 warnings)
"""


def installed(
    folder: Path, mode: str = "", memcheck: str = NO_ERROR, racecheck: str = NO_RACE
) -> str:
    """Write the program to a folder, and return its path.

    Args:
        mode: what it does wrong.
        memcheck, racecheck: what these tools write.
    """
    folder.mkdir(parents=True, exist_ok=True)
    file = folder / "compute-sanitizer"
    file.write_text(PROGRAM.format(python=sys.executable))
    file.chmod(0o755)
    for name, text in (("mode", mode), ("memcheck", memcheck), ("racecheck", racecheck)):
        (folder / name).write_text(text)
    return str(file)
