"""The server over TLS, with a certificate made for the occasion."""

from __future__ import annotations

import shutil
import socket
import ssl
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import httpx
import numpy as np
import pytest

from demo.server import COMMAND, Server, running_server
from tests.service.databases import Database, environment
from tests.service.requests import well
from warpcall import Client

pytestmark = pytest.mark.skipif(not shutil.which("openssl"), reason="openssl makes the certificate")


@dataclass(frozen=True)
class Pair:
    """A certificate of 127.0.0.1 that nobody else has signed, and its key."""

    certificate: Path
    key: Path


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> Pair:
    folder = tmp_path_factory.mktemp("tls")
    pair = Pair(folder / "certificate.pem", folder / "key.pem")
    subprocess.run(
        [
            *("openssl", "req", "-x509", "-nodes", "-days", "2", "-subj", "/CN=warpcall test"),
            *("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1"),
            *("-addext", "subjectAltName=IP:127.0.0.1"),
            *("-keyout", pair.key, "-out", pair.certificate),
        ],
        check=True,
        capture_output=True,
        timeout=60,
    )
    return pair


@pytest.fixture(scope="module")
def secure(pair: Pair, tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Server, str]]:
    """A server that speaks TLS and asks for keys, and a key."""
    database = Database("sqlite", {"WARPCALL_DATA_DIR": str(tmp_path_factory.mktemp("data"))})
    key = database.key("alice")
    tls = {"WARPCALL_TLS_CERT": str(pair.certificate), "WARPCALL_TLS_KEY": str(pair.key)}
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("SSL_CERT_FILE", str(pair.certificate))
        with running_server({**database.settings, **tls}) as server:
            yield server, key


def test_calls_small_and_large_go_over_tls(secure: tuple[Server, str]) -> None:
    server, key = secure
    assert server.url.startswith("https://")
    x = np.random.default_rng(0).integers(0, 256, (3, 5 << 20), np.uint8)

    with Client(server.url, api_key=key) as gpu:
        for array in (x[:, :7], x, x[:2]):
            np.testing.assert_array_equal(gpu.permute(array, dims=(1, 0)), array.T)


def test_keys_and_problems_are_as_they_are_without(secure: tuple[Server, str], pair: Pair) -> None:
    server, key = secure

    context = ssl.create_default_context(cafile=pair.certificate)
    with httpx.Client(base_url=server.url, verify=context) as http:
        assert http.get("/v1/kernels").status_code == 401
        http.headers["authorization"] = f"Bearer {key}"
        assert well(http).status_code == 200
        assert http.get("/").headers["strict-transport-security"] == "max-age=31536000"


@pytest.mark.parametrize(
    "sends", [b"GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n", b"", b"\x16\x03\x01"]
)
def test_who_does_not_speak_tls_gets_nothing_and_disturbs_nobody(
    secure: tuple[Server, str], sends: bytes
) -> None:
    server, key = secure
    with socket.create_connection(("127.0.0.1", server.port), timeout=10) as sock:
        sock.sendall(sends)
        sock.shutdown(socket.SHUT_WR)

        assert b"HTTP" not in sock.recv(1000)

    with Client(server.url, api_key=key) as gpu:
        assert gpu.health()["status"] == "ready"


def test_a_certificate_without_its_key_stops_the_server(pair: Pair, tmp_path: Path) -> None:
    for settings in (
        {"WARPCALL_TLS_CERT": str(pair.certificate)},
        {"WARPCALL_TLS_CERT": str(pair.key), "WARPCALL_TLS_KEY": str(pair.certificate)},
    ):
        done = subprocess.run(
            COMMAND,
            env=environment({**settings, "WARPCALL_DATA_DIR": str(tmp_path)}),
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )

        assert done.returncode == 2
        assert "WARPCALL_TLS_CERT and WARPCALL_TLS_KEY: " in done.stderr
        assert "Traceback" not in done.stderr
