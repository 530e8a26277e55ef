"""Print the Markdown tables of docs/benchmarks/service.md from what `make bench` wrote.

.venv/bin/python -m bench.report docs/benchmarks/service.json
"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from bench.service_speed import LOOP


def markdown(report: Mapping[str, Any]) -> str:
    """A line on the machine, a table of ratios to the loop, one of rates, and the memory held."""
    machine, results = report["machine"], report["results"]
    cells = list(dict.fromkeys(r["cell"] for r in results))
    callers = list(dict.fromkeys(r["caller"] for r in results))
    found = {(r["cell"], r["caller"]): r for r in results}
    others = [caller for caller in callers if caller != LOOP]
    memory = {name: value / 2**20 for name, value in report["memory"].items()}

    def row(cell: str, shown: Any, names: list[str]) -> str:
        texts = [shown(found[cell, c]) if (cell, c) in found else "" for c in names]
        return f"| {cell} | {' | '.join(texts)} |"

    lines = [
        f"{machine['machine']}; Python {machine['python']}; {machine['versions']}.",
        "",
        *_head(others, "of the loop"),
        *(row(cell, lambda r: f"{r['ratio']:.2f} ({_spread(r)})", others) for cell in cells),
        "",
        *_head(callers, "requests a second"),
        *(row(cell, lambda r: _rate(r["requests_per_s"]), callers) for cell in cells),
        "",
        _held(memory),
    ]
    return "\n".join(lines) + "\n"


def _held(mb: Mapping[str, float]) -> str:
    return (
        f"Resident memory at most: the HTTP process {mb['http_rest']:,.0f} MB beside the arena of "
        f"{mb['http_arena']:,.0f} MB, the lane {mb['lanes_rest']:,.0f} MB beside it."
    )


def _head(names: list[str], corner: str) -> list[str]:
    return [f"| {corner} | {' | '.join(names)} |", f"| --- |{' ---: |' * len(names)}"]


def _spread(result: Mapping[str, Any]) -> str:
    return f"{result['ratio_p10']:.2f} to {result['ratio_p90']:.2f}"


def _rate(requests_per_s: float) -> str:
    return f"{requests_per_s:,.0f}" if requests_per_s >= 100 else f"{requests_per_s:.1f}"


if __name__ == "__main__":
    sys.stdout.write(markdown(json.loads(Path(sys.argv[1]).read_text())))
