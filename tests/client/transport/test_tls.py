"""Calls over TLS, with a self-signed certificate."""

from __future__ import annotations

import shutil
import ssl
from pathlib import Path

import numpy as np
import pytest
import safetensors.numpy

from tests.client.flavours import Flavour
from tests.client.scripted import ScriptedServer, Visit, X, permute, well
from warpcall import TransportError

pytestmark = pytest.mark.skipif(not shutil.which("openssl"), reason="openssl makes the certificate")


def test_bodies_and_the_key_go_over_tls(
    client: Flavour, tls: ssl.SSLContext, certificate: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SSL_CERT_FILE", str(certificate))
    x = np.random.default_rng(0).integers(0, 256, 5 << 20, np.uint8)
    keys: list[str] = []

    def echo(visit: Visit) -> None:
        keys.append(visit.headers["authorization"])
        arrays = safetensors.numpy.load(visit.body())
        visit.answer(200, safetensors.numpy.save({"out": arrays["x"]}))

    with ScriptedServer(echo, well, tls=tls) as server:
        large, small = client.ask(
            server, lambda gpu: gpu.run("permute", x=x, dims=(0,)), permute, api_key="wc-secret"
        )

        assert server.connections == 1
    assert keys == ["Bearer wc-secret"]
    np.testing.assert_array_equal(large, x)
    np.testing.assert_array_equal(small, X.T)


def test_a_certificate_that_nobody_vouches_for_is_refused_and_the_error_says_what_to_set(
    client: Flavour, tls: ssl.SSLContext
) -> None:
    with (
        ScriptedServer(well, tls=tls) as server,
        pytest.raises(TransportError, match=r"self-signed certificate; .* set SSL_CERT_FILE") as e,
    ):
        client.ask(server, permute, retries=0)

    assert f"the certificate of 127.0.0.1:{server.port} is not trusted" in str(e.value)
    assert server.targets == []


def test_a_certificate_for_another_host_is_refused_without_that_advice(
    client: Flavour, tls: ssl.SSLContext, certificate: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SSL_CERT_FILE", str(certificate))
    with (
        ScriptedServer(well, tls=tls) as server,
        pytest.raises(TransportError, match="is not trusted: Hostname mismatch") as caught,
    ):
        client.ask_url(f"https://localhost:{server.port}", permute, retries=0)

    assert "SSL_CERT_FILE" not in str(caught.value)
