"""The marker file of a server that has API keys is there whole, or not at all."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest

from warpcall_service.auth import keys_marker
from warpcall_service.auth.api_keys import KeyRecord
from warpcall_service.auth.keys_marker import KeysMarker
from warpcall_service.auth.users import Snapshot
from warpcall_service.identity import LOCAL

KEYS = Snapshot(keys={b"id": KeyRecord(LOCAL, b"salt", b"digest", None, "")})


def test_whoever_finds_the_file_finds_its_whole_text(tmp_path: Path) -> None:
    marker, done = KeysMarker(tmp_path), threading.Event()

    def keep() -> None:
        for _ in range(300):
            marker.path.unlink(missing_ok=True)
            marker.keep(KEYS)
        done.set()

    writing = threading.Thread(target=keep)
    writing.start()
    found = set()
    while not done.is_set():
        if marker.path.exists():
            try:
                found.add(marker.path.read_text())
            except FileNotFoundError:
                continue
    writing.join()
    found.add(marker.path.read_text())  # the thread may have been done before the first look

    assert found == {keys_marker.TEXT}


def test_a_file_that_cannot_be_written_whole_is_not_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def full(self: Path, target: Path) -> Path:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Path, "replace", full)
    KeysMarker(tmp_path).keep(KEYS)

    assert not list(tmp_path.iterdir())
    assert "cannot be written: No space left on device" in caplog.text
