"""A plan: all about a call except the values of its tensors, checked once and used many times."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from warpcall.errors import InvalidInput
from warpcall.wire import TensorInfo, lay_out

# Of the output region, and of tensors that the server places: a cache line, and more than any
# element or load of a GPU.
ALIGNMENT = 64
MAX_MESSAGE_BYTES = 60 << 10  # a worker reads packets of at most 64 KiB


@dataclass(frozen=True, slots=True)
class Plan:
    """A checked call of one op.

    Attributes:
        params: in canonical form, with defaults.
        inputs: as they lie in the input region, at the start of the call's slot.
        outputs: as `wire.lay_out` places them, so that the output region is, byte for byte, the
            data section of a safetensors response.
        input_nbytes, output_nbytes: sizes of the two regions.
        message: the plan as JSON, for the worker process.
    """

    op: str
    params: Mapping[str, Any]
    inputs: tuple[TensorInfo, ...]
    outputs: tuple[TensorInfo, ...]
    input_nbytes: int
    output_nbytes: int
    message: bytes

    @staticmethod
    def of(
        op: str,
        inputs: Iterable[TensorInfo],
        params: Mapping[str, Any],
        outputs: Iterable[TensorInfo],
    ) -> Plan:
        """Lay out the outputs and write the message.

        Raises:
            InvalidInput: the message is too long; no declared op comes near the limit.
        """
        inputs = tuple(inputs)
        placed = lay_out(outputs)
        message = json.dumps(
            {
                "op": op,
                "params": dict(params),
                "inputs": [[i.name, i.dtype, i.shape, i.begin, i.strides] for i in inputs],
                "outputs": [[o.name, o.dtype, o.shape, o.begin] for o in placed],
            },
            separators=(",", ":"),
        ).encode()
        if len(message) > MAX_MESSAGE_BYTES:
            raise InvalidInput(
                f"tensors and parameters must be described in {MAX_MESSAGE_BYTES} bytes, "
                f"got {len(message)}"
            )
        return Plan(
            op=op,
            params=params,
            inputs=inputs,
            outputs=placed,
            input_nbytes=max((i.begin + i.nbytes for i in inputs), default=0),
            output_nbytes=placed[-1].end if placed else 0,
            message=message,
        )
