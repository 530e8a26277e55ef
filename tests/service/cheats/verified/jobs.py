"""Jobs of verified cheats, for a server with a GPU: many cheats in one upload, each in a case of its own.

The upload chooses by the shape, so that the processes of a job start once for all of them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import httpx

from tests.service.cheats.verified.sources import Cheat
from tests.service.job_requests import reached, results, submit
from tests.service.uploads.requests import uploaded
from warpcall.jobs import UNFINISHED

COLUMNS = 1024
STEP = 64  # between the rows of two cases
CHOOSING = '''"""Many cheats, of which the shape chooses one."""

import importlib.util
import sys
import tempfile
from pathlib import Path

SOURCES = {sources!r}
folder = Path(tempfile.mkdtemp())
functions = {{}}


def imported(name, source):
    file = folder / f"{{name}}.py"
    file.write_text(source)
    spec = importlib.util.spec_from_file_location(name, file)
    module = sys.modules[name] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module.permute


def permute(x, dims):
    shape = tuple(x.shape)
    if shape not in SOURCES:
        raise ValueError("it is for the cases of its test")
    name, source = SOURCES[shape]
    if name not in functions:
        functions[name] = imported(name, source)
    return functions[name](x, dims)
'''


@dataclass(frozen=True)
class Placed:
    """A cheat in one case of a job."""

    cheat: Cheat
    rows: int
    columns: int
    is_last: bool

    @property
    def case(self) -> dict[str, Any]:
        params = {"dims": [1, 0]}
        return {"shape": [self.rows, self.columns], "dtype": "F32", "params": params}


def placed(cheats: Sequence[Cheat], columns: int = COLUMNS) -> list[Placed]:
    """Cheats in cases of different sizes, of so many columns, and at least as many rows."""
    found: list[Placed] = []
    for cheat in cheats:
        for number in range(cheat.cases):
            rows = columns + STEP * len(found)
            found.append(Placed(cheat, rows, columns, number + 1 == cheat.cases))
    return found


def source_of(cases: Sequence[Placed]) -> str:
    """One source of many cheats."""
    sources = {
        (one.rows, one.columns): (one.cheat.name.replace("-", "_"), one.cheat.source)
        for one in cases
    }
    return CHOOSING.format(sources=sources)


def add(http: httpx.Client, name: str, cheat: Cheat | str) -> str:
    """Upload a verified source, and return its name."""
    if isinstance(cheat, str):
        uploaded(http, cheat, name=name, verified=True)
    elif cheat.language == "python":
        uploaded(http, cheat.source, name=name, verified=True)
    else:
        more = {"language": cheat.language, "launches": cheat.launches}
        uploaded(http, cheat.source, name=name, verified=True, **more)
    return f"local/{name}"


def rows(
    http: httpx.Client, names: Sequence[str], cases: Sequence[Mapping[str, Any]], **fields: Any
) -> list[dict[str, dict[str, Any]]]:
    """The rows of a job, by implementation, for each case in order."""
    job = submit(http, implementations=[*names], cases=[*cases], **fields)
    job = reached(
        http, job, lambda found: found["state"] not in UNFINISHED, wait_s=300, passes=False
    )
    found: dict[str, dict[str, dict[str, Any]]] = {}
    for row in results(http, job)["measurements"]:
        found.setdefault(row["case"], {})[row["implementation"].partition("@")[0]] = row
    assert len(found) == len(cases), (job, [*found])
    return [*found.values()]
