"""Reads a launch plan without any check, as if its recorder were ours."""

from __future__ import annotations

import base64
import zlib
from typing import Any

import torch

from warpcall_kernels.op.declaration import dtype_name
from warpcall_kernels.verified.plan import (
    Action,
    Buffer,
    Choice,
    Copy,
    Fill,
    Kernel,
    Launch,
    Place,
    Plan,
    View,
)


def read(data: Any) -> Plan:
    """The plan of the data that `Plan.to_json` returned."""
    return Plan(
        data["gpu"],
        tuple(map(_kernel, data["kernels"])),
        tuple(Buffer(*one) for one in data["buffers"]),
        tuple(tuple(map(_choice, step)) for step in data["steps"]),
        tuple(Place(*one) for one in data["outputs"]),
    )


def _kernel(data: Any) -> Kernel:
    packed = base64.b64decode(data["cubin"])
    cubin = zlib.decompress(packed)
    tuples = {name: tuple(data[name]) for name in ("parameters", "threads", "cluster")}
    return Kernel(**{**data, **tuples, "cubin": cubin})


def _choice(data: Any) -> Choice:
    return Choice(data["label"], tuple(map(_action, data["actions"])))


def _action(data: Any) -> Action:
    if "launch" in data:
        arguments = (Place(*a) if isinstance(a, list) else a for a in data["arguments"])
        grid = tuple(data["grid"])
        return Launch(data["launch"], grid, tuple(arguments), data["early"], data["cooperative"])
    if "fill" in data:
        return Fill(Place(*data["fill"]), data["count"], data["nbytes"], data["value"])
    return Copy(_view(data["copy"]), _view(data["to"]))


def _view(data: Any) -> View:
    types = (one for one in vars(torch).values() if isinstance(one, torch.dtype))
    dtype = next(one for one in types if dtype_name(one) == data["dtype"])
    return View(Place(*data["place"]), dtype, tuple(data["shape"]), tuple(data["strides"]))
