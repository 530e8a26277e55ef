"""The ASGI entry point: it authenticates, limits, dispatches, counts and logs every request.

Repeated calls do not come here: `calls/quick.py` and `calls/repeated_call.py` do the same for
them.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable

from starlette.types import ASGIApp, Receive, Scope, Send

from warpcall.errors import Problem, Unavailable
from warpcall_service.auth.authenticator import Authenticator
from warpcall_service.auth.own_hosts import OwnHosts
from warpcall_service.auth.rate_limits import Limits
from warpcall_service.auth.same_origin import check_same_origin
from warpcall_service.formats.params import check_count
from warpcall_service.http.access_log import Answered
from warpcall_service.http.direct_routes import DirectRoutes
from warpcall_service.http.exchange import ClientGone, Exchange
from warpcall_service.http.problems import Headers, Internal
from warpcall_service.http.route_io import RouteIO, prefixed
from warpcall_service.http.watchdog import ClientWatchdog
from warpcall_service.settings import Settings

log = logging.getLogger("warpcall")


class Gateway:
    """Passes requests that move tensors to the handlers of `direct`, and all others to `app`.

    Every request is authenticated before it is dispatched, so that a new route needs a key without
    doing anything for it, and is refused if a page of another site caused it. Then the limits of
    its user apply. Every request has a `ClientWatchdog`,
    so that no route waits for its client without end.
    """

    def __init__(
        self,
        settings: Settings,
        app: ASGIApp,
        direct: DirectRoutes,
        authenticator: Authenticator,
        limits: Limits,
        record: Callable[[Answered, float], None],
        login_location: Callable[[Scope, Problem], str | None],
    ) -> None:
        self._root_path = settings.root_path or ""
        self._timeout_s = settings.body_timeout_s
        self._min_rate = int(settings.min_rate_bytes_per_s)
        self._app = app
        self._direct = direct
        self._authenticator = authenticator
        self._own_hosts = OwnHosts(settings)
        self._record_request = record
        self._limits = limits
        self._login_location = login_location

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """ASGI."""
        if scope["type"] != "http":
            return  # uvicorn sends no others; if it did, they would not be authenticated
        # uvicorn could set it, too, but would add it to the path that every route is found by.
        scope["root_path"] = self._root_path
        exchange = Exchange(scope, receive, send)
        watchdog = ClientWatchdog(exchange.connection, self._timeout_s, self._min_rate)
        try:
            problem = await self._handle(exchange, watchdog)
            if problem is not None:
                watchdog.begin_refusal()
                location = self._login_location(exchange.scope, problem)
                if location is None:
                    await exchange.refuse(problem)
                else:
                    await exchange.respond(303, _redirect_headers(location), b"")
        except ClientGone:
            exchange.abandon()
        except asyncio.CancelledError:  # a second time, while the first problem was being sent
            exchange.connection.abort()
            exchange.abandon()
        finally:
            watchdog.close()
            self._record(exchange)

    async def _handle(self, exchange: Exchange, watchdog: ClientWatchdog) -> Problem | None:
        """Respond to a request, or return the problem that the response must be."""
        try:
            exchange.check_head()
            if query := exchange.scope["query_string"]:
                check_count(query)
            if not self._authenticator.needs_key:
                self._own_hosts.check(exchange)
            check_same_origin(exchange)
            self._authenticator.authenticate(exchange)
            try:
                await self._run_limited(exchange, watchdog)
            finally:
                self._authenticator.release(exchange)
        except Problem as problem:
            return problem
        except ClientGone:
            raise
        except asyncio.CancelledError:
            reason = watchdog.reason() or exchange.cancellation()
            if isinstance(reason, ClientGone):
                raise reason from None
            return reason or Unavailable("the server is stopping", retry_after_s=1)
        except Exception:
            log.exception("a request failed", extra={"id": exchange.request_id})
            return Internal()
        return None

    async def _run_limited(self, exchange: Exchange, watchdog: ClientWatchdog) -> None:
        if self._authenticator.is_open(
            exchange.scope["path"]
        ):  # probes have no user, and no limits
            await self._serve(exchange, watchdog)
            return
        account = self._limits.acquire(exchange.caller.name, exchange.began)
        try:
            await self._serve(exchange, watchdog)
        finally:
            account.release(time.monotonic() - exchange.began)

    async def _serve(self, exchange: Exchange, watchdog: ClientWatchdog) -> None:
        scope = exchange.scope
        if exchange.complete_head is not None:
            watchdog.cancel_when_client_leaves()
            await exchange.complete_head(exchange, watchdog)
        found = self._direct.find(scope["method"], scope["path"])
        if found is None:
            io = RouteIO(exchange, watchdog)
            inner = prefixed(scope)
            try:
                await self._app(inner, io.receive, io.send)
            finally:
                exchange.route = getattr(inner.get("route"), "path", "")
        else:
            handler, parameters, exchange.route = found
            watchdog.cancel_when_client_leaves()
            await handler(exchange, watchdog, *parameters)

    def _record(self, exchange: Exchange) -> None:
        self._record_request(exchange, time.monotonic() - exchange.began)


def _redirect_headers(location: str) -> Headers:
    """The headers of a response that sends a browser elsewhere with a GET."""
    return [
        (b"location", location.encode("ascii")),
        (b"cache-control", b"no-store"),
        (b"content-length", b"0"),
    ]
