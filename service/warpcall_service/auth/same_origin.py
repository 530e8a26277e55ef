"""Refuses requests that a page of another site makes a browser send (CSRF).

A browser adds the session's cookie to a request whoever's page made it, and a server without keys
accepts everyone who reaches it. So a request that may change something must come from a page of
this server, or from no page at all.
"""

from __future__ import annotations

from warpcall.errors import Forbidden
from warpcall_service.http.exchange import Exchange
from warpcall_service.text import brief

SAFE = frozenset({"GET", "HEAD", "OPTIONS"})  # methods that change nothing
OWN_SITES = (b"same-origin", b"none")  # "none": the user typed the URL or opened a bookmark
DEFAULT_PORTS = {b"http": b":80", b"https": b":443"}


def check_same_origin(exchange: Exchange) -> None:
    """Raise Forbidden if a page of another origin made a browser send this request.

    Browsers say so in Sec-Fetch-Site, which scripts cannot set. Over plain HTTP they leave it out;
    then Origin must have the host and port of the Host header. Programs other than browsers send
    neither. A request with an API key in a header is always accepted: for another origin browsers
    first ask whether they may send one, and this server never says yes.
    """
    if exchange.scope["method"] in SAFE or _has_key(exchange):
        return
    headers = exchange.headers
    site = headers.get(b"sec-fetch-site")
    if site is not None:
        if site not in OWN_SITES:
            raise _refusal("Sec-Fetch-Site", "same-origin or none", site)
        return
    origin = headers.get(b"origin")
    if origin is not None and not _is_of(origin, headers.get(b"host", b"")):
        raise _refusal("Origin", "the scheme, host and port of this server", origin)


def _has_key(exchange: Exchange) -> bool:
    """Whether the request has a key, right or wrong. Browsers can send "Basic" by themselves."""
    return exchange.headers.get(b"authorization", b"")[:7].lower() == b"bearer "


def _is_of(origin: bytes, host: bytes) -> bool:
    """Whether an Origin such as https://name:8000 has the host and port of a Host header."""
    scheme, separator, authority = origin.lower().partition(b"://")
    port = DEFAULT_PORTS.get(scheme)
    if not separator or port is None or not authority:
        return False
    return authority.removesuffix(port) == host.lower().removesuffix(port)


def _refusal(header: str, allowed: str, given: bytes) -> Forbidden:
    return Forbidden(
        f"a page of another site must not send this request: {header} must be {allowed}, got "
        f"{brief(given.decode('latin-1'))}; a program sends its key as Authorization: Bearer wc_...",
        field=header.lower(),
    )
