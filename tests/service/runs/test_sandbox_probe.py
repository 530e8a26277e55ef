"""The check of the sandbox at the start of the server: it passes here, and fails where it must."""

from __future__ import annotations

import asyncio
from pathlib import Path

from tests.service.runs.sandboxes import needs_bubblewrap, sandbox

pytestmark = needs_bubblewrap


def test_the_sandbox_can_be_used_here(tmp_path: Path) -> None:
    checked = sandbox(tmp_path / "data")
    before = checked.status

    trouble = asyncio.run(checked.probe())

    assert "is being checked" in before
    assert trouble == ""
    assert checked.status == "sandboxed"


def test_the_data_folder_is_hidden_also_in_a_folder_that_is_shown(tmp_path: Path) -> None:
    shown = tmp_path / "shown"
    shown.mkdir()
    hiding = sandbox(shown / "data", sandbox_paths=str(shown))
    showing = sandbox(tmp_path / "other", sandbox_paths=str(shown))
    showing._data_dir = hiding._data_dir  # type: ignore[method-assign]  # checked, and not hidden
    showing._masks = lambda bound: []  # type: ignore[method-assign]

    assert asyncio.run(hiding.probe()) == ""
    assert "the data folder can be read" in asyncio.run(showing.probe())
