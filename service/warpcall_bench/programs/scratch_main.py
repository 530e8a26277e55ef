"""The process of a scratch run, in the sandbox: python -m warpcall_bench.programs.scratch_main.

It writes the files to a folder, runs the command there, sends what the command writes, ends what the command
leaves behind, and sends the files that were asked for. `runs/scratch_messages.py`
describes what it sends. The command runs with the same account, so the server trusts nothing of it.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import re
import select
import signal
import socket
import stat
import subprocess  # nosec B404
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import BinaryIO

from warpcall_bench.runs import process_tree
from warpcall_bench.runs.scratch_messages import (
    AT,
    DONE,
    ENDED,
    FILE,
    MAX_OUTPUT_BYTES,
    MOST_FETCHED,
    MOST_FETCHED_BYTES,
    OUTPUT,
    PATH,
    READY,
    SIGNALLED,
    TERM_S,
    ScratchOrder,
)
from warpcall_service.lanes.messages import LENGTH
from warpcall_service.processes import child, temporary

PR_SET_DUMPABLE = 4
PR_SET_CHILD_SUBREAPER = 36
SEND_S = 0.25  # between two messages with output
POLL_S = 0.02
MOST_PENDING = 512 << 10  # of the output that waits to be sent; beyond it, the oldest is left out
DRAIN_S = 0.5  # to read what is left in the pipe when the command has ended
KILL_S = 5.0
NOT_FOUND, NOT_EXECUTABLE = 127, 126  # the exit statuses of shells
READ_BYTES = 64 << 10


def main() -> None:
    """Run one command."""
    args = child.start(server_fd=int)
    libc = ctypes.CDLL(None)
    libc.prctl(PR_SET_DUMPABLE, 0, 0, 0, 0)  # the command cannot write to this process's memory
    libc.prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)  # what the command leaves becomes a child
    with socket.socket(fileno=args.server_fd) as sock, temporary.folder() as parent:
        _send(sock, READY, b"")
        stream = sock.makefile("rb")
        order: ScratchOrder = json.loads(_read_frame(stream))
        contents = {sha: _read_frame(stream) for sha in order["behind"]}
        folder = parent / "folder"
        folder.mkdir()
        for path, sha in order["files"].items():
            (folder / path).parent.mkdir(parents=True, exist_ok=True)
            (folder / path).write_bytes(contents[sha])
        del contents
        status, timed_out = _run(order, folder, sock)
        _end_descendants()
        ended = {"status": status, "timed_out": timed_out}
        _send(sock, ENDED, json.dumps(ended).encode())
        for path, error, content in _fetched(folder, order["fetch"], order["most_bytes"]):
            head = json.dumps({"path": path, "error": error}).encode()
            _send(sock, FILE, head + b"\n" + content)
        _send(sock, DONE, b"")
    os._exit(0)


def _send(sock: socket.socket, kind: bytes, body: bytes) -> None:
    sock.sendall(LENGTH.pack(1 + len(body)) + kind + body)


def _read_frame(stream: BinaryIO) -> bytes:
    (nbytes,) = LENGTH.unpack(stream.read(LENGTH.size))
    return stream.read(nbytes)


class _Output:
    """What the command writes, until it is sent. If it writes faster than that, the oldest is left out."""

    def __init__(self, sock: socket.socket) -> None:
        self._sock = sock
        self._at = 0  # bytes before the pending ones
        self._pending = bytearray()
        self._sent_at = -SEND_S

    def add(self, content: bytes) -> None:
        """Append what the command wrote."""
        self._pending += content
        if (excess := len(self._pending) - MOST_PENDING) > 0:
            del self._pending[:excess]
            self._at += excess

    def advance(self) -> None:
        """Send some, if it is time to."""
        if self._pending and time.monotonic() >= self._sent_at + SEND_S:
            self._send_some()

    def finish(self) -> None:
        """Send all that is left."""
        while self._pending:
            self._send_some()

    def _send_some(self) -> None:
        some = bytes(self._pending[:MAX_OUTPUT_BYTES])
        _send(self._sock, OUTPUT, AT.pack(self._at) + some)
        del self._pending[: len(some)]
        self._at += len(some)
        self._sent_at = time.monotonic()


def _run(order: ScratchOrder, folder: Path, sock: socket.socket) -> tuple[int, bool]:
    """Run the command; its exit status as shells count it, and whether it reached its limit."""
    output = _Output(sock)
    reading, writing = os.pipe()
    os.set_blocking(reading, False)
    signal.signal(signal.SIGINT, signal.SIG_DFL)  # the command would inherit that it is ignored
    try:
        process = subprocess.Popen(  # nosec B603
            order["command"],
            cwd=folder,
            env=_environment(order["environment"]),
            stdin=subprocess.DEVNULL,
            stdout=writing,
            stderr=writing,
            start_new_session=True,
        )
    except (OSError, ValueError) as error:
        why = error.strerror if isinstance(error, OSError) else str(error)
        text = f"{order['command'][0]}: {why}\n"
        output.add(text.encode(errors="replace"))
        output.finish()
        return NOT_FOUND if isinstance(error, FileNotFoundError) else NOT_EXECUTABLE, False
    finally:
        os.close(writing)
    deadline, kill_at = time.monotonic() + order["limit_s"], None
    timed_out, is_open = False, True
    while process.poll() is None:
        is_open = _read(reading, output, POLL_S) if is_open else _pause()
        output.advance()
        now = time.monotonic()
        if now >= deadline and not timed_out:
            timed_out, kill_at = True, now + TERM_S
            process_tree.send(process_tree.descendants(os.getpid()), signal.SIGTERM)
        if kill_at is not None and now >= kill_at:
            process_tree.send(process_tree.descendants(os.getpid()), signal.SIGKILL)
    # Processes that it left may hold the pipe open, so its end need not come.
    drained = time.monotonic() + DRAIN_S
    while is_open and time.monotonic() < drained and select.select([reading], [], [], 0)[0]:
        is_open = _read(reading, output, 0)
    os.close(reading)
    output.finish()
    status = process.returncode
    return status if status >= 0 else SIGNALLED - status, timed_out


def _environment(further: Mapping[str, str]) -> dict[str, str]:
    # Without PYTHONUNBUFFERED, what Python prints would arrive at the end.
    return {**os.environ, "PYTHONUNBUFFERED": "1", **further}


def _read(fd: int, output: _Output, timeout_s: float) -> bool:
    """Read some of the output; returns whether more may come."""
    if not select.select([fd], [], [], timeout_s)[0]:
        return True
    with contextlib.suppress(BlockingIOError):
        content = os.read(fd, READ_BYTES)
        output.add(content)
        return bool(content)
    return True


def _pause() -> bool:
    time.sleep(POLL_S)
    return False


def _end_descendants() -> None:
    """Kill what the command left behind. What resists ends with the sandbox."""
    deadline = time.monotonic() + KILL_S
    while time.monotonic() < deadline:
        process_tree.send(process_tree.descendants(os.getpid()), signal.SIGKILL)
        try:
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass
        except ChildProcessError:
            return
        time.sleep(POLL_S)


def _fetched(folder: Path, wanted: list[str], most_bytes: int) -> Iterator[tuple[str, str, bytes]]:
    """Each file that was asked for: its path, why it is not sent, its content."""
    left, seen = MOST_FETCHED_BYTES, set[str]()
    for path in _paths(folder, wanted):
        if path in seen:
            continue
        seen.add(path)
        if len(seen) > MOST_FETCHED:
            yield path, f"more than {MOST_FETCHED} files are not sent back", b""
            return
        try:
            content = _content(folder, path, min(most_bytes, left))
        except _NotSentError as error:
            yield path, str(error), b""
        except OSError as error:
            yield path, error.strerror or "it cannot be read", b""
        else:
            left -= len(content)
            yield path, "", content


class _NotSentError(Exception):
    """Why a file is not sent back."""


def _paths(folder: Path, wanted: list[str]) -> Iterator[str]:
    """The paths of the files that were asked for. Of a folder, those with a path as files
    of a run may have it: hidden ones are left out."""
    for path in wanted:
        if not (folder / path).is_dir() or _leads_elsewhere(folder, path):
            yield path
            continue
        for parent, folders, names in os.walk(folder / path):
            folders[:] = sorted(one for one in folders if re.fullmatch(PATH, one))
            at = Path(parent).relative_to(folder)
            found = ((at / name).as_posix() for name in sorted(names))
            yield from (one for one in found if re.fullmatch(PATH, one))


def _leads_elsewhere(folder: Path, path: str) -> bool:
    """Whether a path is a link or leads through one."""
    return os.path.realpath(folder / path) != str(folder.resolve() / path)


def _content(folder: Path, path: str, most_bytes: int) -> bytes:
    if _leads_elsewhere(folder, path):
        raise _NotSentError("it is a link, or its path leads through one")
    # A pipe would not open without a writer, or would never end.
    fd = os.open(folder / path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
    with os.fdopen(fd, "rb") as file:
        if not stat.S_ISREG(os.fstat(fd).st_mode):
            raise _NotSentError("it is no regular file")
        content = file.read(most_bytes + 1)
    if len(content) > most_bytes:
        raise _NotSentError(
            f"it has more than {most_bytes} bytes, which is what is left for files of this run"
        )
    return content


if __name__ == "__main__":
    main()
