"""The documentation of the API: Swagger UI, whose files come from a package and not from a host."""

from __future__ import annotations

import functools
from importlib.resources import files

from fastapi import APIRouter, Request, Response

from warpcall.errors import NotFound
from warpcall_bench.compressed import Compressed
from warpcall_bench.pages.view import View, page, render

ASSETS = {
    "swagger-ui-bundle.js": "text/javascript",
    "swagger-ui.css": "text/css",
}
DAY_S = 86_400


def routes() -> APIRouter:
    """The page `/docs`, and the files that it loads."""
    router = APIRouter(include_in_schema=False)

    @router.get("/docs")
    async def docs(request: Request) -> Response:
        return page(request, render("docs.html", View.of(request)))

    @router.get("/docs/{name}")
    async def asset(name: str) -> Response:
        if name not in ASSETS:
            raise NotFound(f"there is no {name!r:.60} here", field="name")
        content = _read(name)
        headers = {"cache-control": f"private, max-age={DAY_S}"}
        return Compressed(content, media_type=ASSETS[name], headers=headers)

    return router


@functools.cache
def _read(name: str) -> bytes:
    return (files("fastapi_offline") / "static" / name).read_bytes()
