"""The page to log in, and how a browser without a session gets there."""

from __future__ import annotations

from urllib.parse import quote

from fastapi import APIRouter, Request, Response
from starlette.types import Scope

from warpcall.errors import Problem, Unauthorized
from warpcall_bench.pages.view import View, page, render, wants_page
from warpcall_service.http.route_io import local_path

# Why a log-in failed, by the word in the query of the page.
FAILURES = {
    "key": "This is not a key of this server, or it is no longer valid.",
    "busy": "Too many wrong keys came from your address. Wait a minute.",
    "unavailable": "The server cannot check keys at present. Try again soon.",
}


def login_location(scope: Scope, problem: Problem) -> str | None:
    """Where a browser that needs a session for this request gets one; None for all others.

    The URL is relative, so that it works below any path prefix of a proxy.
    """
    if not isinstance(problem, Unauthorized) or not wants_page(Request(scope)):
        return None
    path, query = scope["path"], scope["query_string"].decode("latin-1")
    wanted = quote(path) + (f"?{query}" if query else "")
    if scope["method"] != "GET" and path.count("/") > 1:  # of a button: there may be no such page
        wanted = "/"
    base = "../" * (path.count("/") - 1)
    return f"{base}login?next={quote(local_path(wanted), safe='')}"


def routes() -> APIRouter:
    """The page with the form. `auth` has the routes that it posts to."""
    router = APIRouter(include_in_schema=False)

    @router.get("/login")
    async def login(request: Request, next: str = "/", failed: str = "") -> Response:
        text = render(
            "login.html",
            View.of(request),
            next=local_path(next),
            failed=FAILURES.get(failed, ""),
        )
        return page(request, text)

    return router
