"""The sockets that the server listens on: a TCP address, and a Unix socket for local callers."""

from __future__ import annotations

import contextlib
import os
import resource
import socket
import stat
from collections.abc import Iterator
from pathlib import Path

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
def listen_unix(path: Path) -> Iterator[socket.socket]:
    """Listen on a Unix socket.

    A socket file that a dead server left is replaced. The file is removed at the end.
    """
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as listener:
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
