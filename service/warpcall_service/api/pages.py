"""The web pages: an index, and the documentation of the API. They load nothing from other hosts."""

from __future__ import annotations

import base64
import functools
import hashlib
import html
import re
from collections.abc import Mapping, Sequence
from importlib.resources import files
from typing import Any

from fastapi import APIRouter, Request, Response
from fastapi.openapi.docs import get_swagger_ui_html
from fastapi.responses import HTMLResponse

from warpcall.errors import NotFound

# The files of Swagger UI come from a package, so that no page needs the internet.
_ASSETS = {
    "swagger-ui-bundle.js": "text/javascript",
    "swagger-ui.css": "text/css",
    "favicon.png": "image/png",
}
_INDEX = """<!doctype html>
<html lang="en">
<meta charset="utf-8">
<meta name="viewport" content="width=device-width">
<title>Warpcall</title>
<style>body{{font:16px/1.5 system-ui;max-width:48rem;margin:3rem auto;padding:0 1rem}}
td{{padding:.2rem 1rem .2rem 0;vertical-align:top}}</style>
<h1>Warpcall</h1>
<p>GPU kernels as a service: tensors up, kernel, tensors back.</p>
<p><a href="docs">API documentation</a> · <a href="openapi.json">OpenAPI</a> ·
<a href="v1/kernels">kernels</a> · <a href="readyz">ready</a> · <a href="metrics">metrics</a></p>
<table>{rows}</table>
</html>
"""


def pages(ops: Sequence[Mapping[str, Any]]) -> APIRouter:
    """The routes `/`, `/docs`, and the files that `/docs` loads."""
    router = APIRouter(include_in_schema=False)
    index_page = _INDEX.format(
        rows="".join(
            f'<tr><td><a href="v1/kernels/{op["name"]}">{op["name"]}</a></td>'
            f"<td>{html.escape(op['summary'])}</td></tr>"
            for op in ops
        )
    )

    swagger = bytes(
        get_swagger_ui_html(
            openapi_url="openapi.json",
            title="Warpcall API",
            swagger_js_url="docs/swagger-ui-bundle.js",
            swagger_css_url="docs/swagger-ui.css",
            swagger_favicon_url="docs/favicon.png",
        ).body
    ).decode()

    @router.get("/")
    async def index(request: Request) -> Response:
        return _page(index_page, request)

    @router.get("/docs")
    async def docs(request: Request) -> Response:
        return _page(swagger, request)

    @router.get("/docs/{name}")
    async def asset(name: str) -> Response:
        if name not in _ASSETS:
            raise NotFound(f"there is no {name!r:.60} here", field="name")
        content = (files("fastapi_offline") / "static" / name).read_bytes()
        return Response(
            content, media_type=_ASSETS[name], headers={"cache-control": "max-age=86400"}
        )

    return router


@functools.cache
def _policy(text: str) -> str:
    """A Content-Security-Policy: only the page's own scripts, only this server, and in no frame."""
    scripts = " ".join(
        f"'sha256-{base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()}'"
        for script in re.findall(r"<script>(.*?)</script>", text, re.DOTALL)
    )
    return (
        "default-src 'none'; connect-src 'self'; img-src 'self' data:; "
        f"style-src 'self' 'unsafe-inline'; script-src 'self' {scripts}; "
        "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    )


def _page(text: str, request: Request) -> Response:
    headers = {
        "content-security-policy": _policy(text),
        "referrer-policy": "no-referrer",
        "x-frame-options": "DENY",
    }
    if request.url.scheme == "https":
        headers["strict-transport-security"] = "max-age=31536000"  # a year
    return HTMLResponse(text, headers=headers)
