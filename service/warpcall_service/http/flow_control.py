"""Flow control of one connection: when to read on, and how long a client may leave bytes unread."""

from __future__ import annotations

import asyncio

from uvicorn.protocols.http.flow_control import FlowControl

PROGRESS_BYTES = 64 << 10  # a client must send or read this much, or the rest, in each timeout
UNSENT_BYTES = 64 << 10  # with more than this unsent, senders wait until the client reads


class Flow(FlowControl):
    """uvicorn's flow control, with a reason to keep reading paused, and a measure of slow clients.

    uvicorn resumes reading after every response, and never ends a connection that is slow.

    Attributes:
        holding: whether `resume_reading` does nothing. That is so while enough bytes of later
            requests are kept, and after the client has closed its sending side.
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
        """Called by the transport once it has sent most of what was unsent."""
        self._taken = True
        super().resume_writing()

    def stalled_s(self, now: float) -> float:
        """Seconds since the client last read PROGRESS_BYTES of the unsent bytes, or all of them.

        The server calls this about once a second. It compares the number of unsent bytes with the
        numbers at earlier calls, so that a response needs no timer.
        """
        unsent = self._transport.get_write_buffer_size()
        if not unsent or self._taken or unsent <= self._most - PROGRESS_BYTES:
            self._most, self._since, self._taken = unsent, now, False
        self._most = max(self._most, unsent)
        return now - self._since
