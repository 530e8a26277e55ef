"""Builds an image of the Dockerfile: python docker/image.py cpu (or cuda)

With Docker where its engine runs, else with buildah. What pip is configured with here (indexes,
local folders of wheels, a certificate) is what the build uses. Variables:

    BASE_IMAGE        another base than the Dockerfile's
    TORCH_CPU_INDEX   where the CPU build of torch is, if not with the rest or on PyTorch's own index
    GPUS              kinds to compile kernels for, such as "sm_80 sm_90"

Without Docker and where no registry can be reached, Debian itself is made a base, once, by
mmdebstrap.
"""

from __future__ import annotations

import ast
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import urlsplit

ROOT = Path(__file__).parents[1]
NAME = "localhost/warpcall"
DEBIAN = "localhost/warpcall-debian:bookworm"
PULL_TIMEOUT_S = 60
OPTIONS = ("index-url", "extra-index-url", "find-links", "cert")  # of pip


class NoEngineError(Exception):
    """Neither Docker nor buildah and podman can be used here; the message says what to do."""


def engine() -> str:
    """What builds and runs: "docker" or "podman", which needs buildah beside it.

    Raises:
        NoEngineError: there is neither.
    """
    if shutil.which("docker") and _succeeds("docker", "info"):
        return "docker"
    missing = [name for name in ("buildah", "podman", "runc") if not shutil.which(name)]
    if missing:
        raise NoEngineError(
            f"no Docker engine runs here, and {' and '.join(missing)} are not installed "
            "(Debian: apt-get install buildah podman runc mmdebstrap)"
        )
    return "podman"


def build(target: str) -> str:
    """Build the target, and return the image's name."""
    name = f"{NAME}:{target}"
    arguments = dict(_pip_arguments())
    arguments["VERSION"] = _version()
    arguments["REVISION"] = _output_of("git", "-C", str(ROOT), "rev-parse", "HEAD") or "unknown"
    for variable in ("BASE_IMAGE", "TORCH_CPU_INDEX", "GPUS"):
        if variable in os.environ:
            arguments[variable] = os.environ[variable]
    if engine() == "docker":
        command = ["docker", "build"]
    else:
        arguments.setdefault("BASE_IMAGE", _base())
        # Isolation that also works inside a container; Docker's format, because OCI's has no
        # HEALTHCHECK.
        command = ["buildah", "bud", "--layers", "--isolation=chroot", "--format=docker"]
        command += ["--network=host", *(f"--volume={path}:{path}:ro" for path in _local(arguments))]
        if "TORCH_CPU_INDEX" not in arguments and _has_cpu_torch():
            arguments["TORCH_CPU_INDEX"] = ""
    command += [f"--build-arg={key}={value}" for key, value in arguments.items()]
    subprocess.run([*command, f"--target={target}", f"--tag={name}", str(ROOT)], check=True)
    return name


def _base() -> str:
    """The Dockerfile's own base, if it is here or comes in time; else one that is made."""
    found = re.search(r"^ARG BASE_IMAGE=(\S+)", (ROOT / "Dockerfile").read_text(), re.MULTILINE)
    assert found
    for image in (found[1], DEBIAN):
        if _succeeds("podman", "image", "exists", image):
            return image
    try:
        if _succeeds("podman", "pull", found[1], timeout_s=PULL_TIMEOUT_S):
            return found[1]
    except subprocess.TimeoutExpired:
        pass
    sys.stderr.write(f"{found[1]} cannot be pulled; making a base of Debian\n")
    with tempfile.TemporaryDirectory() as folder:
        tree = Path(folder) / "debian.tar"
        subprocess.run(
            (
                *("mmdebstrap", "--quiet", "--variant=minbase"),
                *("--include=ca-certificates,python3,python3-venv", "bookworm", tree),
            ),
            check=True,
        )
        subprocess.run(("podman", "import", "--quiet", tree, DEBIAN), check=True)
    return DEBIAN


def _pip_arguments() -> Iterator[tuple[str, str]]:
    """pip's options here, as the build arguments that say the same."""
    lines = _output_of(sys.executable, "-m", "pip", "config", "list").splitlines()
    said = dict(line.split("=", 1) for line in lines if "=" in line)
    for option in OPTIONS:
        value = said.get(f":env:.{option}") or said.get(f"global.{option}")
        if value:
            words = " ".join(str(ast.literal_eval(value)).split())
            yield f"PIP_{option.replace('-', '_').upper()}", words


def _local(arguments: dict[str, str]) -> Iterator[Path]:
    """The files and folders of this machine that pip's options name."""
    for key in sorted(key for key in arguments if key.startswith("PIP_")):
        for word in arguments[key].split():
            url = urlsplit(word)
            if url.scheme in ("", "file") and Path(url.path).exists():
                # An index's wheels lie beside it.
                yield Path(url.path).parent if "INDEX" in key else Path(url.path)


def _has_cpu_torch() -> bool:
    """Whether pip finds a CPU build of torch where it looks by itself."""
    found = re.search(r"^torch==(\S+)", (ROOT / "constraints.txt").read_text(), re.MULTILINE)
    assert found
    pip = (sys.executable, "-m", "pip", "install", "--dry-run", "--no-deps", "--ignore-installed")
    return _succeeds(*pip, f"torch=={found[1]}+cpu", timeout_s=PULL_TIMEOUT_S)


def _succeeds(*command: str, timeout_s: float | None = None) -> bool:
    return (
        subprocess.run(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            timeout=timeout_s,
            check=False,
        ).returncode
        == 0
    )


def _version() -> str:
    """The version of both distributions."""
    text = (ROOT / "client/warpcall/__init__.py").read_text()
    return text.partition('__version__ = "')[2].partition('"')[0]


def _output_of(*command: str) -> str:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    return done.stdout.strip()


def main() -> int:
    """Return the process's exit status."""
    if sys.argv[1:] not in (["cpu"], ["cuda"]):
        sys.stderr.write("say which target to build: cpu or cuda\n")
        return 2
    try:
        name = build(sys.argv[1])
    except NoEngineError as error:
        sys.stderr.write(f"no image was built: {error}\n")
        return 1
    except subprocess.CalledProcessError as error:
        sys.stderr.write(f"no image was built: {error.cmd[0]} failed\n")
        return 1
    sys.stdout.write(f"built {name}\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
