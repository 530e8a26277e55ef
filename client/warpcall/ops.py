"""The types of `GET /v1/kernels`: the declarations of a server's ops."""

from __future__ import annotations

import html
from dataclasses import dataclass
from typing import Any, ClassVar

from warpcall._extras.tables import Table, html_table
from warpcall.dtypes import dtype_name
from warpcall.jobs import Payload


@dataclass(frozen=True, kw_only=True)
class OpInput(Payload):
    """An input tensor of an op."""

    name: str
    """Name of the argument."""
    dtypes: list[str]
    """Codes of the dtypes that it may have, such as F32."""
    shape: str
    """Its shape, in words or letters that the op's other shapes refer to."""
    doc: str
    """What it is."""
    optional: bool
    """Whether it may be left out."""


@dataclass(frozen=True, kw_only=True)
class OpOutput(Payload):
    """An output tensor of an op."""

    name: str
    """Name of the output."""
    dtype: str | None
    """Code of its dtype; None if it has the dtype of the inputs."""
    shape: str
    """Its shape, in words or letters that the op's other shapes refer to."""
    doc: str
    """What it is."""
    when: str
    """On which condition the op has this output; empty if it always has it."""


@dataclass(frozen=True, kw_only=True)
class OpParam(Payload):
    """A parameter of an op, which is not a tensor."""

    name: str
    """Name of the argument."""
    kind: str
    """Its type, in a word."""
    doc: str
    """What it is."""
    default: Any
    """What it is if it is left out."""
    required: bool
    """Whether it must be given."""
    schema: dict[str, Any]
    """JSON Schema of its values."""


@dataclass(frozen=True, kw_only=True, repr=False)
class OpInfo(Payload):
    """An op, as its server declares it."""

    name: str
    """Its name, such as masked-softmax. Methods and calls also take masked_softmax."""
    summary: str
    """What it does, in a line."""
    description: str
    """What it does, in full."""
    equivalent: str
    """A torch expression that computes the same."""
    limits: str
    """What its inputs may not be."""
    inputs: list[OpInput]
    """Tensors that it takes, in order."""
    outputs: list[OpOutput]
    """Tensors that it returns, in order."""
    params: list[OpParam]
    """Other arguments."""

    def __repr__(self) -> str:
        return f"OpInfo({self.name!r}, {self.signature!r})"

    def _repr_html_(self) -> str:
        rows = [*map(_input_row, self.inputs), *map(_param_row, self.params)]
        table = html_table(("argument", "type", "shape", "what it is"), rows)
        equal = f"<p>equivalent to <code>{html.escape(self.equivalent)}</code></p>"
        return f"<p>{html.escape(self.signature)}: {html.escape(self.summary)}</p>{equal}{table}"

    @property
    def signature(self) -> str:
        """A call of its method, such as "permute(x, dims)". Brackets are around what is optional."""
        needed = {one.name: not one.optional for one in self.inputs}
        needed |= {one.name: one.required for one in self.params}
        shown = [name if is_needed else f"[{name}]" for name, is_needed in needed.items()]
        return f"{self.name.replace('-', '_')}({', '.join(shown)})"


class OpList(list[OpInfo], Table):
    """The ops of a server: a list, which a notebook shows as a table."""

    SHOWN: ClassVar[tuple[str, ...]] = ("op", "what it does", "equivalent to")

    def to_rows(self) -> list[dict[str, Any]]:
        """The ops, each as a row with its signature, its summary and its equivalent in torch."""
        return [
            {"op": op.signature, "what it does": op.summary, "equivalent to": op.equivalent}
            for op in self
        ]


def _input_row(given: OpInput) -> dict[str, str]:
    dtypes = ", ".join(map(dtype_name, given.dtypes))
    return {
        "argument": given.name,
        "type": f"tensor of {dtypes}",
        "shape": given.shape,
        "what it is": given.doc,
    }


def _param_row(given: OpParam) -> dict[str, str]:
    default = "" if given.required or given.default is None else f", {given.default} by default"
    return {"argument": given.name, "type": f"{given.kind}{default}", "what it is": given.doc}
