"""Refuses requests to names that are not this server's, on a server without keys.

A browser asks for whatever name the URL of a page has. If the owner of that name lets it mean
127.0.0.1 while the page is shown (DNS rebinding), the browser takes this server for the page's own
site, and the page can do what everyone on this machine can. The Host header still has that name.
"""

from __future__ import annotations

import ipaddress
import re
import socket
from urllib.parse import urlsplit

from warpcall.errors import Forbidden
from warpcall_service.http.exchange import Exchange
from warpcall_service.settings import Settings
from warpcall_service.text import brief

LOOPBACK = ("localhost", "127.0.0.1", "[::1]")
_HOST = re.compile(rb"(\[[0-9a-f:.]+\]|[a-z0-9_.-]*[a-z0-9_-])\.?(?::\d*)?", re.IGNORECASE)


class OwnHosts:
    """The names and addresses in the Host header to which a server without keys answers.

    These are LOOPBACK, `host` and the host of `advertised_url`. Where other machines reach the
    server, there are also its machine's name, addresses, and names without a dot, which nobody can
    register in the public DNS.
    """

    def __init__(self, settings: Settings) -> None:
        self._is_local = settings.is_local
        own = [settings.host]
        if settings.advertised_url is not None:
            own.append(urlsplit(settings.advertised_url).hostname or settings.host)
        if not self._is_local:
            own.append(socket.gethostname())
        bracketed = (f"[{name}]" if ":" in name else name for name in own)
        self._names = {name.lower().encode() for name in (*LOOPBACK, *bracketed)}

    def check(self, exchange: Exchange) -> None:
        """Raise Forbidden if a request over TCP is for another host. Any port is right."""
        given = exchange.headers.get(b"host")
        if given is None:  # HTTP/1.0, which no browser sends
            return
        found = _HOST.fullmatch(given)
        name = b"" if found is None else found[1].lower()
        if name in self._names or (not self._is_local and _is_plain_or_address(name)):
            return
        if exchange.connection.is_local:  # which no browser reaches
            return
        more = "" if self._is_local else ", an address, a name without a dot"
        raise Forbidden(
            f"Host must be {', '.join(LOOPBACK)}{more} or the host of WARPCALL_ADVERTISED_URL, "
            f"because this server has no API keys, got {brief(given.decode('latin-1'))}",
            field="host",
        )


def _is_plain_or_address(name: bytes) -> bool:
    if b"." not in name:
        return bool(name)
    try:
        ipaddress.ip_address(name.decode().strip("[]"))
    except ValueError:
        return False
    return True
