"""Compiled templates: made once, made anew when a template changes, and never needed."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from jinja2 import Environment, FileSystemLoader

from warpcall_service.drawing.compiled_templates import CompiledTemplates


@pytest.fixture(autouse=True)
def _writing(monkeypatch: pytest.MonkeyPatch) -> None:
    """Python keeps what it has compiled, as it does by default."""
    monkeypatch.setattr(sys, "dont_write_bytecode", False)


@pytest.fixture
def templates(tmp_path: Path) -> Iterator[Path]:
    (tmp_path / "one.html").write_text("{{ 1 + 1 }}\n")
    yield tmp_path
    tmp_path.chmod(0o755)


class Counted(Environment):
    """Counts the templates that it compiles."""

    compiled = 0

    def _compile(self, source: str, filename: str) -> object:  # type: ignore[override]
        self.compiled += 1
        return super()._compile(source, filename)


def rendered(templates: Path) -> tuple[str, int]:
    """What the template is as a new server renders it, and how many templates it compiled."""
    environment = Counted(
        loader=FileSystemLoader(templates), bytecode_cache=CompiledTemplates(str(templates))
    )
    return environment.get_template("one.html").render(), environment.compiled


def test_a_template_is_compiled_for_the_first_server_only(templates: Path) -> None:
    assert [rendered(templates), rendered(templates)] == [("2", 1), ("2", 0)]


def test_a_template_that_was_changed_is_compiled_anew(templates: Path) -> None:
    rendered(templates)
    before = (templates / "one.html").stat()
    (templates / "one.html").write_text("{{ 1 + 2 }}\n")
    os.utime(templates / "one.html", ns=(before.st_atime_ns, before.st_mtime_ns))

    assert rendered(templates) == ("3", 1)


@pytest.mark.parametrize("content", [b"", b"j2", b"\xff" * 100], ids=["empty", "cut", "other"])
def test_a_damaged_file_is_made_anew(templates: Path, content: bytes) -> None:
    rendered(templates)
    (kept,) = (templates / "__pycache__").iterdir()
    whole = kept.read_bytes()
    kept.write_bytes(whole[:20] + content)

    assert rendered(templates) == ("2", 1)
    assert kept.read_bytes() == whole


def test_where_nothing_can_be_written_templates_are_compiled_each_time(templates: Path) -> None:
    (templates / "__pycache__").write_text("no folder")  # root may write to any

    assert [rendered(templates), rendered(templates)] == [("2", 1), ("2", 1)]


def test_nothing_is_written_if_python_writes_no_compiled_modules(
    templates: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "dont_write_bytecode", True)

    assert rendered(templates) == ("2", 1)
    assert [file.name for file in templates.iterdir()] == ["one.html"]
