"""Lists the wheels of the cuda image and what they weigh, and downloads none: python
docker/wheels.py

pip resolves them for the Python and the C library of the Dockerfile's base, whatever runs this.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
import tempfile
from pathlib import Path
from urllib.parse import urlsplit
from urllib.request import Request, urlopen

ROOT = Path(__file__).parents[1]
GLIBC = 36  # 2.36, of Debian 12
PLATFORMS = (
    *(f"manylinux_2_{minor}_x86_64" for minor in range(GLIBC, 4, -1)),
    *(f"manylinux{year}_x86_64" for year in (2014, 2010, 1)),
)
CUDA = re.compile(r"nvidia-|cuda-|torch$|triton$")
TIMEOUT_S = 60


def wheels() -> dict[str, tuple[str, int]]:
    """Version and bytes of each wheel, by the package's name."""
    python = re.search(
        r"^ARG BASE_IMAGE=python:(\S+?)-", (ROOT / "Dockerfile").read_text(), re.MULTILINE
    )
    assert python
    needs = subprocess.run(
        [
            *(sys.executable, ROOT / "docker/needs.py", "telemetry,cuda-kernels"),
            *("pyproject.toml", "client/pyproject.toml"),
        ],
        check=True,
        capture_output=True,
        cwd=ROOT,
    ).stdout
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "needs.txt").write_bytes(needs)
        (folder / "constraints.txt").write_text(exact((ROOT / "constraints.txt").read_text()))
        subprocess.run(
            [
                *(sys.executable, "-m", "pip", "install", "--dry-run", "--ignore-installed"),
                *("--quiet", "--only-binary=:all:", "--implementation=cp", "--target", folder),
                *(f"--python-version={python[1]}", *(f"--platform={p}" for p in PLATFORMS)),
                *("--constraint", folder / "constraints.txt"),
                *("--requirement", folder / "needs.txt", "--report", folder / "report.json"),
            ],
            check=True,
        )
        report = json.loads((folder / "report.json").read_text())
    return {
        entry["metadata"]["name"]: (
            entry["metadata"]["version"],
            nbytes(entry["download_info"]["url"]),
        )
        for entry in report["install"]
    }


def exact(constraints: str) -> str:
    """Torch as on the public index, and no local build of the same version; the Dockerfile does so."""
    return re.sub(r"^torch==", "torch===", constraints, flags=re.MULTILINE)


def nbytes(url: str) -> int:
    """What a wheel weighs, without getting it."""
    parts = urlsplit(url)
    if parts.scheme == "file":
        return Path(parts.path).stat().st_size
    with urlopen(Request(url, method="HEAD"), timeout=TIMEOUT_S) as answer:
        return int(answer.headers["Content-Length"])


def main() -> None:
    """Print those of CUDA one by one, the others as one line, and the sum."""
    found = wheels()
    cuda = {name: what for name, what in sorted(found.items()) if CUDA.match(name)}
    for name, (version, size) in cuda.items():
        sys.stdout.write(f"{name:26}{version:16}{size / 1e6:8.1f} MB\n")
    rest = sum(size for name, (_, size) in found.items() if name not in cuda)
    others = f"{len(found) - len(cuda)} others"
    sys.stdout.write(f"{others:42}{rest / 1e6:8.1f} MB\n")
    total = sum(size for _, size in found.values())
    sys.stdout.write(f"{'together':42}{total / 1e6:8.1f} MB\n")


if __name__ == "__main__":
    main()
