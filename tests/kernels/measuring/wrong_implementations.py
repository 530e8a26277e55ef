"""Implementations of permute that an operator might register: some are right, most are not."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor

from warpcall_kernels import Op
from warpcall_kernels.measuring import Implementation
from warpcall_kernels.op.declaration import ParamValue


def _right(x: Tensor, dims: Any) -> Tensor:
    return x.permute(dims).contiguous()


def _one_element_off(x: Tensor, dims: Any) -> Tensor:
    out = _right(x, dims)
    out.view(-1)[-1] += 1
    return out


def _writes_nothing(x: Tensor, dims: Any) -> Tensor:
    return torch.empty_like(_right(x, dims))


def _writes_to_its_input(x: Tensor, dims: Any) -> Tensor:
    out = _right(x, dims)
    x.view(-1)[0] = 0
    return out


def _writes_next_to_its_input(x: Tensor, dims: Any) -> Tensor:
    out = _right(x, dims)
    x.as_strided((1,), (1,), x.storage_offset() + x.numel()).fill_(0)
    return out


def _remembering() -> Callable[..., Tensor]:
    known: dict[int, Tensor] = {}

    def remembers(x: Tensor, dims: Any) -> Tensor:
        if x.data_ptr() not in known:
            known[x.data_ptr()] = _right(x, dims)
        return known[x.data_ptr()]

    return remembers


def _raises(x: Tensor, dims: Any) -> Tensor:
    raise ValueError("no such path\nand more")


def _takes_too_much(x: Tensor, dims: Any) -> Tensor:
    return torch.empty(1 << 50, dtype=torch.uint8, device=x.device)


def _does_not_compile(x: Tensor, dims: Any) -> Tensor:
    raise torch._dynamo.exc.Unsupported("a graph break")


def _with(function: Callable[..., Any]) -> Callable[[Op, Mapping[str, ParamValue]], Any]:
    return lambda op, params: lambda x: function(x, params["dims"])


def _never_built(op: Op, params: Mapping[str, ParamValue]) -> Any:
    raise RuntimeError("not for these parameters")


IMPLEMENTATIONS = tuple(
    Implementation(name, "for tests", build, ops=("permute",))
    for name, build in {
        "right": _with(_right),
        "one element off": _with(_one_element_off),
        "writes nothing": _with(_writes_nothing),
        "writes to its input": _with(_writes_to_its_input),
        "writes next to its input": _with(_writes_next_to_its_input),
        "remembers": lambda op, params: _with(_remembering())(op, params),
        "of another dtype": _with(lambda x, dims: _right(x, dims).double()),
        "of another shape": _with(lambda x, dims: x),
        "one output too many": _with(lambda x, dims: (_right(x, dims), x)),
        "no tensor": _with(lambda x, dims: 1),
        "raises": _with(_raises),
        "takes too much": _with(_takes_too_much),
        "does not compile": _with(_does_not_compile),
        "never built": _never_built,
    }.items()
)
