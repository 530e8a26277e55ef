"""Finds the user id of the process at the other end of a local connection.

Access to shared memory depends on the account under which the client's process runs. For a Unix
socket the kernel reports it (SO_PEERCRED); for TCP over the loopback it is in the kernel's table of
sockets.
"""

from __future__ import annotations

import ipaddress
import socket
import struct
from pathlib import Path
from weakref import WeakKeyDictionary

from warpcall.errors import Forbidden
from warpcall_service.http.connection import Connection
from warpcall_service.http.exchange import Exchange
from warpcall_service.http.request_connection import RequestConnection

# A request with one of these headers was made for somebody else: a proxy forwards the requests of
# others, and a browser sends what a web page asks for, not its reader.
INDIRECT = (b"x-forwarded-for", b"x-real-ip", b"forwarded", b"via", b"origin")
TABLES = {4: Path("/proc/net/tcp"), 6: Path("/proc/net/tcp6")}

Address = tuple[ipaddress.IPv4Address | ipaddress.IPv6Address, int]


class PeerUids:
    """User ids by connection. They are cached, because the table of sockets is long."""

    def __init__(self) -> None:
        self._uids: WeakKeyDictionary[Connection, int] = WeakKeyDictionary()

    def uid(self, exchange: Exchange) -> int:
        """The user id of the process that sent a request.

        Raises:
            Forbidden: the process is not on this machine, or it made the request for somebody else.
        """
        for name in INDIRECT:
            if name in exchange.headers:
                raise Forbidden(
                    "shared memory is for programs on the server's own machine that connect "
                    f"themselves, this request has the header {name.decode()}"
                )
        received = exchange.connection
        uid = self._find(received.connection) if isinstance(received, RequestConnection) else None
        if uid is None:
            raise Forbidden(
                "shared memory is for programs on the server's own machine: connect to "
                "127.0.0.1, [::1] or its Unix socket"
            )
        return uid

    def _find(self, connection: Connection) -> int | None:
        uid = self._uids.get(connection)
        if uid is None and (uid := _uid_of(connection)) is not None:
            self._uids[connection] = uid
        return uid


def _uid_of(connection: Connection) -> int | None:
    transport = connection.transport
    sock = transport.get_extra_info("socket")
    if sock is None:
        return None
    if sock.family == socket.AF_UNIX:
        credentials = sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i"))
        uid: int = struct.unpack("3i", credentials)[1]  # of pid, uid, gid
        return uid
    peer, ours = _address(sock.getpeername()), _address(sock.getsockname())
    if not peer[0].is_loopback:
        return None
    return _owner(peer, ours)


def _address(name: tuple[str, int]) -> Address:
    return ipaddress.ip_address(name[0].partition("%")[0]), name[1]


def _owner(peer: Address, ours: Address) -> int | None:
    """The owner of the socket that is connected from `peer` to `ours`."""
    wanted = [_written(peer), _written(ours)]
    with TABLES[peer[0].version].open() as table:
        for line in table:
            fields = line.split()
            if fields[1:3] == wanted:
                return int(fields[7])
    return None


def _written(address: Address) -> str:
    """An address as in the kernel's table: words of four bytes, each in the machine's order."""
    host, port = address
    words = struct.unpack(f"={len(host.packed) // 4}I", host.packed)
    return "".join(f"{word:08X}" for word in words) + f":{port:04X}"
