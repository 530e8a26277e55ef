"""The source code that pages show."""

from __future__ import annotations

import ast
from pathlib import Path

from warpcall_service.drawing.sources import FAMILY, files_of_op, highlighted

ROOT = Path(__file__).parents[2] / "kernels/warpcall_kernels"


def imported(path: str) -> set[str]:
    """The files of shared folders that a file of the library imports, by their paths in it."""
    found = set()
    for node in ast.walk(ast.parse((ROOT / path).read_text())):
        if isinstance(node, ast.ImportFrom) and str(node.module).startswith(FAMILY):
            base = str(node.module).partition(".")[2].replace(".", "/")
            names = [base, *(f"{base}/{alias.name}" for alias in node.names)]
            found |= {f"{name}{end}" for name in names for end in (".py", "/__init__.py")}
    return {name for name in found if (ROOT / name).is_file() and (ROOT / name).read_text().strip()}


def test_an_op_is_shown_with_every_file_that_it_uses() -> None:
    ops = [path.stem for path in ROOT.glob("*.py") if not path.stem.startswith("_")]
    for op in ops:
        wanted, waiting = set(), {f"{op}.py"}
        while waiting:
            wanted |= waiting
            waiting = {other for path in waiting for other in imported(path)} - wanted

        found = [one.path for one in files_of_op(op.replace("_", "-"))]
        assert found[0] == f"{op}.py"
        assert set(found) == wanted
    assert len(ops) > 5


def test_each_line_of_a_source_is_an_element() -> None:
    text = highlighted('def f(x):\n\n    """<b>\n    two"""\n    return x\n')

    assert text.count("\n</span>") == 5
    assert "<b>" not in text
