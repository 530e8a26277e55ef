"""Clients with several addresses, of which the first one leads to no server that answers."""

from __future__ import annotations

import contextlib
import shutil
import socket
import ssl
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from tests.client.flavours import Flavour
from tests.client.scripted import ScriptedServer, Visit, X, permute, well
from warpcall import CallTimedOut

SCHEMES = [
    "http",
    pytest.param(
        "https",
        marks=pytest.mark.skipif(
            not shutil.which("openssl"), reason="openssl makes the certificate"
        ),
    ),
]

pytestmark = [pytest.mark.parametrize("scheme", SCHEMES), pytest.mark.slow]


@contextlib.contextmanager
def black_hole() -> Iterator[int]:
    """A port to which no connection is made, and none is refused: its queue is full."""
    with contextlib.ExitStack() as stack:
        listener = stack.enter_context(socket.socket())
        listener.bind(("127.0.0.1", 0))
        listener.listen(0)
        for _ in range(4):
            waiting = stack.enter_context(socket.socket())
            waiting.setblocking(False)
            with contextlib.suppress(BlockingIOError):
                waiting.connect(listener.getsockname())
        yield listener.getsockname()[1]


@pytest.fixture
def answering(
    scheme: str, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> Iterator[ScriptedServer]:
    """A server that answers, over the scheme."""
    context = None
    if scheme == "https":
        certificate: Path = request.getfixturevalue("certificate")
        monkeypatch.setenv("SSL_CERT_FILE", str(certificate))
        context = request.getfixturevalue("tls")
    with ScriptedServer(well, tls=context) as server:
        yield server


def test_a_server_that_takes_no_connection_leaves_time_for_another_one(
    scheme: str, answering: ScriptedServer, direct: Flavour
) -> None:
    with black_hole() as port:
        urls = [f"{scheme}://127.0.0.1:{port}", answering.url]
        (answer,) = direct.ask_url(urls, permute)

    np.testing.assert_array_equal(answer, X.T)


def test_the_only_server_may_take_a_connection_until_the_deadline(
    scheme: str, direct: Flavour
) -> None:
    with (
        black_hole() as port,
        pytest.raises(CallTimedOut),
    ):
        direct.ask_url(f"{scheme}://127.0.0.1:{port}", permute, timeout_s=4.0)


def test_a_server_that_refuses_connections_is_passed_over(
    scheme: str, answering: ScriptedServer, direct: Flavour, unused_port: int
) -> None:
    (answer,) = direct.ask_url([f"{scheme}://127.0.0.1:{unused_port}", answering.url], permute)

    np.testing.assert_array_equal(answer, X.T)


def test_a_call_whose_connection_breaks_is_repeated_at_another_server(
    scheme: str, answering: ScriptedServer, direct: Flavour, request: pytest.FixtureRequest
) -> None:
    def leave(visit: Visit) -> None:
        visit.body()
        raise ConnectionResetError

    context: ssl.SSLContext | None = request.getfixturevalue("tls") if scheme == "https" else None
    with ScriptedServer(leave, tls=context) as leaving:
        (answer,) = direct.ask_url([leaving.url, answering.url], permute)

    assert [target for target in leaving.targets if "kernels" in target] == ["/v1/kernels/permute"]
    np.testing.assert_array_equal(answer, X.T)
