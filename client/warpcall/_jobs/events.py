"""The events of a benchmark job as they happen, from server-sent events, across lost connections."""

from __future__ import annotations

import json
import time
from collections.abc import AsyncGenerator, Iterator

from warpcall._core import Core
from warpcall._jobs.parse import parse
from warpcall.errors import Busy, ConnectionFailed, TimedOut, TransportError, Unavailable
from warpcall.jobs import JobEvent

QUIET_S = (
    60.0  # the server sends a comment each 15 s: a connection without a byte for so long is lost
)
PAUSE_S = 0.5  # before a lost connection is made again
MAX_EVENT_BYTES = 1 << 20


async def events(
    core: Core, path: str, after: int, deadline: float | None, name: str
) -> AsyncGenerator[JobEvent, None]:
    """Events with a `sequence` above `after`, until the job ends.

    When a connection is lost, the next one continues after the last event that arrived. It is an
    error if the server does not answer for as long as a call may take.

    Args:
        deadline: on the clock of time.monotonic(); None for no limit.
        name: of the job, for messages.

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
                    after = event.sequence
                    yield event
                    if event.is_last:
                        return
        except (ConnectionFailed, Busy, Unavailable):
            if time.monotonic() > heard + core.timeout_s or core.retries == 0:
                raise
        except TransportError:
            quiet_s(deadline, name)  # raises TimedOut if the deadline is why the read failed
            raise
        finally:
            if stream is not None:
                await stream.close()
        await core.transport.sleep(min(PAUSE_S, quiet_s(deadline, name)))


class Parser:
    """Splits a stream into events. Our server writes the JSON of each event in one line."""

    def __init__(self) -> None:
        self._rest = bytearray()

    def feed(self, piece: bytes) -> Iterator[JobEvent]:
        """The events that end in this piece.

        Raises:
            TransportError: the stream holds something else.
        """
        self._rest += piece
        lines: list[bytearray] = []
        if b"\n" in piece:  # else a long line in small pieces would be split again for each piece
            *lines, self._rest = self._rest.split(b"\n")
        if len(self._rest) > MAX_EVENT_BYTES:
            raise TransportError("the server must send events of a job, got an endless line")
        for line in lines:
            field, _, value = line.rstrip(b"\r").partition(b":")
            if field == b"data":
                yield _event(value)


def _event(value: bytearray) -> JobEvent:
    try:
        payload = json.loads(value)
    except (ValueError, RecursionError):
        raise TransportError(
            f"the server must send events of a job, got {bytes(value)!r:.60}"
        ) from None
    return parse(JobEvent, payload, "events of a job")


def quiet_s(deadline: float | None, name: str) -> float:
    """How many seconds to wait for the next piece.

    Raises:
        TimedOut: the deadline passed.
    """
    if deadline is None:
        return QUIET_S
    left_s = deadline - time.monotonic()
    if left_s <= 0:
        raise TimedOut(f"{name} had not ended in time; it goes on")
    return min(QUIET_S, left_s)
