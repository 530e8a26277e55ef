"""Logs requests that are not valid HTTP, with a limit: anyone can send them."""

from __future__ import annotations

import logging
import time

from warpcall.errors import Problem

REPORT_S = 10.0  # at most one line is logged in this time

log = logging.getLogger("warpcall.protocol")


class _Reports:
    """Counts malformed requests, and limits how often they are logged."""

    def __init__(self) -> None:
        self._unreported = 0
        self._next = 0.0

    def record(self, client: tuple[str, int] | None, problem: Problem) -> None:
        """Log this request with those since the last line, or count it for the next line."""
        self._unreported += 1
        now = time.monotonic()
        if now >= self._next:
            address = client[0] if client else "a Unix socket"
            log.warning(
                "%d malformed requests, the last from %s: %s",
                self._unreported,
                address,
                problem.detail,
            )
            self._unreported, self._next = 0, now + REPORT_S


report = _Reports().record
