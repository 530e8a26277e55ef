"""How sockets are set up for large bodies, and how many bytes each send is given."""

from __future__ import annotations

import socket
from pathlib import Path

from warpcall.sockets import SLICE_BYTES, prepare, slice_nbytes


def test_on_tcp_a_slice_is_whole_segments_and_almost_the_largest() -> None:
    with (
        socket.create_server(("127.0.0.1", 0)) as listener,
        socket.create_connection(listener.getsockname()) as sock,
    ):
        segment = sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_MAXSEG)

        nbytes = slice_nbytes(sock)

    assert nbytes % segment == 0
    assert SLICE_BYTES - segment < nbytes <= SLICE_BYTES


def test_without_segments_a_slice_is_the_largest() -> None:
    here, there = socket.socketpair()
    with here, there:
        assert slice_nbytes(here) == SLICE_BYTES


def test_a_unix_socket_gets_the_room_that_the_system_allows() -> None:
    allowed = int(Path("/proc/sys/net/core/wmem_max").read_text())
    here, there = socket.socketpair()
    with here, there:
        prepare(here)

        # The system doubles what it is asked for, to count what it needs itself.
        room = here.getsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF)

    assert room == 2 * min(SLICE_BYTES, allowed)


def test_on_tcp_nothing_waits_for_more_to_come() -> None:
    with (
        socket.create_server(("127.0.0.1", 0)) as listener,
        socket.create_connection(listener.getsockname()) as sock,
    ):
        prepare(sock)

        assert sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)


def test_a_socket_that_is_closed_has_a_slice_all_the_same() -> None:
    sock = socket.socket()
    sock.close()

    prepare(sock)

    assert slice_nbytes(sock) == SLICE_BYTES
