"""The sockets that the server listens on: a TCP address, and a Unix socket for local callers."""

from __future__ import annotations

import contextlib
import ipaddress
import os
import resource
import socket
import stat
from collections.abc import Iterator
from pathlib import Path

from warpcall_service.processes.spawn import refuse_descriptors
from warpcall_service.settings import Settings

BACKLOG = 2048
DESCRIPTORS = 65_536  # to ask for, mostly for connections; the usual soft limit is 1,024
MODE = 0o660  # of the socket file: its owner and its group may connect


class ServerError(Exception):
    """The server cannot start; the message is for its operator."""


def allow_connections() -> None:
    """Raise the limit of open descriptors to DESCRIPTORS, or as far as the system allows."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = DESCRIPTORS if hard == resource.RLIM_INFINITY else min(hard, DESCRIPTORS)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))


@contextlib.contextmanager
def listen(host: str, port: int) -> Iterator[socket.socket]:
    """Listen on a TCP address. Clients that connect while the lanes start wait for them."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        listener = socket.create_server((host, port), family=family, backlog=BACKLOG)
    except OSError as error:
        raise ServerError(
            f"WARPCALL_HOST and WARPCALL_PORT: cannot listen on {host}:{port}: {error.strerror}"
        ) from None
    with listener:
        yield listener


@contextlib.contextmanager
def reserve(
    host: str, port: int, settings: str = "WARPCALL_HOST and WARPCALL_PORT"
) -> Iterator[int]:
    """Reserve a TCP port for servers that listen on it together, as with `listen_shared`.

    The reserving socket does not listen, and therefore gets no connections.

    Args:
        settings: that say which port, for the error.

    Yields:
        The port, which the system has chosen if `port` was 0.

    Raises:
        ServerError: another program listens there, or the address is not this machine's.
    """
    try:
        if port:
            # Fails if anyone listens there, also with SO_REUSEPORT, which would share the port.
            with _bound(host, port, shared=False):
                pass
        with _bound(host, port, shared=True) as reserved:
            yield reserved.getsockname()[1]
    except OSError as error:
        raise ServerError(f"{settings}: cannot listen on {host}:{port}: {error.strerror}") from None


def listen_shared(host: str, port: int) -> socket.socket:
    """Listen on a TCP port together with other servers. The kernel shares out new connections."""
    listener = _bound(host, port, shared=True)
    listener.listen(BACKLOG)
    return listener


def _bound(host: str, port: int, *, shared: bool) -> socket.socket:
    bound = socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET)
    try:
        bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if shared:
            bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        if bound.family == socket.AF_INET6:
            bound.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)  # as create_server does
        bound.bind((host, port))
    except BaseException:
        bound.close()
        raise
    return bound


@contextlib.contextmanager
def listen_unix(path: Path) -> Iterator[socket.socket]:
    """Listen on a Unix socket.

    A socket file that a dead server left is replaced. The file is removed at the end.
    """
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as listener:
        refuse_descriptors(listener)  # also for its connections
        try:
            _remove_stale(path)
            before = os.umask(0o777 & ~MODE)
            try:
                listener.bind(os.fspath(path))
            finally:
                os.umask(before)
            listener.listen(BACKLOG)
        except OSError as error:
            reason = error.strerror or error
            raise ServerError(f"WARPCALL_UDS: cannot listen on {path}: {reason}") from None
        ours = path.stat().st_ino
        try:
            yield listener
        finally:
            with contextlib.suppress(OSError):
                if path.stat().st_ino == ours:
                    path.unlink()


def _remove_stale(path: Path) -> None:
    """Remove a socket file that nobody listens on. Any other file stays, and `bind` fails."""
    if not (path.exists() and stat.S_ISSOCK(path.stat().st_mode)):
        return
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        try:
            probe.connect(os.fspath(path))
        except ConnectionRefusedError:
            path.unlink()


def url_of(settings: Settings, listener: socket.socket, *, named: bool = False) -> str:
    """The address that the server listens on.

    Args:
        named: whether to have the machine's name in place of an address that stands for all.
    """
    host, port = listener.getsockname()[:2]
    if named and ipaddress.ip_address(host).is_unspecified:
        host = socket.gethostname()
    scheme = "http" if settings.tls_cert is None else "https"
    return f"{scheme}://[{host}]:{port}" if ":" in host else f"{scheme}://{host}:{port}"
