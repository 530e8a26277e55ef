"""Routes that move tensors: declared to FastAPI, and called by the gateway without it."""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable
from typing import Any

from fastapi import APIRouter, Response
from starlette.routing import compile_path

# Takes the exchange, its watchdog and the parameters of the path. It reads the request and sends
# the response itself.
Handler = Callable[..., Awaitable[None]]


class DirectRoutes:
    """Finds the handler of a request that FastAPI need not see.

    FastAPI takes some 0.07 ms to find and call an endpoint, and copies the body. The handlers
    here read it from the socket into the arena. The declaration to FastAPI gives such a route its
    place in the OpenAPI description, and in the Allow header of 405 responses.
    """

    def __init__(self) -> None:
        self._fixed: dict[tuple[str, str], Handler] = {}
        self._patterns: list[tuple[str, re.Pattern[str], Handler, str]] = []

    def add(
        self, router: APIRouter, method: str, path: str, handler: Handler, **described: Any
    ) -> None:
        """Add a route below the prefix of `router`; `described` is for its OpenAPI description."""
        router.add_api_route(
            path,
            _called_by_the_gateway,
            methods=[method],
            response_class=Response,
            response_model=None,
            **described,
        )
        pattern, path, parameters = compile_path(router.prefix + path)
        if parameters:
            self._patterns.append((method, pattern, handler, path))
        else:
            self._fixed[method, path] = handler

    def find(self, method: str, path: str) -> tuple[Handler, tuple[str, ...], str] | None:
        """The handler of a request, the parameters in its path, and its route: the path as it was
        declared. None if FastAPI handles the request."""
        if handler := self._fixed.get((method, path)):
            return handler, (), path
        for own_method, pattern, handler, route in self._patterns:
            if method == own_method and (found := pattern.fullmatch(path)):
                return handler, found.groups(), route
        return None


async def _called_by_the_gateway() -> None:
    raise AssertionError("the gateway calls the handler of this route before FastAPI sees it")
