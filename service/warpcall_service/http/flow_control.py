"""Flow control of one connection: when to read on, and how long a client may leave bytes unread."""

from __future__ import annotations

import asyncio

from uvicorn.protocols.http.flow_control import FlowControl

PROGRESS_BYTES = 64 << 10  # a client must send or take this much, or the rest, in each timeout
UNSENT_BYTES = 64 << 10  # with more than this unsent, nothing is added before the client reads


class Flow(FlowControl):
    """uvicorn's, which resumes reading after every response and never ends a slow connection.

    Attributes:
        holding: whether reading stays paused, whoever resumes it: bytes that were read already wait
            for the response before them, or the client has closed its sending side.
    """

    def __init__(self, transport: asyncio.Transport) -> None:
        super().__init__(transport)
        transport.set_write_buffer_limits(UNSENT_BYTES)  # with TLS it would be 512 KiB
        self.holding = False
        self._taken = False
        self._most = 0
        self._since = asyncio.get_running_loop().time()

    def resume_reading(self) -> None:
        """Read on, unless `holding`."""
        if not self.holding:
            super().resume_reading()

    def resume_writing(self) -> None:
        """The transport has sent most of what was unsent."""
        self._taken = True
        super().resume_writing()

    def stalled_s(self, now: float) -> float:
        """Seconds since the client last took PROGRESS_BYTES of the unsent bytes, or all of them.

        It has to be called about once a second: it compares the number of unsent bytes with the
        number at earlier calls. No timer has to be started for each response this way.
        """
        unsent = self._transport.get_write_buffer_size()
        if not unsent or self._taken or unsent <= self._most - PROGRESS_BYTES:
            self._most, self._since, self._taken = unsent, now, False
        self._most = max(self._most, unsent)
        return now - self._since
