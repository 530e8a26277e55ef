"""TLS for tests: a self-signed certificate, and the clients that trust it."""

from __future__ import annotations

import ssl
import subprocess
from pathlib import Path

import pytest

from tests.client.flavours import Flavour, flavour_named


@pytest.fixture(scope="session")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A file with a key and a self-signed certificate for 127.0.0.1 and gpu-box."""
    folder = tmp_path_factory.mktemp("tls")
    subprocess.run(
        [
            *("openssl", "req", "-x509", "-nodes", "-days", "2", "-subj", "/CN=warpcall test"),
            *("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1"),
            *("-addext", "subjectAltName=IP:127.0.0.1,DNS:gpu-box"),
            *("-keyout", folder / "key.pem", "-out", folder / "certificate.pem"),
        ],
        check=True,
        capture_output=True,
        timeout=60,
    )
    both = folder / "both.pem"
    both.write_text((folder / "key.pem").read_text() + (folder / "certificate.pem").read_text())
    return both


@pytest.fixture
def tls(certificate: Path) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate)
    return context


@pytest.fixture(params=["sync", "async"])
def client(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Flavour:
    return flavour_named(f"direct-{request.param}", monkeypatch)
