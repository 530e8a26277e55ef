"""Over TLS and through proxies an exchange ends within its timeout, whatever the peer does."""

from __future__ import annotations

import select
import shutil
import socket
import ssl
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest
import safetensors.numpy

from tests.client.endless import CHUNKED, TIMEOUT_S, Endless, SlowReader, listening
from tests.client.flavours import Flavour
from tests.client.scripted import ScriptedServer, Visit, X, permute, permute_large, well
from warpcall import AsyncClient, Client, InvalidInput, TransportError

pytestmark = [
    pytest.mark.skipif(not shutil.which("openssl"), reason="openssl makes the certificate"),
    pytest.mark.slow,
]

CONNECTED = b"HTTP/1.1 200 Connected\r\n\r\n"
RECORD = b"\x16\x03\x03\x40\x00"  # the head of a handshake record of 16 KiB


@pytest.fixture(autouse=True)
def _trusted(certificate: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SSL_CERT_FILE", str(certificate))


@pytest.mark.parametrize(
    ("first", "again", "pause_s"),
    [
        pytest.param(b"HTTP/1.1 200 OK\r\nx-filler: ", b"y", 0.05, id="header-drips"),
        pytest.param(b"", b"HTTP/1.1 103 Early Hints\r\n\r\n", 0.05, id="interim-answers"),
        pytest.param(CHUNKED, b"1\r\nx\r\n" * 1000, 0, id="chunks-flood"),
        pytest.param(b"HTTP/1.1 200 OK\r\nContent-Length: 9999\r\n\r\n", b"x", 0.05, id="drips"),
    ],
)
def test_an_answer_without_end_is_left_at_the_timeout(
    first: bytes, again: bytes, pause_s: float, client: Flavour, tls: ssl.SSLContext
) -> None:
    endless = Endless(first, again, pause_s)

    with (
        ScriptedServer(endless, tls=tls) as server,
        pytest.raises(TransportError, match="did not answer in time"),
    ):
        client.ask(server, permute, timeout_s=TIMEOUT_S * 4)

    assert not endless.outlasted.is_set()


def test_a_body_that_the_server_reads_slowly_is_left_at_the_timeout(
    client: Flavour, tls: ssl.SSLContext
) -> None:
    slow = SlowReader()

    with (
        ScriptedServer(slow, tls=tls) as server,
        pytest.raises(TransportError, match="did not answer in time"),
    ):
        client.ask(server, permute_large, timeout_s=TIMEOUT_S * 4)

    assert not slow.outlasted.is_set()


@pytest.mark.parametrize("first", [b"", RECORD], ids=["silence", "record-drips"])
def test_a_handshake_without_end_is_left_at_the_timeout(first: bytes, client: Flavour) -> None:
    endless = Endless(first, first and b"\x02")

    with listening(endless.send_to) as port, pytest.raises(TransportError, match="in time"):
        client.ask_url(f"https://127.0.0.1:{port}", permute, timeout_s=TIMEOUT_S)

    assert not endless.outlasted.is_set()


@pytest.mark.parametrize(
    ("first", "again"),
    [
        pytest.param(b"", b"", id="silence"),
        pytest.param(b"HTTP/1.1 200 ", b"O", id="status-line-drips"),
        pytest.param(b"", b"HTTP/1.1 103 Early Hints\r\n\r\n", id="interim-answers"),
    ],
)
def test_a_proxy_that_does_not_connect_is_left_at_the_timeout(
    first: bytes, again: bytes, client: Flavour, monkeypatch: pytest.MonkeyPatch
) -> None:
    endless = Endless(first, again)

    with listening(endless.send_to) as port:
        through(monkeypatch, f"http://127.0.0.1:{port}")
        with pytest.raises(TransportError, match="in time"):
            client.ask_url("https://gpu-box", permute, timeout_s=TIMEOUT_S)

    assert not endless.outlasted.is_set()


def test_a_handshake_behind_a_proxy_is_left_at_the_timeout(
    client: Flavour, monkeypatch: pytest.MonkeyPatch
) -> None:
    endless = Endless(RECORD, b"\x02")

    def connect(sock: socket.socket) -> None:
        sock.recv(1 << 16)
        sock.sendall(CONNECTED)
        sock.recv(1 << 16)
        endless.send_to(sock)

    with listening(connect) as port:
        through(monkeypatch, f"http://127.0.0.1:{port}")
        with pytest.raises(TransportError, match="in time"):
            client.ask_url("https://gpu-box", permute, timeout_s=TIMEOUT_S)

    assert not endless.outlasted.is_set()


def test_a_proxy_that_refuses_is_named_with_its_words_made_safe(
    client: Flavour, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(sock: socket.socket) -> None:
        sock.recv(1 << 16)
        sock.sendall(b"HTTP/1.1 403 Not \x1b[31mto you\r\nContent-Length: 0\r\n\r\n")

    with listening(refuse) as port:
        through(monkeypatch, f"http://127.0.0.1:{port}")
        with pytest.raises(
            TransportError, match=r"the proxy .* 403 Not \\x1b\[31mto you"
        ) as caught:
            client.ask_url("https://gpu-box", permute, retries=0)

    assert str(caught.value).isprintable()


@pytest.fixture(params=["plain", "tls"])
def proxy(
    request: pytest.FixtureRequest, tls: ssl.SSLContext, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Callable[[int], None]]:
    """A function that points a proxy, which speaks plain HTTP or TLS, to the port of a server."""
    ports: list[int] = []
    secured = request.param == "tls"

    def serve(plain: socket.socket) -> None:
        with tls.wrap_socket(plain, server_side=True) if secured else plain as sock:
            assert sock.recv(1 << 16).startswith(b"CONNECT gpu-box:443 ")
            sock.sendall(CONNECTED)
            with socket.create_connection(("127.0.0.1", ports[0])) as server:
                relay(sock, server)

    def leads_to(port: int) -> None:
        ports.append(port)

    with listening(serve) as port:
        through(monkeypatch, f"http{'s' if secured else ''}://127.0.0.1:{port}")
        yield leads_to


def relay(client: socket.socket, server: socket.socket) -> None:
    """Pass bytes on in both directions, in one thread: two threads cannot share a TLS socket."""
    while True:
        waiting = isinstance(client, ssl.SSLSocket) and client.pending()
        ready = select.select([client, server], [], [], 0 if waiting else None)[0]
        for source, target in ((client, server), (server, client)):
            if source in ready or (waiting and source is client):
                data = source.recv(1 << 16)
                if not data:
                    return
                target.sendall(data)


def through(monkeypatch: pytest.MonkeyPatch, proxy: str) -> None:
    for name in ("HTTPS_PROXY", "https_proxy"):
        monkeypatch.setenv(name, proxy)
    for name in ("NO_PROXY", "no_proxy"):
        monkeypatch.setenv(name, "")


def test_a_server_is_reached_through_a_proxy(
    client: Flavour, tls: ssl.SSLContext, proxy: Callable[[int], None]
) -> None:
    x = np.random.default_rng(0).integers(0, 256, 3 << 20, np.uint8)

    def echo(visit: Visit) -> None:
        arrays = safetensors.numpy.load(visit.body())
        visit.answer(200, safetensors.numpy.save({"out": arrays["x"]}))

    with ScriptedServer(well, echo, tls=tls) as server:
        proxy(server.port)
        small, large = client.ask_url(
            "https://gpu-box", permute, lambda gpu: gpu.run("permute", x=x, dims=(0,))
        )

        assert server.connections == 1
    np.testing.assert_array_equal(small, X.T)
    np.testing.assert_array_equal(large, x)


@pytest.mark.parametrize("script", [Endless(b"", b"HTTP/1.1 103 Hint\r\n\r\n"), SlowReader()])
def test_behind_a_proxy_the_timeout_holds_too(
    script: Endless | SlowReader,
    client: Flavour,
    tls: ssl.SSLContext,
    proxy: Callable[[int], None],
) -> None:
    with ScriptedServer(script, tls=tls) as server:
        proxy(server.port)
        with pytest.raises(TransportError, match="in time"):
            client.ask_url("https://gpu-box", permute_large, timeout_s=TIMEOUT_S * 4)

    assert not script.outlasted.is_set()


def test_a_record_of_the_inner_tls_that_drips_is_left_at_the_timeout(
    client: Flavour, proxy: Callable[[int], None]
) -> None:
    endless = Endless(RECORD, b"\x02")

    def serve(sock: socket.socket) -> None:
        sock.recv(1 << 16)  # what comes before it could arrive with the proxy's own answer
        endless.send_to(sock)

    with listening(serve) as port:
        proxy(port)
        with pytest.raises(TransportError, match="in time"):
            client.ask_url("https://gpu-box", permute, timeout_s=TIMEOUT_S * 4)

    assert not endless.outlasted.is_set()


@pytest.mark.parametrize("kind", [Client, AsyncClient])
@pytest.mark.parametrize("content", [None, "", "no certificate", "a folder"])
def test_a_file_of_certificates_that_cannot_be_read_is_named(
    content: str | None,
    kind: type[Client | AsyncClient],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    path = tmp_path / "certificates.pem"
    if content == "a folder":
        path.mkdir()
    elif content is not None:
        path.write_text(content)
    monkeypatch.setenv("SSL_CERT_FILE", str(path))

    with pytest.raises(InvalidInput, match=r"SSL_CERT_FILE must .*certificates\.pem") as caught:
        kind("https://127.0.0.1:1")

    assert caught.value.field == "SSL_CERT_FILE"


@pytest.mark.parametrize(
    "proxied", ["ftp://proxy", "http://proxy:port", "http://", "socks5://proxy"]
)
def test_a_proxy_that_is_none_is_refused(proxied: str, monkeypatch: pytest.MonkeyPatch) -> None:
    through(monkeypatch, proxied)

    with pytest.raises(InvalidInput, match=r"https_proxy (must name a proxy|names a SOCKS proxy)"):
        Client("https://gpu-box")


def test_https_to_a_port_of_plain_http_says_so(client: Flavour) -> None:
    def refuse(sock: socket.socket) -> None:
        sock.recv(1 << 16)
        sock.sendall(b"HTTP/1.1 400 Bad Request\r\nContent-Length: 0\r\n\r\n")

    with listening(refuse) as port, pytest.raises(TransportError, match="begins with http://"):
        client.ask_url(f"https://127.0.0.1:{port}", permute)


@pytest.mark.parametrize("alert", [b"", b"\x15\x03\x03\x00\x02\x02\x46"], ids=["leaves", "alert"])
def test_plain_http_to_a_port_of_https_says_so(alert: bytes, client: Flavour) -> None:
    def refuse(sock: socket.socket) -> None:
        sock.recv(1 << 16)
        sock.sendall(alert)

    with listening(refuse) as port, pytest.raises(TransportError, match="begins with https://"):
        client.ask_url(f"http://127.0.0.1:{port}", permute, retries=0)


def test_plain_http_to_a_port_of_openssl_says_so(client: Flavour, tls: ssl.SSLContext) -> None:
    with ScriptedServer(well, tls=tls) as server:
        with pytest.raises(TransportError, match="begins with https://"):
            client.ask_url(f"http://127.0.0.1:{server.port}", permute, retries=0)

        assert server.targets == []
