"""The sandbox for tests: settings for one, and code that is tried in it and outside of it."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, Literal

import psutil
import pytest

from warpcall_bench.runs.one_shot import run_one_shot
from warpcall_bench.runs.sandbox import Sandbox
from warpcall_bench.settings import BenchSettings

ROOT = str(Path(__file__).parents[3])
LIMIT_S = 60.0
MAX_ANSWER_BYTES = 1 << 20

# A developer may lack bubblewrap. Where REQUIRE_BUBBLEWRAP is set, its absence is a failure.
Uploads = Literal["sandboxed", "trusted"]  # how upload processes run
needs_bubblewrap = pytest.mark.skipif(
    shutil.which("bwrap") is None and not os.environ.get("REQUIRE_BUBBLEWRAP"),
    reason="bubblewrap is not installed, so the sandbox is not tested: apt install bubblewrap",
)

Outcomes = dict[str, list[Any]]
"""By name of the code: "done" and what it returned, or "refused" and the error."""


def settings(data_dir: Path, uploads: Uploads = "sandboxed", **changes: Any) -> BenchSettings:
    """Settings of a server that has a secret in its data folder."""
    data_dir.mkdir(exist_ok=True)
    (data_dir / "secret").write_text("a key")
    return BenchSettings(data_dir=data_dir, uploads=uploads, **changes)


def sandbox(data_dir: Path, **changes: Any) -> Sandbox:
    return Sandbox(settings(data_dir, **changes))


def bubblewraps() -> list[psutil.Process]:
    """The processes of bubblewrap below this one."""
    found = []
    for process in psutil.Process().children(recursive=True):
        with suppress(psutil.NoSuchProcess):
            if process.name() == "bwrap":
                found.append(process)
    return found


def tried(
    codes: Mapping[str, str], given: BenchSettings, limit_s: float = LIMIT_S, **values: Any
) -> Outcomes:
    """Try each code, the body of a function that sees `values`.

    Raises:
        OneShotError: the process was ended before all of it was tried.
    """
    request = json.dumps({"codes": codes, "values": values}).encode()
    before = os.environ.get("PYTHONPATH")
    os.environ["PYTHONPATH"] = ROOT
    try:
        answer = asyncio.run(
            run_one_shot(
                *(given, "tests.service.runs.attempt", request, limit_s, MAX_ANSWER_BYTES),
                trusted=False,
            )
        )
    finally:
        if before is None:
            del os.environ["PYTHONPATH"]
        else:
            os.environ["PYTHONPATH"] = before
    found: Outcomes = json.loads(answer)
    return found
