"""Bounds the number of open connections, so that the server keeps descriptors for itself.

Each connection takes a descriptor. Without a limit, idle connections could take all descriptors of
the process. Then a worker that died could not be replaced, no job could be started, and the
database could not be opened.
"""

from __future__ import annotations

import asyncio
import logging
import resource
from typing import Any

import uvicorn
from uvicorn.server import ServerState

from warpcall_service.http.connection import Connection

RESERVED = 256  # descriptors for workers, jobs, the database, logs, and files that Python opens

log = logging.getLogger("warpcall")


class ConnectionLimit:
    """Makes the asyncio protocol of each new connection.

    A connection beyond the limit is closed at once and without a response: it would keep its
    descriptor until the client has read the response.

    Attributes:
        limit: connections that may be open at the same time.
    """

    def __init__(self) -> None:
        descriptors = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
        self.limit = max(descriptors - RESERVED, descriptors // 2)
        self._full = False

    def protocol(
        self, config: uvicorn.Config, server_state: ServerState, app_state: dict[str, Any]
    ) -> asyncio.Protocol:
        """Return a `Connection`, or beyond the limit a protocol that closes its connection."""
        count = len(server_state.connections)
        if count >= self.limit:
            if not self._full:
                log.error("%d connections are open, more of them are closed at once", count)
            self._full = True
            return _Closed()
        if (
            self._full and count < 0.9 * self.limit
        ):  # at the limit itself this would log far too often
            log.info("%d connections are open, more of them are served again", count)
            self._full = False
        return Connection(config, server_state, app_state)


class _Closed(asyncio.Protocol):
    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        transport.abort()
