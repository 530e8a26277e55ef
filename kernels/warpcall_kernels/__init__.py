"""Triton kernels that run at the speed of copying memory, each with a reference in plain torch.

Each public module is one op: `from warpcall_kernels.permute import permute`. `ops()` finds all of
them. The package `warpcall_kernels.op` has what the author of an op imports, and
`warpcall_kernels.measuring` times ops. A `Problem` declares an op of a user's own.
"""

from __future__ import annotations

import functools
import importlib
import pkgutil
from collections.abc import Mapping

from warpcall_kernels.op.cases import Sample
from warpcall_kernels.op.declaration import Op, Param, Size
from warpcall_kernels.op.errors import InvalidInput, KernelError
from warpcall_kernels.op.problem import Problem

__all__ = [
    "InvalidInput",
    "KernelError",
    "Op",
    "Param",
    "Problem",
    "Sample",
    "Size",
    "op_named",
    "ops",
]


@functools.cache
def ops() -> Mapping[str, Op]:
    """All ops by name: the `OP` of each public module of this package.

    Raises:
        TypeError: a public module has no `OP`.
        ValueError: the name of an op is not that of its file. Two files with one name would
            otherwise replace each other's op.
    """
    found = [_op_of(name) for name in _modules()]
    return {op.name: op for op in found}


def op_named(name: str) -> Op:
    """One op. Only its module is imported, which takes a small part of the time of `ops()`.

    Raises:
        KeyError: there is no op of this name.
        TypeError, ValueError: as `ops`.
    """
    module = name.replace("-", "_")
    if module not in _modules() or "_" in name:
        raise KeyError(name)
    return _op_of(module)


def _modules() -> list[str]:
    modules = pkgutil.iter_modules(__path__)
    return sorted(m.name for m in modules if not m.name.startswith("_") and not m.ispkg)


def _op_of(name: str) -> Op:
    op = getattr(importlib.import_module(f"{__name__}.{name}"), "OP", None)
    if not isinstance(op, Op):
        raise TypeError(
            f"{name}.py must declare OP = Op(...): each public module of {__name__} is an op, and "
            "the name of any other module begins with an underscore"
        )
    if op.name.replace("-", "_") != name:
        raise ValueError(
            f"{name}.py must declare the op {name.replace('_', '-')!r}, as its file is named, got "
            f"{op.name!r}"
        )
    return op
