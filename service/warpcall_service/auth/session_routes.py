"""The routes by which a browser logs in with a key, and logs out."""

from __future__ import annotations

import functools
from urllib.parse import urlencode

from fastapi import APIRouter, Request, Response

from warpcall.errors import (
    Busy,
    InvalidInput,
    Problem,
    TimedOut,
    TooLarge,
    Unauthorized,
    Unavailable,
    UnsupportedMedia,
)
from warpcall_service.auth import session_tokens, sessions
from warpcall_service.auth.sync import AccountSync
from warpcall_service.formats.form import PLAIN, go_to, read_form
from warpcall_service.http.caller import CurrentCaller
from warpcall_service.http.exchange import Exchange
from warpcall_service.http.openapi_parts import Schema, problem_responses
from warpcall_service.http.route_io import MAX_NEXT, local_path
from warpcall_service.settings import Settings

MAX_FORM_BYTES = 8192
LOG_IN_FORM = {
    "required": True,
    "content": {
        PLAIN: {
            "schema": {
                "type": "object",
                "required": ["key"],
                "properties": {
                    "key": {"type": "string", "description": "an API key"},
                    "next": {
                        "type": "string",
                        "maxLength": MAX_NEXT,
                        "description": "the path to go to; by default the first page",
                    },
                },
            }
        }
    },
}
# Why a log-in failed, by the word in the query of the page to which a browser is sent back.
FAILED: dict[type[Problem], str] = {Unauthorized: "key", Busy: "busy", Unavailable: "unavailable"}


def sessions_of(settings: Settings, account_sync: AccountSync) -> APIRouter:
    """The routes to log in and to log out. They answer with a redirect to a page."""
    router = APIRouter(tags=["sessions"])
    authenticator = account_sync.authenticator
    redirect: dict[int | str, Schema] = {303: {"description": "To a page of this server"}}
    changed = {**redirect, **problem_responses([Unavailable])}

    async def open_session(request: Request, key: str) -> str:
        """The Set-Cookie header of a new session for a key."""
        exchange = _exchange_of(request)
        caller = authenticator.check_log_in(exchange, key)
        replaced = authenticator.session_of(exchange)
        token = await account_sync.change(
            functools.partial(
                sessions.create,
                caller=caller,
                lifetime_s=settings.session_s,
                replaced_id="" if replaced is None else replaced.id,
            )
        )
        exchange.identify(caller)  # for the log and the usage
        return session_tokens.set_cookie(request.scope, token, round(settings.session_s))

    @router.post(
        "/login",
        status_code=303,
        response_class=Response,
        responses={
            **redirect,
            **problem_responses(
                [
                    Unauthorized,
                    InvalidInput,
                    TooLarge,
                    UnsupportedMedia,
                    Busy,
                    TimedOut,
                    Unavailable,
                ]
            ),
        },
        openapi_extra={"requestBody": LOG_IN_FORM},
    )
    async def log_in(request: Request) -> Response:
        """Open a session of a browser with an API key, and go to the path `next`.

        The session is in a cookie that scripts cannot read, and that browsers send with requests of
        this server's own pages only. Each log-in opens a new one and ends the one that the browser
        had. A server without keys needs no session.
        """
        form = await read_form(request, MAX_FORM_BYTES, kinds=[PLAIN])
        next_path = local_path(form.raw("next"))
        if not authenticator.needs_key:
            return go_to(f".{next_path}")
        try:
            cookie = await open_session(request, form.text("key"))
        except tuple(FAILED) as problem:
            if "text/html" not in request.headers.get("accept", ""):
                raise
            word = next(word for kind, word in FAILED.items() if isinstance(problem, kind))
            return go_to(f"login?{urlencode({'failed': word, 'next': next_path})}")
        return go_to(f".{next_path}", cookie)

    @router.post("/logout", status_code=303, response_class=Response, responses=changed)
    async def log_out(request: Request) -> Response:
        """End the session that the request came with, for every copy of its cookie."""
        if not authenticator.needs_key:
            return go_to("./")
        if (found := authenticator.session_of(_exchange_of(request))) is not None:
            await account_sync.change(functools.partial(sessions.end_if_open, session_id=found.id))
        return go_to("login", session_tokens.set_cookie(request.scope, "", 0))

    @router.post("/logout-everywhere", status_code=303, response_class=Response, responses=changed)
    async def log_out_everywhere(request: Request, caller: CurrentCaller) -> Response:
        """End all sessions of the caller, in all browsers. API keys stay valid."""
        if not authenticator.needs_key:
            return go_to("./")
        # Otherwise this request would be cancelled, because its session ends.
        authenticator.release(_exchange_of(request))
        await account_sync.change(functools.partial(sessions.end_all, user_name=caller.name))
        return go_to("login", session_tokens.set_cookie(request.scope, "", 0))

    return router


def _exchange_of(request: Request) -> Exchange:
    exchange: Exchange = request.scope["state"]["exchange"]
    return exchange
