"""The check of the sandbox at the start of the server: it passes here, and fails where it must."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest
from pydantic import SecretStr

from tests.service.runs.sandboxes import needs_bubblewrap, sandbox
from warpcall.errors import Forbidden, Unavailable
from warpcall_bench.runs.sandboxed import CannotStart

pytestmark = needs_bubblewrap


def test_the_sandbox_can_be_used_here(tmp_path: Path) -> None:
    checked = sandbox(tmp_path / "data")
    before = checked.status
    with pytest.raises(Unavailable, match="is being checked") as raised:
        checked.require()

    trouble = asyncio.run(checked.probe())

    assert "is being checked" in before
    assert raised.value.retry_after_s == 1
    assert trouble == ""
    assert checked.status == "sandboxed"
    checked.require()


def test_a_sandbox_that_cannot_start_is_refused_with_its_reason(tmp_path: Path) -> None:
    checked = sandbox(tmp_path / "data")
    checked.trouble = "user namespaces are disabled"

    with pytest.raises(Forbidden, match="its sandbox cannot start: user namespaces are disabled"):
        checked.require()


def test_the_data_folder_is_hidden_also_in_a_folder_that_is_shown(tmp_path: Path) -> None:
    shown = tmp_path / "shown"
    shown.mkdir()
    hiding = sandbox(shown / "data", sandbox_paths=str(shown))
    showing = sandbox(tmp_path / "other", sandbox_paths=str(shown))
    showing._data_dir = hiding._data_dir  # type: ignore[method-assign]  # checked, and not hidden
    showing._masks = lambda bound: []  # type: ignore[method-assign]

    assert asyncio.run(hiding.probe()) == ""
    assert "the data folder can be read" in asyncio.run(showing.probe())


@pytest.mark.parametrize(
    ("private", "shown"),
    [
        ({"tls_key": "keys/key.pem"}, "keys"),
        ({"tls_cert": "keys/cert.pem"}, "keys"),
        ({"uds": "keys/socket"}, "keys"),
        ({"database_url": "sqlite:///{folder}/keys/database.sqlite3"}, "keys"),
        ({"tls_key": "linked/key.pem"}, "keys"),
        ({}, "data"),
        ({}, "data/inside"),
        ({}, "home"),
        ({}, "/etc"),
        ({}, "/tmp"),
    ],
)
def test_a_folder_that_holds_private_files_is_never_shown(
    private: dict[str, str], shown: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for folder in ("keys", "data/inside", "home", "other"):
        (tmp_path / folder).mkdir(parents=True)
    (tmp_path / "linked").symlink_to("keys")
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    # A file's TLS settings need each other.
    given: dict[str, Any] = {"tls_cert": tmp_path / "certificate.pem"}
    for name, value in private.items():
        url = value.format(folder=tmp_path)
        given[name] = SecretStr(url) if name == "database_url" else tmp_path / value

    with pytest.raises(CannotStart, match=r"private files|move it"):
        sandbox(tmp_path / "data", sandbox_paths=str(tmp_path / shown), **given).launch()
    assert sandbox(tmp_path / "data", sandbox_paths=str(tmp_path / "other"), **given).launch()
