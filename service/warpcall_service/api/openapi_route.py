"""`GET /openapi.json`: the description of the API, made when it is first asked for."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from fastapi import Request, Response
from fastapi.responses import JSONResponse

from warpcall_service.http.openapi_parts import Schema


def openapi_json(describe: Callable[[], Schema]) -> Callable[[Request], Awaitable[Response]]:
    """The handler of the route.

    Making the description takes 0.4 s, which would prolong each start of the server, and would stop
    the event loop. So a thread makes it for the first request. It goes on if that client leaves.
    If it fails, the next request makes it again.
    """
    made: asyncio.Task[Schema] | None = None

    async def handle(request: Request) -> Response:
        nonlocal made
        if made is None or (made.done() and made.exception()):
            made = asyncio.create_task(asyncio.to_thread(describe))
        schema = await asyncio.shield(made)
        prefix = request.scope.get("root_path", "").rstrip("/")
        return JSONResponse({**schema, "servers": [{"url": prefix}]} if prefix else schema)

    return handle
