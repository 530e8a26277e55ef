"""The source code that pages show."""

from __future__ import annotations

import ast
import re
from collections.abc import Callable
from pathlib import Path

import pytest
from markupsafe import Markup

from warpcall_bench.drawing.sources import (
    FAMILY,
    PART_LINES,
    STYLED,
    files_of_op,
    highlighted,
    plain,
)
from warpcall_bench.pages.static import static_files

ROOT = Path(__file__).parents[3] / "kernels/warpcall_kernels"


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
    assert [f'<span data-n="{number}">' in text for number in (1, 5, 6)] == [True, True, False]
    assert "<b>" not in text


@pytest.mark.parametrize("shown", [highlighted, plain])
def test_the_lines_of_a_source_are_in_parts_that_are_laid_out_together(
    shown: Callable[[str], Markup],
) -> None:
    text = shown("x = 1\n" * (2 * PART_LINES + 1))

    parts = [part.count("data-n=") for part in text.split("\n</span></span>")]
    assert parts == [PART_LINES, PART_LINES, 1, 0]
    assert re.findall(r'data-n="(\d+)"', text) == [str(n + 1) for n in range(2 * PART_LINES + 1)]
    rules = static_files()["app.css"].content.decode()
    assert f"contain-intrinsic-height: auto {1.5 * PART_LINES:g}em" in rules


def test_only_tokens_that_the_style_draws_in_another_way_are_elements() -> None:
    rules = static_files()["app.css"].content.decode()
    text = highlighted("def f(x):  # two\n    return max(x, 1) < 2.0\n")

    assert set(re.findall(r"\.code \.(\w+)", rules)) == STYLED
    assert set(re.findall(r'<span class="(\w+)">', text)) == {"k", "nf", "c1", "nb", "mi", "mf"}
    assert "(x, " in text
    assert " &lt; " in text
