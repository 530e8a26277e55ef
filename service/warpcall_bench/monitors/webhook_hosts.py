"""Which URLs the server calls for monitors: only those at hosts that the operator lists.

A user chooses the URL. Without this list, the server would send requests for them into networks
that they cannot reach themselves, such as to other services on the server's own machine.
"""

from __future__ import annotations

from collections.abc import Set as AbstractSet
from urllib.parse import urlsplit

from warpcall.errors import InvalidInput
from warpcall_bench.settings import WEBHOOK_PORTS
from warpcall_service.text import brief

VARIABLE = "WARPCALL_WEBHOOK_HOSTS"
MOST_SHOWN = 10  # hosts in one message


def check_url(url: str, listed: AbstractSet[str]) -> None:
    """Raise InvalidInput, which names the field `notify`, if this server does not call a URL.

    Args:
        listed: origins, as `BenchSettings.webhook_origins` has them.
    """
    origin = origin_of(url)
    if origin is None:
        why = "must be a URL such as https://example.org/hook, without a user name or a fragment"
    elif origin not in listed:
        why = f"must be {described(listed)}"
    else:
        return
    raise InvalidInput(f"notify: {why}, got {brief(url)}", field="notify")


def origin_of(url: str) -> str | None:
    """Scheme, host and port of a URL, as in `BenchSettings.webhook_origins`; None if it has none."""
    try:
        parts = urlsplit(url)
        host, port = parts.hostname, parts.port
    except ValueError:
        return None
    plain = url.isascii() and url.isprintable() and " " not in url and "\\" not in url
    standard = WEBHOOK_PORTS.get(parts.scheme)
    if not plain or not host or standard is None or "@" in parts.netloc or "#" in url:
        return None
    host = f"[{host}]" if ":" in host else host
    return f"{parts.scheme}://{host}:{standard if port is None else port}"


def described(listed: AbstractSet[str]) -> str:
    """What a URL must be, to follow "must be"."""
    if not listed:
        return f"empty: the operator of this server lists no hosts to call with {VARIABLE}"
    shown = [_without_standard_port(origin) for origin in sorted(listed)[:MOST_SHOWN]]
    more = f" or {len(listed) - len(shown)} more" if len(listed) > len(shown) else ""
    return f"at {', '.join(shown)}{more}, which the operator of this server lists with {VARIABLE}"


def _without_standard_port(origin: str) -> str:
    return origin.removesuffix(f":{WEBHOOK_PORTS[origin.partition(':')[0]]}")
