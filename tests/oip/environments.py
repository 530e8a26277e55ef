"""Virtual environments for clients that are not ours, each from a file of pinned versions.

They lie beside the one that runs the tests and are built anew when their file changes.
"""

from __future__ import annotations

import fcntl
import hashlib
import shutil
import subprocess
import sys
import venv
from pathlib import Path

FOLDER = Path(__file__).parent
ENVIRONMENTS = Path(sys.prefix) / "oip"


def python_of(name: str, folder_of_list: Path = FOLDER) -> Path:
    """The Python of the environment `name`, which has what `<name>.txt` lists and nothing else."""
    requirements = folder_of_list / f"{name}.txt"
    digest = hashlib.sha256(requirements.read_bytes() + sys.version.encode()).hexdigest()
    folder = ENVIRONMENTS / name
    python, stamp = folder / "bin" / "python", folder / "built"
    ENVIRONMENTS.mkdir(exist_ok=True)
    with (ENVIRONMENTS / f"{name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # tests run side by side
        if not stamp.exists() or stamp.read_text() != digest:
            shutil.rmtree(folder, ignore_errors=True)
            venv.create(folder, symlinks=True)
            pip = [sys.executable, "-m", "pip", "--python", str(python), "install", "--quiet"]
            # All that is needed is listed; compiling all of it takes longer than what is used.
            how = ["--no-deps", "--no-compile", "--disable-pip-version-check"]
            subprocess.run(
                [*pip, *how, "--requirement", str(requirements)],
                check=True,
                capture_output=True,
                timeout=300,
            )
            stamp.write_text(digest)
    return python


def run(name: str, program: str, *words: str) -> None:
    """Run one of the programs here in the environment `name`; it fails with what it printed."""
    done = subprocess.run(
        [str(python_of(name)), "-P", str(FOLDER / program), *words],  # nothing here to import
        capture_output=True,
        text=True,
        timeout=480,
        check=False,
        env={"PYTHONWARNINGS": "ignore"},
    )
    if done.returncode:
        raise AssertionError(f"{program} ended with {done.returncode}:\n{done.stdout}{done.stderr}")
