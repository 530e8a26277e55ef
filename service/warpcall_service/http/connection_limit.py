"""Bounds the number of open connections, so that the server keeps descriptors for itself.

Each connection takes a descriptor. Without a bound, idle connections could take all of them: a lane
that dies could not be replaced, no job could be started, and the database could not be opened.
"""

from __future__ import annotations

import asyncio
import logging
import resource
from typing import Any

import uvicorn
from uvicorn.server import ServerState

from warpcall_service.http.connection import Connection

RESERVED = 256  # descriptors for lanes, jobs, the database, logs and what Python opens

log = logging.getLogger("warpcall")


class ConnectionLimit:
    """Makes the protocol of each new connection.

    A connection beyond the limit is closed at once, without an answer: to hold it until an answer
    is read would take the descriptor that is to be saved.

    Attributes:
        limit: connections that may be open at a time.
    """

    def __init__(self) -> None:
        descriptors = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
        self.limit = max(descriptors - RESERVED, descriptors // 2)
        self._full = False

    def protocol(
        self, config: uvicorn.Config, server_state: ServerState, app_state: dict[str, Any]
    ) -> asyncio.Protocol:
        """A `Connection`, or a protocol that closes its connection."""
        count = len(server_state.connections)
        if count >= self.limit:
            if not self._full:
                log.error("%d connections are open, more of them are closed at once", count)
            self._full = True
            return _Closed()
        if self._full and count < 0.9 * self.limit:  # else each new connection would be two lines
            log.info("%d connections are open, more of them are served again", count)
            self._full = False
        return Connection(config, server_state, app_state)


class _Closed(asyncio.Protocol):
    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        transport.abort()
