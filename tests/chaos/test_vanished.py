"""The machine of a server vanishes while it computes a call, and no packet says so."""

from __future__ import annotations

import os
import shutil
import socket
import ssl
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest

from tests.chaos.network import needs_networks, network_of
from tests.client.flavours import Flavour, direct
from tests.client.scripted import ScriptedServer, X, permute, well
from tests.nginx import certificate_in
from tests.template import ROOT

__all__ = ["direct"]

pytestmark = [needs_networks, pytest.mark.slow]

# Reads a request, says so, and answers nothing.
SILENT = """
import socket, ssl, sys, time
listener = socket.create_server((sys.argv[1], 8000))
print("listens", flush=True)
sock, _ = listener.accept()
if sys.argv[2:]:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(*sys.argv[2:])
    sock = context.wrap_socket(sock, server_side=True)
sock.recv(1)
print("called", flush=True)
time.sleep(3600)
"""
TIMEOUT_S = 90.0  # longer than the system takes to break the connection


@pytest.fixture(params=["http", "https"])
def scheme(request: pytest.FixtureRequest) -> str:
    if request.param == "https" and not shutil.which("openssl"):
        pytest.skip("openssl makes the certificate")
    return str(request.param)


def test_a_network_changes_nothing_that_other_processes_of_the_machine_see() -> None:
    with ThreadPoolExecutor(1) as outside:
        before = outside.submit(socket.if_nameindex).result()
        with network_of(1):
            inside, during = socket.if_nameindex(), outside.submit(socket.if_nameindex).result()
    after = socket.if_nameindex()

    assert len(inside) == 1 + 2 + 2  # loopback, bridges, cables
    assert (during, after) == (before, before)


def test_servers_of_later_tests_start_in_the_network_of_the_machine() -> None:
    """They are forks of a process that the first of them starts, which may be inside."""
    program = """
import os, sys
from tests.chaos.network import network_of
from tests.forks import run
show = "import os; print(os.readlink('/proc/self/ns/net'))"
with network_of(1):
    run([sys.executable, "-c", show], {**os.environ})
print(run([sys.executable, "-c", show], {**os.environ}).stdout, end="")
"""
    printed = subprocess.run(
        [sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, check=True
    ).stdout

    assert printed.strip() == os.readlink("/proc/self/ns/net")  # noqa: PTH115  # it is no path


def test_a_call_to_a_machine_that_has_vanished_is_repeated_elsewhere(
    scheme: str, direct: Flavour, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    files: tuple[Path, ...] = ()
    context = None
    with network_of(1) as network, ThreadPoolExecutor(1) as threads:
        address = network.address("calls", 0)
        if scheme == "https":
            files = certificate_in(tmp_path, address)
            context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
            context.load_cert_chain(*files)
            monkeypatch.setenv("SSL_CERT_FILE", str(files[0]))
        command = [*network.under(0), sys.executable, "-c", SILENT, address, *map(str, files)]
        with (
            ScriptedServer(well, tls=context) as answering,
            subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as silent,
        ):
            assert silent.stdout
            assert silent.stdout.readline() == "listens\n"
            urls = [f"{scheme}://{address}:8000", answering.url]
            call = threads.submit(direct.ask_url, urls, permute, timeout_s=TIMEOUT_S)
            assert silent.stdout.readline() == "called\n"
            network.cut(0, "calls")
            try:
                (answer,) = call.result()
            finally:
                silent.kill()

    np.testing.assert_array_equal(answer, X.T)
