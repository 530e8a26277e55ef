"""What happens to a benchmark job, as it happens: server-sent events, without a gap over lost connections."""

from __future__ import annotations

import json
import time
from collections.abc import AsyncGenerator, Iterator
from typing import TYPE_CHECKING, Any

from warpcall._transport.base import ConnectionFailed
from warpcall.errors import Busy, TimedOut, TransportError, Unavailable

if TYPE_CHECKING:
    from warpcall._core import Core

QUIET_S = 60.0  # without a byte the connection is lost: the server sends a comment each 15 s
PAUSE_S = 0.5
MAX_EVENT_BYTES = 1 << 20


async def events(
    core: Core, path: str, after: int, deadline: float | None, name: str
) -> AsyncGenerator[dict[str, Any], None]:
    """Events with a `sequence` above `after`, until the job ends.

    A lost connection is made again and goes on after the last event; a server that stays away for
    as long as a call may take is an error.

    Args:
        deadline: on the clock of time.monotonic; None to wait for as long as it takes.

    Raises:
        TimedOut: the deadline passed.
    """
    heard = time.monotonic()
    while True:
        headers = {"Accept": "text/event-stream", "Last-Event-ID": str(after)}
        stream = None
        try:
            stream = await core.open(path, headers, quiet_s(deadline, name))
            if stream is None:
                return
            parser = Parser()
            while piece := await stream.read(quiet_s(deadline, name)):
                heard = time.monotonic()
                for event in parser.feed(piece):
                    after = int(event["sequence"])
                    yield event
                    if is_last(event):
                        return
        except (ConnectionFailed, Busy, Unavailable):
            if time.monotonic() > heard + core.timeout_s or not core.retries:
                raise
        except TransportError:
            quiet_s(deadline, name)  # it was the deadline that ended the wait
            raise
        finally:
            if stream is not None:
                await stream.close()
        await core.transport.sleep(min(PAUSE_S, quiet_s(deadline, name)))


def is_last(event: dict[str, Any]) -> bool:
    """Whether a job has ended with this; one that is interrupted and queued again has not."""
    return event["kind"] == "state" and "exit_class" in event["data"]


class Parser:
    """Server-sent events out of pieces of a stream, as our server writes them: JSON in one line."""

    def __init__(self) -> None:
        self._rest = bytearray()

    def feed(self, piece: bytes) -> Iterator[dict[str, Any]]:
        """The events that end in this piece.

        Raises:
            TransportError: what comes is none.
        """
        self._rest += piece
        lines: list[bytearray] = []
        if b"\n" in piece:  # a long line that comes in small pieces is not split again for each
            *lines, self._rest = self._rest.split(b"\n")
        if len(self._rest) > MAX_EVENT_BYTES:
            raise TransportError("the server must send events of a job, got an endless line")
        for line in lines:
            field, _, value = line.rstrip(b"\r").partition(b":")
            if field == b"data":
                yield _event(value)


def _event(value: bytearray) -> dict[str, Any]:
    try:
        told = json.loads(value)
        if isinstance(told["sequence"], int) and isinstance(told["data"], dict) and told["kind"]:
            event: dict[str, Any] = told
            return event
    except (ValueError, TypeError, KeyError, RecursionError):
        pass
    raise TransportError(f"the server must send events of a job, got {bytes(value)!r:.60}")


def quiet_s(deadline: float | None, name: str) -> float:
    """How long to wait for the next piece."""
    if deadline is None:
        return QUIET_S
    left_s = deadline - time.monotonic()
    if left_s <= 0:
        raise TimedOut(f"{name} had not ended in time; it goes on")
    return min(QUIET_S, left_s)
