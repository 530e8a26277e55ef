"""What all pages share: who looks, how links are written, and how a template becomes a response."""

from __future__ import annotations

import contextlib
import functools
import logging
import secrets
from collections.abc import AsyncGenerator, Mapping
from dataclasses import dataclass, field
from importlib.resources import files
from typing import Any
from urllib.parse import quote, urlencode

from fastapi import Request, Response
from jinja2 import Environment, FileSystemLoader, StrictUndefined

from warpcall import __version__
from warpcall.errors import Problem
from warpcall.jobs import lacking, scores
from warpcall.jobs.outcomes import chip_of, sentence
from warpcall.jobs.results import why_no_verdict
from warpcall_bench.compressed import Compressed, PartsCompressor, accepts_gzip
from warpcall_bench.drawing import numbers
from warpcall_bench.pages.sortable import ordered, table
from warpcall_bench.pages.static import static_path
from warpcall_bench.streamed import Streamed
from warpcall_service.http.caller import caller_of
from warpcall_service.http.exchange import ClientGone, Exchange
from warpcall_service.http.problems import Internal
from warpcall_service.http.route_io import path_of
from warpcall_service.identity import LOCAL, Caller

# Only files of this server, no inline script, no inline style, no eval, and in no frame.
POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; "
    "connect-src 'self'; form-action 'self'; base-uri 'none'; frame-ancestors 'none'"
)
HEADERS = {
    "content-security-policy": POLICY,
    # With "no-referrer", browsers would send forms with the header "Origin: null".
    "referrer-policy": "same-origin",
    "x-frame-options": "DENY",
    "cross-origin-opener-policy": "same-origin",
    "cache-control": "no-store",
}
YEAR_S = 31_536_000
# Where the rest stands in a page that is sent up to here before the rest is made. No text of a user
# has it, because these are escaped.
REST = "<!-- rest -->"
# Pages that have no place in the navigation, with the one that leads to them.
SECTIONS = {
    "compare": "jobs",
    "compiled": "kernels",
    "groups": "jobs",
    "history": "jobs",
    "monitors": "jobs",
    "implementations": "kernels",
    "problems": "kernels",
    "shares": "jobs",
    "upload": "kernels",
}

# The class of an outcome's badge.
LEVELS = {"good": "succeeded", "partial": "partial", "bad": "failed", "none": "unknown"}

log = logging.getLogger("warpcall")


@dataclass(frozen=True, slots=True)
class View:
    """One request for a page.

    Attributes:
        base: relative URL of the server's root, such as "../". Links that begin with it work below
            any path prefix of a proxy.
        path: path of the page.
        caller: who looks; nobody on pages that need no key.
        share: token of the share link by which the caller came; empty for users.
        query: the parameters of the page's address.
    """

    base: str
    path: str
    caller: Caller
    share: str = ""
    query: Mapping[str, str] = field(default_factory=dict)

    @classmethod
    def of(cls, request: Request) -> View:
        """The view of a request."""
        path = path_of(request.scope)
        base = "../" * (path.count("/") - 1) or "./"
        return cls(base, path, caller_of(request.scope), query=dict(request.query_params))

    @property
    def is_guest(self) -> bool:
        """Whether the caller is no user: they see a shared job, or the page to log in."""
        return not self.caller.name or self.caller.jobs is not None

    @property
    def section(self) -> str:
        """The part of the navigation to which the page belongs, which is marked there."""
        first = self.path.split("/")[1]
        return SECTIONS.get(first, first)

    @property
    def has_session(self) -> bool:
        """Whether the caller is a user who can log out."""
        return not self.is_guest and self.caller is not LOCAL

    def url(self, /, *parts: str, **query: object) -> str:
        """A link to another page; values of the query that are None or empty are left out."""
        path = self.base + "/".join(quote(part, safe="") for part in parts)
        given = {name: value for name, value in query.items() if value not in (None, "")}
        return f"{path}?{urlencode(given)}" if given else path

    def path_here(self) -> str:
        """A link to the same page without its parameters."""
        return self.base + "/".join(quote(part, safe="") for part in self.path[1:].split("/"))

    def here(self, changes: Mapping[str, str]) -> str:
        """A link to the same page with other parameters; empty ones are left out."""
        given = {name: value for name, value in {**self.query, **changes}.items() if value}
        return self.path_here() + (f"?{urlencode(given)}" if given else "")

    def op(self, name: str, **query: object) -> str:
        """A link to the page of an op: a shipped one, or a problem of a user."""
        user, _, problem = name.partition("/")
        if problem:
            return self.url("problems", user, problem.partition("@")[0], **query)
        return self.url("kernels", name, **query)

    def job(self, job_id: str, *parts: str, **query: object) -> str:
        """A link to the page of a job or one of its cases, for guests by their share link."""
        if self.share:
            return self.url("share", self.share, *parts, **query)
        return self.url("jobs", job_id, *parts, **query)

    def data(self, job_id: str, *parts: str, **query: object) -> str:
        """A link to JSON about a job, for guests by their share link."""
        if self.share:
            return self.url("v1", "shared", self.share, *parts, **query)
        return self.url("v1", "jobs", job_id, *parts, **query)


def new_token() -> str:
    """A text by which a form that is sent twice, such as by a double click, is recognised."""
    return secrets.token_hex(8)


@functools.cache
def _environment() -> Environment:
    folder = str(files("warpcall_bench.pages") / "templates")
    made = Environment(
        loader=FileSystemLoader(folder),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        auto_reload=False,
    )
    made.globals |= {"static_path": static_path, "version": __version__, "new_token": new_token}
    made.filters |= {
        name: getattr(numbers, name)
        for name in (
            "microseconds",
            "ratio",
            "times",
            "percent",
            "whole",
            "gb_per_s",
            "nbytes",
            "span",
            "ago",
            "day",
            "count",
            "sentence",
            "fact",
        )
    }
    made.globals["plus_minus"] = numbers.plus_minus
    made.globals["why_no_verdict"] = why_no_verdict
    made.globals |= {
        "chip_of": chip_of,
        "levels": LEVELS,
        "sentence_about": sentence,
        "score_text": scores.sentence,
        "lacking": lacking,
    }
    made.globals["rest_here"] = REST
    made.globals |= {"table": table, "ordered": ordered}
    return made


def load_templates() -> None:
    """Compile all templates. The first request for a page would wait for those that it needs."""
    environment = _environment()
    for name in environment.list_templates(["html"]):
        environment.get_template(name)


def render(template: str, view: View, **context: Any) -> str:
    """A page as text."""
    return _environment().get_template(template).render(view=view, **context)


def page(request: Request, text: str, status: int = 200, *, hands_over: bool = False) -> Response:
    """The response with a page.

    Args:
        hands_over: whether its scripts hand data over to tabs of other origins that they open.
    """
    headers = _headers(request)
    if hands_over:
        headers["cross-origin-opener-policy"] = "same-origin-allow-popups"
    return Compressed(text, status, headers, "text/html")


async def streamed_page(request: Request, view: View, parts: AsyncGenerator[str, None]) -> Response:
    """The response with a page whose first part is sent before the others are made.

    If the first part raises a problem, that is the response. If a later one does, the page ends with
    the problem as a text, because the status has been sent.
    """
    headers = _headers(request) | {"vary": "accept-encoding"}
    made = _shown_to_the_end(request, view, parts)
    if accepts_gzip(request):
        headers["content-encoding"] = "gzip"
        pieces = _compressed(made)
    else:
        pieces = _encoded(made)
    return Streamed(await anext(pieces), pieces, "text/html; charset=utf-8", headers)


async def _shown_to_the_end(
    request: Request, view: View, parts: AsyncGenerator[str, None]
) -> AsyncGenerator[str, None]:
    """The parts of a page. A failure after the first one becomes a text in the page."""
    exchange: Exchange = request.scope["state"]["exchange"]
    problem: Problem | None = None
    async with contextlib.aclosing(parts):
        yield await anext(parts)
        try:
            async for part in parts:
                yield part
        except Problem as found:
            problem = found
            log.warning(
                "the rest of a page failed: %s", found.detail, extra={"id": exchange.request_id}
            )
        except ClientGone:
            raise
        except Exception:
            log.exception("the rest of a page failed", extra={"id": exchange.request_id})
            problem = Internal()
    if problem is not None:
        exchange.outcome = problem.code
        yield render("cut_short.html", view, problem=problem, request_id=exchange.request_id)


async def _encoded(parts: AsyncGenerator[str, None]) -> AsyncGenerator[bytes, None]:
    async with contextlib.aclosing(parts):
        async for part in parts:
            yield part.encode()


async def _compressed(parts: AsyncGenerator[str, None]) -> AsyncGenerator[bytes, None]:
    compressor = PartsCompressor()
    async with contextlib.aclosing(parts):
        async for part in parts:
            yield await compressor.part(part.encode())
    yield compressor.end()


def _headers(request: Request) -> dict[str, str]:
    headers = dict(HEADERS)
    if request.url.scheme == "https":
        headers["strict-transport-security"] = f"max-age={YEAR_S}"
    return headers


def wants_page(request: Request) -> bool:
    """Whether a person looks: a request of a browser's page or form, and not of the API."""
    path = path_of(request.scope)
    accepted = request.headers.get("accept", "")
    in_api = path.startswith(("/v1/", "/v2/")) or path in ("/v1", "/v2")
    return request.method in ("GET", "POST") and "text/html" in accepted and not in_api


def problem_page(request: Request, problem: Problem, request_id: str) -> Response:
    """A problem as a page."""
    text = render("problem.html", View.of(request), problem=problem, request_id=request_id)
    return page(request, text, problem.status)
