"""What is installed beside a device: implementations, and the software that source may use."""

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

from warpcall_kernels import measuring
from warpcall_service.text import error_text

TOOLS = ("nvcc", "ptxas", "cuobjdump", "nvdisasm", "cc", "c++", "ninja")
LIMIT = "copy"
SHIPPED = ("warpcall", "torch", "torch.compile")
LIMIT_DOC = "a copy of as many bytes as the op must move: the limit of its speed"


def describe_installed(request: Mapping[str, Any], device: str) -> dict[str, Any]:
    """The shipped implementations, the operator's, and the environment of uploaded source.

    Args:
        request: `modules` of the operator, and the `path` on which uploaded source finds tools;
            None means that of this process.
    """
    errors = [
        {"module": module, "error": error}
        for module in request["modules"]
        if (error := _load_error(module))
    ]
    return {
        "implementations": [*_implementations()],
        "errors": errors,
        "environment": {**_environment(device), "tools": _tools(request["path"])},
    }


def _implementations() -> list[dict[str, Any]]:
    found = [
        {
            "name": one.name,
            "kind": "shipped" if one.name in SHIPPED else "operator",
            "op": op,
            "doc": one.doc,
        }
        for one in measuring.registered()
        for op in one.ops or (None,)
    ]
    limit = {"name": LIMIT, "kind": "shipped", "op": None, "doc": LIMIT_DOC}
    return [*found, limit]


@functools.cache  # a module that failed would be executed again at each request
def _load_error(module: str) -> str:
    try:
        measuring.load(module)
    except Exception as error:  # noqa: BLE001  # code of others may raise anything
        return error_text(error)
    return ""


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
        "packages": sorted(packages.items(), key=lambda item: item[0].lower()),
    }


@functools.cache
def _tools(path: str | None) -> dict[str, str | None]:
    own = Path(triton.__file__).parent / "backends/nvidia/bin"  # Triton's wheel has some of them
    searched = f"{os.environ.get('PATH', os.defpath) if path is None else path}:{own}"
    return {name: shutil.which(name, path=searched) for name in TOOLS}
