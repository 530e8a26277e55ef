"""A benchmark of three small cases."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING, Any

from bench.kernels import measure
from warpcall_kernels import ops

if TYPE_CHECKING:
    from pathlib import Path

MACHINE = {"gpu": "a GPU", "torch": "1", "triton": "2", "cuda": "3", "python": "4", "date": "today"}
CASES = [case for case in ops()["permute"].cases if case.name in ("square", "odd", "no dims")]
PLANNED = [measure.Planned(ops()["permute"], "recorded", case) for case in CASES]
EFFORT = measure.Effort(rounds=2, warm_seconds=0.01)


def given(file: Path, **others: Any) -> argparse.Namespace:
    """The options of a benchmark that writes its results into `file`."""
    options: dict[str, Any] = {
        "op": [],
        "match": "",
        "group": "all",
        "peers": None,
        "json": str(file),
    }
    more = {"rounds": None, "short": True, "seconds": None, "ahead": 0, "compile": False}
    return argparse.Namespace(**options | more | {"resume": True} | others)
