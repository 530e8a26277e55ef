"""Verifications: whether the kernels of an implementation can be timed as verified kernels, and how.

The server compiles the kernels, describes what one call launches, and checks it as a job would. It
needs no GPU for this. The SDK returns these types, and the server builds its answers and its OpenAPI
from them: this module is the only list of their fields.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

from warpcall._extras.tables import Table
from warpcall.implementations import Language
from warpcall.jobs import Payload

ActionKind = Literal["launch", "fill", "copy"]


@dataclass(frozen=True, kw_only=True)
class PlannedAction(Payload):
    """One thing that a call does on the GPU: a launch of a kernel, a fill, or a copy."""

    kind: ActionKind
    """What it is."""
    kernel: str | None
    """Name of the kernel; null unless it is a launch."""
    grid: list[int] | None
    """Blocks along three axes; null unless it is a launch."""
    threads: list[int] | None
    """Threads of a block along three axes; null unless it is a launch."""
    cluster: list[int] | None
    """Blocks of a cluster along three axes; null unless it is a launch."""
    shared_bytes: int | None
    """Dynamic shared memory of a block in bytes; null unless it is a launch."""
    registers: int | None
    """Registers of a thread; null unless it is a launch."""
    nbytes: int | None
    """Bytes that it writes; null for a launch."""


@dataclass(frozen=True, kw_only=True)
class PlannedChoice(Payload):
    """One way to do a step, such as one configuration of an autotuner."""

    label: str
    """The configuration; empty if there is only one way."""
    actions: list[PlannedAction]
    """What it does, in order."""


@dataclass(frozen=True, kw_only=True)
class PlannedStep(Payload):
    """A step of a call. The fastest of its choices is found before anything is timed."""

    choices: list[PlannedChoice]
    """The ways to do it."""


@dataclass(frozen=True, kw_only=True)
class VerifiedCase(Payload):
    """What one call of a case does, or why it cannot be verified."""

    case: str
    """Key of the case, such as "permute x=F32[8,8] dims=1,0"."""
    reason: str
    """Why it cannot be verified, with the line of the source where there is one; empty if it can."""
    steps: list[PlannedStep]
    """What a call does, in order; empty if it cannot be verified."""
    kernels: int
    """Number of compiled kernels, those of all configurations together."""
    scratch_bytes: int
    """Bytes of memory that is allocated for each call beside its outputs."""

    @property
    def verifiable(self) -> bool:
        """Whether the case can be verified."""
        return not self.reason


@dataclass(frozen=True, kw_only=True, repr=False)
class Verification(Table, Payload):
    """Whether an implementation can be timed as a verified one in some cases, and what it would do."""

    SHOWN: ClassVar = ("case", "launches", "kernels", "scratch_bytes", "reason")

    op: str
    """Name of the op, "user/name" of a problem."""
    language: Language
    """Language of the source."""
    gpu: str
    """The architecture that was compiled for, such as "sm_90"."""
    compiler: str
    """The compiler and its version, such as "Triton 3.6.0"."""
    timing: str
    """What timing needs that the server has not; empty if a job there can time it."""
    cases: list[VerifiedCase]
    """The cases that were asked for."""
    declaration: dict[str, Any] | None
    """A declaration of the launches that holds in all these cases, made of what was recorded; null if
    there is none. An upload does not need it."""
    remarks: list[str]
    """What the declaration leaves as it was recorded, such as a number for which no expression over
    the sizes was found."""

    @property
    def verifiable(self) -> bool:
        """Whether all cases can be verified."""
        return all(one.verifiable for one in self.cases)

    @property
    def decorator(self) -> str | None:
        """The declaration as text of Python, a decorator of the op's function; None without one."""
        return None if self.declaration is None else decorator_of(self.declaration)

    def to_rows(self) -> list[dict[str, object]]:
        """A row for each case."""
        return [
            {
                "case": one.case,
                "launches": sum(
                    action.kind == "launch"
                    for step in one.steps
                    for action in step.choices[0].actions
                ),
                "kernels": one.kernels,
                "scratch_bytes": one.scratch_bytes,
                "reason": one.reason,
            }
            for one in self.cases
        ]


def decorator_of(declaration: dict[str, Any]) -> str:
    """A declaration of launches as the decorator `warpcall.launches` in Python."""
    lines = ["@warpcall.launches("]
    for name in ("requires", "sizes", "scratch"):
        if declaration.get(name):
            lines.append(f"    {name}={_text(declaration[name])},")
    if declaration.get("configurations"):
        lines.append("    configurations=[")
        lines += [f"        {_text(one)}," for one in declaration["configurations"]]
        lines.append("    ],")
    lines.append("    launches=[")
    for one in declaration.get("launches", []):
        lines.append("        {")
        lines += [f"            {_text(name)}: {_text(value)}," for name, value in one.items()]
        lines.append("        },")
    return "\n".join([*lines, "    ],", ")"])


def _text(value: Any) -> str:
    """A value of JSON in Python, with the quotation marks of this code where that is possible."""
    if isinstance(value, str):
        return json.dumps(value)
    if isinstance(value, dict):
        return "{" + ", ".join(f"{_text(n)}: {_text(v)}" for n, v in value.items()) + "}"
    if isinstance(value, list | tuple):
        return "[" + ", ".join(map(_text, value)) + "]"
    return repr(value)
