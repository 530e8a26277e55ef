"""What messages say: tensors by dtype and place in the arena, calls of ops, declarations of ops."""

from __future__ import annotations

import json
import math
import mmap
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor

from warpcall import dtypes
from warpcall.errors import InvalidInput, KernelFailed
from warpcall_kernels import Op, ops
from warpcall_kernels.op.declaration import dtype_name

# By wire code; torch has the names that numpy and ml_dtypes have.
DTYPES: dict[str, torch.dtype] = {dtype.code: getattr(torch, dtype.name) for dtype in dtypes.DTYPES}
CODES = {dtype: code for code, dtype in DTYPES.items()}


@dataclass(frozen=True, slots=True)
class Place:
    """The place of a tensor in a region of the arena.

    Attributes:
        offset: in bytes, from the begin of the region.
        layout: strides in elements.
        strides: the same, or None for C order.
    """

    name: str
    dtype: torch.dtype
    shape: tuple[int, ...]
    offset: int
    layout: tuple[int, ...]
    strides: tuple[int, ...] | None = None

    @staticmethod
    def of(
        name: str,
        code: str,
        shape: Sequence[int],
        offset: int = 0,
        strides: Sequence[int] | None = None,
    ) -> Place:
        """Decode an entry of a message."""
        given = tuple(strides) if strides else None
        layout = given or tuple(math.prod(shape[dim + 1 :]) for dim in range(len(shape)))
        return Place(name, DTYPES[code], tuple(shape), offset, layout, given)

    @property
    def nbytes(self) -> int:
        """Bytes of its elements."""
        return math.prod(self.shape) * self.dtype.itemsize

    def flat(self, arena: mmap.mmap, region: int) -> Tensor:
        """The elements in the order of memory; the region begins at byte `region` of the arena."""
        count = math.prod(self.shape)
        if not count:  # frombuffer refuses to make an empty tensor
            return torch.empty(0, dtype=self.dtype)
        return torch.frombuffer(arena, dtype=self.dtype, count=count, offset=region + self.offset)

    def shaped(self, flat: Tensor) -> Tensor:
        """View these elements as the tensor."""
        if self.strides is None:
            return flat.view(self.shape)
        return flat.as_strided(self.shape, self.strides)


class Runnable(Protocol):
    """Something that a device can run: an `OpCall` or a `Program`.

    Attributes:
        name: for messages.
        inputs, outputs: places of the tensors in the arena.
        is_empty: whether there is nothing to compute.
    """

    @property
    def name(self) -> str: ...
    @property
    def inputs(self) -> tuple[Place, ...]: ...
    @property
    def outputs(self) -> tuple[Place, ...]: ...
    @property
    def is_empty(self) -> bool: ...

    def compute(self, tensors: dict[str, Tensor]) -> dict[str, Tensor]:
        """Compute the outputs by name. It may change `tensors`."""
        ...


@dataclass(frozen=True, slots=True)
class OpCall:
    """A plan's message, decoded: one call of an op."""

    op: Op
    params: Mapping[str, Any]
    inputs: tuple[Place, ...]
    outputs: tuple[Place, ...]

    @staticmethod
    def decode(message: bytes) -> OpCall:
        """Decode a `Plan.message`."""
        payload = json.loads(message)
        inputs = tuple(Place.of(*entry) for entry in payload["inputs"])
        outputs = tuple(Place.of(*entry) for entry in payload["outputs"])
        return OpCall(ops()[payload["op"]], params_of(payload["params"]), inputs, outputs)

    @property
    def name(self) -> str:
        return self.op.name

    @property
    def is_empty(self) -> bool:
        """Whether all outputs are empty."""
        return not any(math.prod(output.shape) for output in self.outputs)

    def compute(self, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Run the op, and check its outputs: their places were planned by its declaration.

        Raises:
            KernelFailed: the outputs have other names, shapes or dtypes than planned.
        """
        results = self.op.compute(tensors, self.params)
        if len(results) == len(self.outputs):
            for output in self.outputs:
                result = results.get(output.name)
                if result is None or result.shape != output.shape or result.dtype != output.dtype:
                    break
            else:
                return results
        planned = {o.name: (o.shape, o.dtype) for o in self.outputs}
        given = {name: (tuple(t.shape), t.dtype) for name, t in results.items()}
        raise KernelFailed(f"{self.op.name} declared {planned} and gave {given}")


def params_of(payload: Mapping[str, Any]) -> dict[str, Any]:
    """Parameters from JSON, where tuples have become lists."""
    return {k: tuple(v) if isinstance(v, list) else v for k, v in payload.items()}


def wire_code(name: str, dtype: torch.dtype) -> str:
    """The code of an output's dtype on the wire.

    Raises:
        InvalidInput: it has none, such as complex128, which complex64 and float64 add up to.
    """
    known = CODES.get(dtype)
    if known is None:
        raise InvalidInput(
            f"{name} would be {dtype_name(dtype)}, which calls cannot return; pass inputs of other "
            "dtypes"
        )
    return known


def describe(op: Op, codes: Mapping[torch.dtype, str] = CODES) -> dict[str, Any]:
    """The declaration of an op for the API: as `Op.describe`, with dtypes by code, such as "BF16".

    Args:
        codes: by default those of the wire. Dtypes without a code are left out: calls cannot have
            them, such as complex128.
    """
    described = op.describe()
    for declared, entry in zip(op.inputs, described["inputs"], strict=True):
        entry["dtypes"] = [codes[dtype] for dtype in declared.dtypes if dtype in codes]
    for output, entry in zip(op.outputs, described["outputs"], strict=True):
        entry["dtype"] = output.dtype and codes[output.dtype]
    if op.dtypes:
        described["dtypes"] = [codes[dtype] for dtype in op.dtypes if dtype in codes]
    return described
