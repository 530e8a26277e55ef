"""What is installed beside a device: shipped implementations, and software that source may use."""

from __future__ import annotations

import functools
import importlib.metadata
import os
import platform
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
import triton

from warpcall_kernels.compile.architectures import architecture_of
from warpcall_kernels.execution.implementations import LIMIT, shipped

TOOLS = ("nvcc", "ptxas", "cuobjdump", "nvdisasm", "cc", "c++", "ninja")
LIMIT_DOC = "a copy of as many bytes as the op must move: the limit of its speed"


def describe_installed(request: Mapping[str, Any], device: str) -> dict[str, Any]:
    """The shipped implementations, and the environment of uploaded source.

    Args:
        request: the `path` on which uploaded source finds tools; None means that of this process.
    """
    return {
        "implementations": [
            *({"name": one.name, "doc": one.doc} for one in shipped()),
            {"name": LIMIT, "doc": LIMIT_DOC},
        ],
        "environment": {**_environment(device), "tools": _tools(request["path"])},
    }


@functools.cache
def _environment(device: str) -> dict[str, Any]:
    packages = {
        str(found.metadata["Name"]): found.version for found in importlib.metadata.distributions()
    }
    return {
        "python": platform.python_version(),
        "torch": torch.__version__,
        "triton": triton.__version__,
        "cuda": torch.version.cuda,
        "device": "cpu" if device == "cpu" else torch.cuda.get_device_name(device),
        "gpu": "" if device == "cpu" else architecture_of(device),
        "packages": sorted(packages.items(), key=lambda item: item[0].lower()),
    }


@functools.cache
def _tools(path: str | None) -> dict[str, str | None]:
    own = Path(triton.__file__).parent / "backends/nvidia/bin"  # Triton's wheel has some of them
    searched = f"{os.environ.get('PATH', os.defpath) if path is None else path}:{own}"
    return {name: shutil.which(name, path=searched) for name in TOOLS}
