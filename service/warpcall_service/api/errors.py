"""Error responses of FastAPI's routes: each kind of exception becomes a problem, or a page of it."""

from __future__ import annotations

import logging
import math
import time
from typing import Any

from fastapi import FastAPI, Request, Response
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException
from starlette.routing import Match

from warpcall.errors import InvalidInput, NotFound, Problem
from warpcall_service.http.exchange import Exchange
from warpcall_service.http.problems import Internal, MethodNotAllowed, redirection, render
from warpcall_service.http.route_io import path_of
from warpcall_service.pages.view import problem_page, wants_page
from warpcall_service.store.database import StoreError

MAX_REASONS = 64  # reasons to remember; a database might give a new one each time
REPEAT_LOG_S = 60.0  # between two lines of the log with the same reason
METHODS = ("DELETE", "GET", "HEAD", "OPTIONS", "PATCH", "POST", "PUT", "TRACE")

log = logging.getLogger("warpcall.store")


def add_handlers(app: FastAPI) -> None:
    """Have every exception of a route answered with a problem."""
    app.add_exception_handler(Problem, _problem_response)
    app.add_exception_handler(StoreError, _StoreErrors().respond)
    app.add_exception_handler(RequestValidationError, _validation_response)
    app.add_exception_handler(HTTPException, _routing_response)
    app.add_exception_handler(Exception, _internal_response)


async def _problem_response(request: Request, problem: Exception) -> Response:
    assert isinstance(problem, Problem)
    exchange: Exchange = request.scope["state"]["exchange"]
    exchange.outcome = problem.code
    if wants_page(request):
        return problem_page(request, problem, exchange.request_id)
    status, headers, body = render(problem, exchange.request_id, path_of(request.scope))
    response = Response(body, status)
    response.raw_headers = [*headers, *redirection(problem, request.scope)]
    return response


class _StoreErrors:
    """Answers requests that needed the database, and logs the reason at most once a minute."""

    def __init__(self) -> None:
        self._logged_at: dict[str, float] = {}  # by reason

    async def respond(self, request: Request, error: Exception) -> Response:
        assert isinstance(error, StoreError)
        now = time.monotonic()
        if now - self._logged_at.get(error.reason, -math.inf) > REPEAT_LOG_S:
            if len(self._logged_at) >= MAX_REASONS:
                self._logged_at.clear()
            self._logged_at[error.reason] = now
            log.error("requests are answered with 503: %s", error.reason)
        return await _problem_response(request, error)


async def _validation_response(request: Request, error: Exception) -> Response:
    assert isinstance(error, RequestValidationError)
    fault: dict[str, Any] = dict(error.errors()[0])
    field = ".".join(map(str, fault["loc"][1:]))
    message = fault["msg"].removeprefix("Value error, ")
    problem = InvalidInput(f"{field}: {message}, got {fault['input']!r:.60}", field=field)
    return await _problem_response(request, problem)


async def _routing_response(request: Request, error: Exception) -> Response:
    """The router found no route with this path, or none with this path and method."""
    assert isinstance(error, HTTPException)
    if error.status_code == 405:
        problem: Problem = MethodNotAllowed(request.method, ", ".join(_allowed(request)))
    else:
        problem = NotFound(f"there is nothing at {path_of(request.scope)[:200]!r}", field="path")
    return await _problem_response(request, problem)


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


async def _internal_response(request: Request, error: Exception) -> Response:
    # Starlette raises the error again afterwards: Gateway logs it.
    return await _problem_response(request, Internal())
