"""The cheats of tests/cheats/verified: verified uploads that try to fool a measurement.

Each file has one idea, which its first line says. The lines after it say what is expected:

- `From`: the public collections that have it, or `ours`.
- `Ends`: the status of its row, or several with `or` between them, and after a colon a part of the error.
  `honest` means that its launch plan is that of the honest source: its time is that of the work.
- `Without`: what it gets past if that is switched off: see `test_verified_cheats` and, if it ends with
  `on a GPU`, `tests/gpu/test_verified_cheats`. `none` if it can only do harm, or is timed as what it is.
- `Gains`: what it gains then, `time` by default, or `a wrong result`.
- `Naive`: the inputs of the naive judge, `random` by default.
- `Sizes`: of the input, 64x96 by default.
- `Cases`: how many cases are recorded, 1 by default.
- `Apart`: `yes` if it may break its process, so that it shares none with another cheat.

A file begins with a line that imports from `honest`, and may have one for `forge`. What stands there is
put in the place of these lines, so that each upload is one source.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

FOLDER = Path(__file__).parents[3] / "cheats" / "verified"
HONEST, FORGE = ((FOLDER / f"{name}.py").read_text() for name in ("honest", "forge"))
IMPORT = re.compile(r"^from (honest|forge) import .*\n", re.MULTILINE)
DECLARATION = re.compile(r"/\* warpcall-launches (\{.*?\}) \*/", re.DOTALL)
FUNCTION = "permute"
ON_A_GPU = {"wrong_result", "cuda_error", "timeout", "invalid", "ok"}  # which only a GPU can tell


@dataclass(frozen=True)
class Cheat:
    """One upload, and what is expected of it; see the module."""

    name: str
    source: str
    language: str
    launches: Any
    idea: str
    origin: str
    statuses: tuple[str, ...]
    error: str
    without: str
    gains: str
    naive: str
    shape: tuple[int, int]
    cases: int
    apart: bool

    @property
    def on_gpu(self) -> bool:
        """Whether its control needs a GPU."""
        return self.without.endswith(" on a GPU")

    @property
    def upload(self) -> dict[str, Any]:
        """It as a member of a job's task."""
        return {
            "name": f"ann/{self.name}",
            "op": "permute",
            "function": FUNCTION,
            "source": self.source,
            "verified": True,
            "language": self.language,
            "launches": self.launches,
        }


def cheats() -> list[Cheat]:
    """All cheats, by the names of their files."""
    files = [*FOLDER.glob("*/*.py"), *FOLDER.glob("*/*.cu")]
    return [_read(file) for file in sorted(files)]


def honest(shape: tuple[int, int] = (64, 96)) -> Cheat:
    """The honest source, as if it were a cheat."""
    said = {"From": "ours", "Ends": "honest", "Without": "none", "Sizes": "{}x{}".format(*shape)}
    return _cheat("honest", HONEST, said)


def _read(file: Path) -> Cheat:
    text = file.read_text()
    heading = re.match(r'(?:"""|/\* )(.*?)(?:"""|\*/)', text, re.DOTALL)
    assert heading is not None, file
    idea, *lines = heading[1].splitlines()
    said = {name: value.strip() for name, mark, value in (s.partition(": ") for s in lines) if mark}
    if file.suffix == ".cu":
        declared = DECLARATION.search(text)
        assert declared is not None, file
        return _cheat(file.stem, text, said, idea, json.loads(declared[1]))
    begin = [HONEST] + ([FORGE] if "\nfrom forge import " in text else [])
    source = "\n\n".join([*begin, IMPORT.sub("", text)])
    return _cheat(file.stem, source, said, idea)


def _cheat(
    name: str, source: str, said: dict[str, str], idea: str = "", launches: Any = None
) -> Cheat:
    status, _, error = said["Ends"].partition(": ")
    rows, columns = map(int, said.get("Sizes", "64x96").split("x"))
    return Cheat(
        name=name.replace("_", "-"),
        source=source,
        language="python" if launches is None else "cuda",
        launches=launches,
        idea=idea,
        origin=said["From"],
        statuses=tuple(status.split(" or ")),
        error=error,
        without=said["Without"],
        gains=said.get("Gains", "time"),
        naive=said.get("Naive", "random"),
        shape=(rows, columns),
        cases=int(said.get("Cases", "1")),
        apart=said.get("Apart") == "yes",
    )
