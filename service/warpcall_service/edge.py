"""The door of the server: every request enters here, says who sends it, is counted and logged."""

from __future__ import annotations

import asyncio
import logging
import time

from starlette.types import ASGIApp, Receive, Scope, Send

from warpcall.errors import Problem, Unavailable
from warpcall_service.exchange import ClientGone, Exchange
from warpcall_service.gate import OPEN, Gate
from warpcall_service.ledger import Ledger
from warpcall_service.limits import Limits
from warpcall_service.logs import access
from warpcall_service.metrics import Metrics
from warpcall_service.oip import Inference, is_infer
from warpcall_service.problems import Internal
from warpcall_service.remote import PROGRAMS, TENSORS, RemoteCalls

CALLS = "/v1/kernels/"

log = logging.getLogger("warpcall")


class Edge:
    """Sends calls to `calls` and `inference`, straight past FastAPI, and all else to `app`.

    Nothing passes unless `gate` admits it: a new route, on either road, is closed from the start. Who
    was admitted is held to his limits.
    """

    def __init__(
        self,
        app: ASGIApp,
        calls: RemoteCalls,
        inference: Inference,
        gate: Gate,
        limits: Limits,
        ledger: Ledger,
        metrics: Metrics,
    ) -> None:
        self._app = app
        self._calls = calls
        self._inference = inference
        self._gate = gate
        self._ledger = ledger
        self._metrics = metrics
        self._limits = limits

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """ASGI."""
        if scope["type"] != "http":
            return  # lifespan and websockets are off, and must not be a way around the gate
        exchange = Exchange(scope, receive, send)
        try:
            await self._answer(exchange)
        except ClientGone:
            exchange.abandon()
        except asyncio.CancelledError:  # once more, while it told the client of the first time
            exchange.connection.abort()
            exchange.abandon()
        finally:
            self._note(exchange)

    async def _answer(self, exchange: Exchange) -> None:
        try:
            exchange.check_head()
            self._gate.admit(exchange)
            try:
                await self._admitted(exchange)
            finally:
                self._gate.leave(exchange)
        except Problem as problem:
            await exchange.refuse(problem)
        except ClientGone:
            raise
        except asyncio.CancelledError:
            stopping = Unavailable("the server is stopping", retry_after_s=1)
            await exchange.refuse(exchange.dismissal() or stopping)
        except Exception:
            log.exception("a request failed", extra={"id": exchange.request_id})
            await exchange.refuse(Internal())

    async def _admitted(self, exchange: Exchange) -> None:
        if exchange.scope["path"] in OPEN:  # for probes: no limits
            await self._serve(exchange)
            return
        account = self._limits.enter(exchange.caller.name, exchange.began)
        try:
            await self._serve(exchange)
        finally:
            account.leave(time.monotonic() - exchange.began)

    async def _serve(self, exchange: Exchange) -> None:
        path: str = exchange.scope["path"]
        if exchange.scope["method"] == "POST" and path.startswith(CALLS):
            await self._calls.run(exchange, path[len(CALLS) :])
        elif exchange.scope["method"] == "POST" and is_infer(path):
            await self._inference.run(exchange, path)
        elif path.startswith((PROGRAMS, TENSORS)) and (
            found := self._calls.find(exchange.scope["method"], path)
        ):
            await self._calls.watched(exchange, *found)
        else:
            await self._app(exchange.scope, exchange.receive, exchange.send)

    def _note(self, exchange: Exchange) -> None:
        seconds = time.monotonic() - exchange.began
        self._metrics.request(exchange, seconds)
        self._ledger.note(exchange)
        access(exchange, seconds)
