"""Sessions of browsers: their token, the cookie that carries it, and how a cookie is checked.

A token is ws_<16 hex digits, the id of the session>_<256 random bits>. The server stores only
SHA-256 of it. A signed cookie would need no table, but it could not be revoked.
"""

from __future__ import annotations

import hashlib
import hmac
import re
import secrets
from collections.abc import Mapping
from dataclasses import dataclass

from starlette.types import Scope

from warpcall_service.http.exchange import Exchange

PLAIN_NAME = "warpcall"
_TOKEN = re.compile(rb"ws_([0-9a-f]{16})_[A-Za-z0-9_-]{43}")


@dataclass(frozen=True, slots=True)
class SessionRecord:
    """What the server stores of a session. Its user and role are those of its key.

    Attributes:
        id: names the session in lists; it does not open it.
        expires_at, used_at: seconds since 1970; `used_at` to within ten minutes.
    """

    id: str
    key_id: str
    digest: bytes
    expires_at: int
    used_at: int


_NO_SESSION = SessionRecord("", "", b"\0" * 32, 0, 0)  # no token has this digest


def new_token() -> tuple[str, str]:
    """The id of a new session, and its token."""
    session_id = secrets.token_hex(8)
    return session_id, f"ws_{session_id}_{secrets.token_urlsafe(32)}"


def digest_of(token: bytes) -> bytes:
    """The digest that is stored for a token. Random bits need neither salt nor a slow hash."""
    return hashlib.sha256(token).digest()


def find(token: bytes, records: Mapping[str, SessionRecord]) -> SessionRecord | None:
    """The record of a token; None if the token is wrong. The digests are compared in constant
    time."""
    found = _TOKEN.fullmatch(token)
    record = records.get(found[1].decode(), _NO_SESSION) if found else _NO_SESSION
    return record if hmac.compare_digest(digest_of(token), record.digest) else None


def cookie_name(scope: Scope) -> str:
    """The name of the cookie on the way that a request came.

    Browsers store a cookie whose name begins with `__Host-` only over TLS, for exactly one host,
    and for all its paths. So neither another host of the domain nor somebody on the network can
    plant a session of their own in a browser. Below the path prefix of a proxy, where the host has
    other applications too, the name begins with `__Secure-`, which leaves the path free.
    """
    if scope["scheme"] != "https":
        return PLAIN_NAME
    prefix = "__Secure-" if scope.get("root_path") else "__Host-"
    return prefix + PLAIN_NAME


def token_in(exchange: Exchange) -> bytes | None:
    """The token in the cookie of a request.

    Returns:
        None if there is no such cookie, or several: the server could not know which of them it has
        set itself.
    """
    beginning = cookie_name(exchange.scope).encode() + b"="
    cookies = exchange.headers.get(b"cookie", b"").replace(b" ", b"").split(b";")
    found = [part.removeprefix(beginning) for part in cookies if part.startswith(beginning)]
    return found[0] if len(found) == 1 else None


def set_cookie(scope: Scope, token: str, max_age_s: int) -> str:
    """The Set-Cookie header that stores a token; with an empty token the one that deletes it.

    Scripts cannot read the cookie, and browsers send it only with requests of our own pages.
    """
    secure = "; Secure" if scope["scheme"] == "https" else ""
    path = scope.get("root_path") or "/"
    return (
        f"{cookie_name(scope)}={token}; Path={path}; Max-Age={max_age_s}; HttpOnly; "
        f"SameSite=Strict{secure}"
    )
