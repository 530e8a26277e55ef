"""What the process of a scratch run may send, and which files it sends back."""

from __future__ import annotations

import asyncio
import json
import os
import socket
from collections.abc import Sequence
from pathlib import Path

import pytest

from tests.service.runs.sandboxes import settings
from warpcall_bench.programs import scratch_main
from warpcall_bench.runs.events import (
    CommandEnded,
    FileFetched,
    OutputWritten,
    RunEvent,
    StateChanged,
)
from warpcall_bench.runs.messages import Task
from warpcall_bench.runs.scratch import ScratchRun
from warpcall_bench.runs.scratch_messages import AT, MOST_FETCHED
from warpcall_service.lanes.device_lease import DeviceLease
from warpcall_service.lanes.messages import LENGTH

MOST_BYTES = 100 << 10
END = b'e{"status": 3, "timed_out": false}'


def message(content: bytes) -> bytes:
    return LENGTH.pack(len(content)) + content


def output(at: int, content: bytes) -> bytes:
    return b"o" + AT.pack(at) + content


def file(path: str, content: bytes = b"", error: str = "") -> bytes:
    return b"f" + json.dumps({"path": path, "error": error}).encode() + b"\n" + content


def received(
    folder: Path, contents: Sequence[bytes], raw: bytes = b""
) -> tuple[ScratchRun, list[RunEvent]]:
    """What a run makes of messages that its process sends, and of bytes behind them."""
    task: Task = {
        "device": "cpu",
        "modules": {},
        "uploads": [],
        "contents": {"a": b"content"},
        "problem": None,
        "sandboxed": True,
        "op": "scratch",
        "implementations": [],
        "precision": "check",
        "seed": 0,
        "cases": [],
        "memory_bytes": 1 << 30,
        "threads": 1,
        "scratch": {
            "command": ["true"],
            "files": {"x": "a"},
            "fetch": ["d", "one"],
            "limit_s": 5.0,
            "most_bytes": MOST_BYTES,
            "program": "",
            "profiler": False,
        },
    }
    events: list[RunEvent] = []

    async def play() -> ScratchRun:
        lease = DeviceLease(lambda: False, lambda: False, lambda: None)
        run = ScratchRun(task, "tag", {}, lease, settings(folder), events.append)
        ours, theirs = socket.socketpair()
        theirs.setblocking(False)
        reading = asyncio.create_task(run._read_messages(ours))
        loop = asyncio.get_running_loop()
        await loop.sock_sendall(theirs, b"".join(map(message, contents)) + raw)
        await asyncio.sleep(0)
        theirs.shutdown(socket.SHUT_WR)
        await asyncio.wait_for(reading, 60)
        theirs.close()
        run._release()
        return run

    return asyncio.run(play()), events


def test_what_an_honest_process_sends_becomes_events(tmp_path: Path) -> None:
    sent = [b"r", output(0, b"a"), output(9, b"\xff"), END, file("d/x", b"1"), file("one"), b"d"]

    run, events = received(tmp_path, sent)

    assert run._stop_reason is None
    assert events == [
        StateChanged("waiting_gpu"),
        StateChanged("running"),
        OutputWritten(0, b"a"),
        OutputWritten(9, b"\xff"),
        CommandEnded(3),
        StateChanged("finalizing"),
        FileFetched("d/x", "d-x", b"1", ""),
        FileFetched("one", "one", b"", ""),
    ]
    assert run._how_it_ended(None) == ("error", "the command ended with exit status 3")


@pytest.mark.parametrize(
    "sent",
    [
        [output(0, b"a")],
        [b"r", b"r"],
        [b"r", b"x"],
        [b"r", b"d"],
        [b"r", b"o"],
        [b"r", output(0, b"")],
        [b"r", output(5, b"a"), output(5, b"a")],
        [b"r", output(1 << 61, b"a")],
        [b"r", b"o" + bytes(70 << 10)],
        [b"r", file("d/x")],
        [b"r", b"e"],
        [b"r", b'e{"status": 256, "timed_out": false}'],
        [b"r", b'e{"status": 0, "timed_out": false, "more": 1}'],
        [b"r", b'e{"status": 0, "timed_out": false' + b" " * (5 << 10) + b"}"],
        [b"r", END, END],
        [b"r", END, output(0, b"a")],
        [b"r", END, file("other")],
        [b"r", END, file("d/../x")],
        [b"r", END, file("d/.x")],
        [b"r", END, file("/d")],
        [b"r", END, file("d/x"), file("d/x")],
        [b"r", END, file("d/x", bytes(MOST_BYTES + 1))],
        [b"r", END, file("d/x", error="x" * 501)],
        [b"r", END, b"f{}\n"],
        [b"r", END, *(file(f"d/{n}") for n in range(MOST_FETCHED + 2))],
    ],
    ids=range(25),
)
def test_what_an_honest_process_does_not_send_ends_the_run(
    sent: list[bytes], tmp_path: Path
) -> None:
    run, _ = received(tmp_path, sent)

    assert run._stop_reason is not None
    assert run._stop_reason[0] == "invalid"
    assert run._stop_reason[1].startswith("its process sent ")


@pytest.mark.parametrize("raw", [LENGTH.pack(0), LENGTH.pack(1 << 31), b"\x01"])
def test_a_message_of_a_wrong_length_is_not_read(raw: bytes, tmp_path: Path) -> None:
    run, events = received(tmp_path, [b"r"], raw)

    assert len(events) == 2
    assert (run._stop_reason is None) == (raw == b"\x01")  # which is no message yet


def test_files_with_the_same_name_become_two_artefacts(tmp_path: Path) -> None:
    names = ["d/a-b", "d-a/b", "d/a/b", "d/1-d-a-b"]
    _, events = received(tmp_path, [b"r", END, *map(file, [n for n in names if n[1] == "/"]), b"d"])

    found = [event.name for event in events if isinstance(event, FileFetched)]
    assert len(set(found)) == len(found) == 3


def fetched(folder: Path, *wanted: str, most: int = 100) -> list[tuple[str, str, bytes]]:
    return list(scratch_main._fetched(folder, list(wanted), most))


def test_only_regular_files_within_the_folder_are_sent_back(tmp_path: Path) -> None:
    folder = tmp_path / "folder"
    (folder / "d" / "e").mkdir(parents=True)
    (folder / "d" / "e" / "a").write_text("a")
    (folder / "d" / ".hidden").write_text("h")
    (folder / "d" / "an odd name").write_text("o")
    (tmp_path / "secret").write_text("secret")
    (folder / "link").symlink_to(tmp_path / "secret")
    (folder / "up").symlink_to(tmp_path)
    (folder / "d" / "loop").symlink_to(folder)
    (folder / "hard").hardlink_to(folder / "d" / "e" / "a")
    os.mkfifo(folder / "pipe")
    link = "it is a link, or its path leads through one"

    assert fetched(folder, "d", "d/e/a", "link", "up", "up/secret", "pipe", "hard", "none") == [
        ("d/e/a", "", b"a"),
        ("link", link, b""),
        ("up", link, b""),
        ("up/secret", link, b""),
        ("pipe", "it is no regular file", b""),
        ("hard", "", b"a"),
        ("none", "No such file or directory", b""),
    ]


def test_files_that_are_sent_back_are_bounded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(scratch_main, "MOST_FETCHED_BYTES", 150)
    for n in range(MOST_FETCHED + 5):
        (tmp_path / f"f{n:03d}").write_bytes(bytes(101 if n == 0 else 60 if n < 4 else 0))

    names = sorted(one.name for one in tmp_path.iterdir())
    found = [(path, error) for path, error, _ in fetched(tmp_path, *names)]

    assert len(found) == MOST_FETCHED + 1
    assert found[0][1].startswith("it has more than 100 bytes")
    assert [error for _, error in found[1:3]] == ["", ""]
    assert found[3][1].startswith("it has more than 30 bytes")
    assert found[-1][1] == f"more than {MOST_FETCHED} files are not sent back"
