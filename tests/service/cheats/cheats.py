"""The cheats of tests/cheats: uploads that try to fool a measurement, one idea in each file.

The first line of a file says its idea. The lines after it say what is expected:

- `Ends`: the true status, or several with `or` between them, and after a colon a part of the error.
- `Caught by`: the rules without which it succeeds.
- `Case`: the name of a case, `matrix` by default. `small` costs less, where no time is gained.
- `Gains`: what it gains without these rules, `time` by default, or `a wrong result`.
- `Rounds`: the number of rounds, 10 by default.
- `Tag`: a tag that its row must have.
"""

from __future__ import annotations

import ast
from dataclasses import dataclass
from pathlib import Path
from typing import Any

FOLDER = Path(__file__).parents[2] / "cheats"
_MATRIX: dict[str, Any] = {"shape": [1000, 1000], "dtype": "F32", "params": {"dims": [1, 0]}}
CASES: dict[str, tuple[str, dict[str, Any]]] = {
    "matrix": ("permute", _MATRIX),
    "small": ("permute", {**_MATRIX, "shape": [64, 96]}),
    "short": ("permute", {**_MATRIX, "shape": [64, 96]}),
    "large": ("permute", {**_MATRIX, "shape": [1600, 1600]}),
    "identity": ("permute", {**_MATRIX, "params": {"dims": [0, 1]}}),
    "conjugate": ("permute", {**_MATRIX, "dtype": "C64", "shape": [700, 700]}),
    "softmax": ("masked-softmax", {"shape": [2, 131072], "dtype": "F32"}),
}


@dataclass(frozen=True)
class Cheat:
    """One upload, and what is expected of it; see the module."""

    name: str
    source: str
    idea: str
    statuses: tuple[str, ...]
    error: str
    rules: tuple[str, ...]
    case: str
    gains: str
    rounds: int
    tag: str

    @property
    def op(self) -> str:
        """The op that it pretends to compute."""
        return CASES[self.case][0]

    @property
    def short_us(self) -> float:
        """Calls below this time are timed many at once."""
        return 1000.0 if self.case == "short" else 0.0

    @property
    def spec(self) -> dict[str, Any]:
        """The case in which it is measured."""
        return CASES[self.case][1]


def cheats(folder: str) -> list[Cheat]:
    """The cheats of a folder."""
    return [_read(file) for file in sorted((FOLDER / folder).glob("*.py"))]


def _read(file: Path) -> Cheat:
    source = file.read_text()
    idea, *lines = (ast.get_docstring(ast.parse(source)) or "").splitlines()
    said = {name: text.strip() for name, _, text in (line.partition(":") for line in lines)}
    status, _, error = said["Ends"].partition(": ")
    rules = [rule.strip() for rule in said.get("Caught by", "").split(",")]
    return Cheat(
        name=f"{file.parent.name}/{file.stem}",
        source=source,
        idea=idea,
        statuses=tuple(status.split(" or ")),
        error=error,
        rules=tuple(filter(None, rules)),
        case=said.get("Case", "matrix"),
        gains=said.get("Gains", "time"),
        rounds=int(said.get("Rounds", "10")),
        tag=said.get("Tag", ""),
    )
