"""Error responses of FastAPI's routes: each kind of exception becomes a problem, or a page of it."""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Callable
from typing import Any

from fastapi import FastAPI, Request, Response
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException
from starlette.routing import Match

from warpcall.errors import InvalidInput, NotFound, Problem
from warpcall_service.http.exchange import Exchange
from warpcall_service.http.problems import Internal, MethodNotAllowed, redirection, render
from warpcall_service.http.route_io import path_of
from warpcall_service.store.database import StoreError

MAX_REASONS = 64  # reasons to remember; a database might give a new one each time
REPEAT_LOG_S = 60.0  # between two lines of the log with the same reason
METHODS = ("DELETE", "GET", "HEAD", "OPTIONS", "PATCH", "POST", "PUT", "TRACE")

ProblemPage = Callable[[Request, Problem, str], Response | None]

log = logging.getLogger("warpcall.store")


def add_handlers(app: FastAPI, problem_page: ProblemPage) -> None:
    """Have every exception of a route answered with a problem.

    Args:
        problem_page: returns the page of a problem; None for requests that do not want pages.
    """
    handlers = _Handlers(problem_page)
    app.add_exception_handler(Problem, handlers.problem)
    app.add_exception_handler(StoreError, handlers.store_error)
    app.add_exception_handler(RequestValidationError, handlers.invalid)
    app.add_exception_handler(HTTPException, handlers.no_route)
    app.add_exception_handler(Exception, handlers.internal)


class _Handlers:
    """Answers requests whose route has raised an exception."""

    def __init__(self, problem_page: ProblemPage) -> None:
        self._problem_page = problem_page
        self._logged_at: dict[str, float] = {}  # by the reason why the database failed

    async def problem(self, request: Request, problem: Exception) -> Response:
        assert isinstance(problem, Problem)
        exchange: Exchange = request.scope["state"]["exchange"]
        exchange.outcome = problem.code
        page = self._problem_page(request, problem, exchange.request_id)
        if page is not None:
            return page
        status, headers, body = render(problem, exchange.request_id, path_of(request.scope))
        response = Response(body, status)
        response.raw_headers = [*headers, *redirection(problem, request.scope)]
        return response

    async def store_error(self, request: Request, error: Exception) -> Response:
        """Answer a request that needed the database, and log the reason at most once a minute."""
        assert isinstance(error, StoreError)
        now = time.monotonic()
        if now - self._logged_at.get(error.reason, -math.inf) > REPEAT_LOG_S:
            if len(self._logged_at) >= MAX_REASONS:
                self._logged_at.clear()
            self._logged_at[error.reason] = now
            log.error("requests are answered with 503: %s", error.reason)
        return await self.problem(request, error)

    async def invalid(self, request: Request, error: Exception) -> Response:
        assert isinstance(error, RequestValidationError)
        fault: dict[str, Any] = dict(error.errors()[0])
        field = ".".join(map(str, fault["loc"][1:]))
        message = fault["msg"].removeprefix("Value error, ")
        problem = InvalidInput(f"{field}: {message}, got {fault['input']!r:.60}", field=field)
        return await self.problem(request, problem)

    async def no_route(self, request: Request, error: Exception) -> Response:
        """The router found no route with this path, or none with this path and method."""
        assert isinstance(error, HTTPException)
        if error.status_code == 405:
            problem: Problem = MethodNotAllowed(request.method, ", ".join(_allowed(request)))
        else:
            problem = NotFound(
                f"there is nothing at {path_of(request.scope)[:200]!r}", field="path"
            )
        return await self.problem(request, problem)

    async def internal(self, request: Request, error: Exception) -> Response:
        # Starlette raises the error again afterwards: Gateway logs it.
        return await self.problem(request, Internal())


def _allowed(request: Request) -> list[str]:
    """The methods that the path of a request has. The router names those of one route only."""
    routes = request.app.routes
    return [
        method
        for method in METHODS
        if any(
            route.matches({**request.scope, "method": method})[0] is Match.FULL for route in routes
        )
    ]
