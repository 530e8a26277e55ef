"""A plan: everything about a call but the values of its tensors, checked once, used many times."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from warpcall.errors import InvalidInput
from warpcall.wire import TensorInfo, lay_out

MAX_MESSAGE_BYTES = 60 << 10  # a lane reads at most 64 KiB at once


@dataclass(frozen=True, slots=True)
class Plan:
    """A checked call of one op.

    Attributes:
        params: canonical, defaults filled in.
        outputs: as `wire.lay_out` places them, so that the output region is, byte for byte, the
            data section of a safetensors answer.
        input_nbytes, output_nbytes: sizes of the two regions.
        message: what the lane is told, as JSON.
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
            InvalidInput: more to tell than a message holds; no declared op comes near it.
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
