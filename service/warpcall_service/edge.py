"""The door of the server: every request enters here, gets its id, and is counted and logged."""

from __future__ import annotations

import json
import logging
import time

from starlette.types import ASGIApp, Receive, Scope, Send

from warpcall.errors import Problem
from warpcall_service.callers import Identify
from warpcall_service.calls import Calls
from warpcall_service.exchange import ClientGone, Exchange
from warpcall_service.limits import Limits
from warpcall_service.metrics import Metrics
from warpcall_service.problems import Internal

CALLS = "/v1/kernels/"
OPEN = frozenset({"/healthz", "/readyz"})  # for probes: no caller, no limits

access_log = logging.getLogger("warpcall.access")
log = logging.getLogger("warpcall")


class Edge:
    """Sends calls to `calls`, straight past FastAPI's machinery, and all else to `app`."""

    def __init__(
        self, app: ASGIApp, calls: Calls, metrics: Metrics, identify: Identify, limits: Limits
    ) -> None:
        self._app = app
        self._calls = calls
        self._metrics = metrics
        self._identify = identify
        self._limits = limits

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """ASGI."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        exchange = Exchange(scope, receive, send)
        try:
            await self._answer(exchange)
        except ClientGone:
            exchange.abandon()
        finally:
            self._note(exchange)

    async def _answer(self, exchange: Exchange) -> None:
        path: str = exchange.scope["path"]
        try:
            if exchange.declared is None:
                exchange.check_coding()
            if path in OPEN:
                await self._app(exchange.scope, exchange.receive, exchange.send)
                return
            exchange.caller = self._identify(exchange.headers)
            exchange.scope["state"]["caller"] = exchange.caller
            account = self._limits.enter(exchange.caller.name, exchange.began)
            try:
                if exchange.scope["method"] == "POST" and path.startswith(CALLS):
                    await self._calls.run(exchange, path[len(CALLS) :])
                else:
                    await self._app(exchange.scope, exchange.receive, exchange.send)
            finally:
                account.leave(time.monotonic() - exchange.began)
        except Problem as problem:
            await exchange.refuse(problem)
        except ClientGone:
            raise
        except Exception:
            log.exception("request %s failed", exchange.request_id)
            await exchange.refuse(Internal())

    def _note(self, exchange: Exchange) -> None:
        seconds = time.monotonic() - exchange.began
        self._metrics.request(exchange, seconds)
        if access_log.isEnabledFor(logging.INFO):
            client = exchange.scope["client"]
            access_log.info(
                '{"time": "%s", "id": "%s", "client": "%s", "method": "%s", "path": %s, '
                '"status": %d, "in": %d, "out": %d, "ms": %.2f}',
                time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
                exchange.request_id,
                client[0] if client else "",
                exchange.scope["method"],
                json.dumps(exchange.scope["path"][:200]),
                exchange.status,
                exchange.received,
                exchange.sent,
                seconds * 1e3,
            )
