"""What the client makes of the events of a scratch run, whoever sends them."""

from __future__ import annotations

from base64 import b64encode
from pathlib import Path
from typing import Any

import pytest

from warpcall._cli import scratch as command
from warpcall._jobs.scratch import Follower, _read, is_within
from warpcall.errors import InvalidInput, TransportError
from warpcall.jobs import JobEvent

AT = "2026-11-30T09:00:00Z"


def event(kind: Any, **data: Any) -> JobEvent:
    return JobEvent(sequence=1, at=AT, kind=kind, data=data)


def output(at: int, content: bytes) -> JobEvent:
    return event("output", at=at, data=b64encode(content).decode())


def test_pieces_are_joined_and_gaps_are_counted() -> None:
    pieces: list[tuple[bytes, int]] = []
    follower = Follower(lambda content, left_out: pieces.append((content, left_out)))
    for one in (
        event("state", state="queued"),
        output(0, b"ab"),
        output(0, b"ab"),  # an event that was written twice
        output(2, b"\xff"),
        output(10, b"end"),
        event("file", path="d/x", artefact="d-x", error=""),
        event("file", path="d/y", artefact="d-y", error="a link"),
    ):
        follower.on_event(one)

    assert pieces == [(b"ab", 0), (b"\xff", 0), (b"end", 7)]
    assert (bytes(follower.output), follower.left_out) == (b"ab\xffend", 7)
    assert (follower.artefacts, follower.errors) == ({"d/x": "d-x"}, {"d/y": "a link"})


@pytest.mark.parametrize(
    ("kind", "data"),
    [
        ("output", {}),
        ("output", {"at": "x", "data": ""}),
        ("output", {"at": 0, "data": "*"}),
        ("output", {"at": 0, "data": 5}),
        ("output", {"at": None, "data": ""}),
        ("file", {"path": "x"}),
    ],
)
def test_events_of_another_form_are_an_error_of_the_server(kind: str, data: Any) -> None:
    follower = Follower(lambda content, left_out: None)

    with pytest.raises(TransportError, match="must send events of a scratch run"):
        follower.on_event(event(kind, **data))


@pytest.mark.parametrize(
    ("path", "is_one"),
    [
        ("out", True),
        ("out/a/b", True),
        ("outer", False),
        ("other", False),
        ("out/../x", False),
        ("out//x", False),
        ("out/./x", False),
        ("out/", False),
        ("/out", False),
        ("out/a\\b", False),
        ("out/a\0b", False),
        ("", False),
    ],
)
def test_only_files_that_were_asked_for_are_written(path: str, is_one: bool) -> None:
    assert is_within(path, ["out"]) is is_one


def test_a_folder_may_be_empty_but_a_tarball_may_not(tmp_path: Path) -> None:
    (tmp_path / "none").mkdir()
    (tmp_path / "hidden").mkdir()
    (tmp_path / "hidden" / ".x").write_text("")

    assert _read(None) == {}
    assert _read(tmp_path / "none") == {}
    with pytest.raises(InvalidInput, match="has no files"):
        _read(tmp_path / "hidden")


def test_a_terminal_gets_no_control_characters(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("sys.stdout.isatty", lambda: True)
    command._print(b"a\tb\n\x1b]0;title\x07 \xff\xc3\xa9\n", 5)

    found = capsys.readouterr()
    assert found.out == "a\tb\n\\x1b]0;title\\x07 \ufffd\xe9\n"
    assert found.err == "warpcall: 5 bytes of the output are left out here\n"
