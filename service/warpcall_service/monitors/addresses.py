"""Which addresses the server may call for a monitor: public ones, and those that the operator allows.

A user chooses the URL. Without this check, the server would send requests for them into networks
that they cannot reach themselves, such as to other services on the server's own machine.
"""

from __future__ import annotations

import asyncio
import ipaddress
import socket
from collections.abc import Iterable, Sequence
from urllib.parse import urlsplit

import httpcore

from warpcall.errors import InvalidInput
from warpcall_service.text import brief

Address = ipaddress.IPv4Address | ipaddress.IPv6Address
Network = ipaddress.IPv4Network | ipaddress.IPv6Network
NAT64 = ipaddress.IPv6Network("64:ff9b::/96")  # its last 32 bits are an IPv4 address


class Refused(httpcore.ConnectError):
    """The server must not connect to an address; the message says why, for readers."""


def networks_of(setting: str) -> list[Network]:
    """The networks of the setting `webhook_networks`.

    Raises:
        ValueError: one of them is no network.
    """
    parts = [] if setting == "none" else setting.split(",")
    return [ipaddress.ip_network(part.strip()) for part in parts]


def check_url(url: str, networks: Sequence[Network]) -> None:
    """Check what can be checked of a URL without looking its host up.

    Raises:
        InvalidInput: it can never be called; the error names the field `notify`.
    """
    try:
        parts = urlsplit(url)
        host, port = parts.hostname, parts.port
    except ValueError:
        host, port = None, None
    plain = url.isascii() and url.isprintable() and " " not in url
    if not plain or host is None or parts.scheme not in ("http", "https") or port == 0:
        raise _wrong("must be a URL such as https://example.org/hook", url)
    if parts.username is not None or parts.fragment:
        raise _wrong("must have no user name, password or fragment", url)
    if parts.scheme == "http" and not networks:
        raise _wrong("must begin with https://; this server allows http:// for no network", url)
    try:
        address = ipaddress.ip_address(host)
    except ValueError:
        return  # a name, which is looked up before each call
    if not may_connect(address, networks, encrypted=parts.scheme == "https"):
        raise _wrong("must not be an address that this server may not call", url)


def may_connect(address: Address, networks: Iterable[Network], *, encrypted: bool) -> bool:
    """Whether the server may connect to an address.

    It may if the operator allows a network with this address, or if the address is public and the
    connection is encrypted. An address that stands for another one counts as that.
    """
    known = _meant(address)
    if any(one in network for one in (address, known) for network in networks):
        return True
    return encrypted and known.is_global and not known.is_multicast


class CheckedBackend(httpcore.AsyncNetworkBackend):
    """Connects only to addresses that the server may call.

    The name of a host is looked up once for each connection, and the connection is made to an
    address that was checked. A name that means another address a moment later gains nothing.

    Args:
        encrypted: whether TLS will be spoken.
    """

    def __init__(self, networks: Sequence[Network], *, encrypted: bool) -> None:
        self._networks = networks
        self._encrypted = encrypted
        self._backend = httpcore.AnyIOBackend()

    async def connect_tcp(
        self,
        host: str,
        port: int,
        timeout: float | None = None,  # as httpcore declares it
        local_address: str | None = None,
        socket_options: Iterable[httpcore.SOCKET_OPTION] | None = None,
    ) -> httpcore.AsyncNetworkStream:
        """Connect to a host.

        Raises:
            Refused: one of its addresses must not be called.
            ConnectError: the host is not known, or does not accept the connection.
        """
        loop = asyncio.get_running_loop()
        try:
            found = await loop.getaddrinfo(host, port, type=socket.SOCK_STREAM)
        except OSError as error:
            raise httpcore.ConnectError(f"the name {brief(host)} is not known") from error
        texts = [str(entry[4][0]) for entry in found]
        for text in texts:
            address = ipaddress.ip_address(text.partition("%")[0])
            if not may_connect(address, self._networks, encrypted=self._encrypted):
                raise Refused(f"{brief(host)} has an address that this server may not call")
        return await self._backend.connect_tcp(
            texts[0], port, timeout, local_address, socket_options
        )

    async def connect_unix_socket(
        self,
        path: str,
        timeout: float | None = None,  # as httpcore declares it
        socket_options: Iterable[httpcore.SOCKET_OPTION] | None = None,
    ) -> httpcore.AsyncNetworkStream:
        """Refuse: no URL of a monitor means a socket of this machine."""
        raise Refused("sockets of this machine may not be called")

    async def sleep(self, seconds: float) -> None:
        """Wait."""
        await asyncio.sleep(seconds)


def _meant(address: Address) -> Address:
    """The IPv4 address that an IPv6 address stands for; the address itself if there is none."""
    if isinstance(address, ipaddress.IPv4Address):
        return address
    if address in NAT64:
        return ipaddress.IPv4Address(int(address) & 0xFFFF_FFFF)
    teredo = address.teredo[1] if address.teredo is not None else None
    return address.ipv4_mapped or address.sixtofour or teredo or address


def _wrong(why: str, url: str) -> InvalidInput:
    return InvalidInput(f"notify: {why}, got {brief(url)}", field="notify")
