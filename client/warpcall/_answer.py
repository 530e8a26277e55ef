"""The result of a call: its outputs, the device that ran it, and its timing."""

from __future__ import annotations

import html
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from warpcall._extras.tables import html_table
from warpcall.errors import TransportError

SHOWN_VALUES = 4
OutputT = TypeVar("OutputT")


@dataclass(frozen=True, slots=True)
class Answer(Generic[OutputT]):
    """The outputs of one call, with the device that ran it and the time it took.

    Arrays of one answer share one buffer. Copy a small array that must outlive a large one.

    Attributes:
        outputs: arrays of the inputs' kind, or stored tensors, by name.
        device: the device that ran the call, such as "cuda:0 (NVIDIA H200)".
        timing_ms: milliseconds of each stage in the server: queue (waiting), h2d (copy to the
            device), kernel, d2h (copy from the device), and compile, which is part of kernel, if the
            call compiled a kernel.
        request_id: the id of this call in the server's log.
    """

    outputs: dict[str, OutputT]
    device: str
    timing_ms: dict[str, float]
    request_id: str

    def _repr_html_(self) -> str:
        rows = [described(name, value) for name, value in self.outputs.items()]
        stages = ", ".join(f"{stage} {ms:.3g} ms" for stage, ms in self.timing_ms.items())
        table = html_table(("output", "dtype", "shape", "first values"), rows)
        return f"{table}<p>on {html.escape(self.device)}: {html.escape(stages)}</p>"

    def output(self, name: str) -> OutputT:
        """The output `name`.

        Raises:
            TransportError: the server, perhaps of another version, sent no such output.
        """
        if name not in self.outputs:
            got = ", ".join(self.outputs) or "none"
            raise TransportError(f"the answer must have the output {name}, got {got}")
        return self.outputs[name]


def described(name: str, value: Any) -> dict[str, str]:
    """A row about an array or a stored tensor, for a table."""
    row = {"output": name, "dtype": str(value.dtype), "shape": str(tuple(value.shape))}
    if not hasattr(value, "expires"):  # the values of a stored tensor are on the server
        first = value.reshape(-1)[:SHOWN_VALUES].tolist()
        row["first values"] = ", ".join(map(str, first))
    return row
