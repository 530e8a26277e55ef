"""The machine of a server vanishes while it computes a call, and no packet says so."""

from __future__ import annotations

import itertools
import os
import shutil
import socket
import ssl
import subprocess
import sys
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.chaos.network import needs_networks, network_of
from tests.client.flavours import flavour_named
from tests.client.scripted import ScriptedServer, X, permute, well
from tests.nginx import certificate_in
from tests.template import ROOT

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
SCHEMES = ("http", "https")
CLIENTS = ("direct-sync", "direct-async")
TIMEOUT_S = 90.0  # longer than the system takes to break the connection


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
import os, psutil
from tests.chaos.network import network_of
from tests.forks import start_template
with network_of(1):
    start_template()
(template,) = psutil.Process().children()
print(os.readlink(f"/proc/{template.pid}/ns/net"))
template.kill()  # before it has imported what servers need, which takes seconds of CPU
"""
    printed = subprocess.run(
        [sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, check=True
    ).stdout

    assert printed.strip() == os.readlink("/proc/self/ns/net")  # noqa: PTH115  # it is no path


@pytest.fixture(scope="module")
def answers(tmp_path_factory: pytest.TempPathFactory) -> dict[tuple[str, str], Future[list[Any]]]:
    """The answers by scheme and client, whose machines vanish side by side: each call waits for 14 s."""
    folder = tmp_path_factory.mktemp("vanished")
    schemes = [s for s in SCHEMES if s == "http" or shutil.which("openssl")]
    ways = list(itertools.product(schemes, CLIENTS))
    calls: dict[tuple[str, str], Future[list[Any]]] = {}
    with ExitStack() as stack:
        network = stack.enter_context(network_of(len(ways)))
        monkeypatch = stack.enter_context(pytest.MonkeyPatch.context())
        addresses = [network.address("calls", number) for number in range(len(ways))]
        files: tuple[Path, ...] = ()
        answering = {"http": stack.enter_context(ScriptedServer(well))}
        if "https" in schemes:
            files = certificate_in(folder, *addresses)
            context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
            context.load_cert_chain(*files)
            monkeypatch.setenv("SSL_CERT_FILE", str(files[0]))
            answering["https"] = stack.enter_context(ScriptedServer(well, tls=context))
        threads = stack.enter_context(ThreadPoolExecutor(len(ways)))
        for number, (scheme, client) in enumerate(ways):
            given = files if scheme == "https" else ()
            command = [sys.executable, "-c", SILENT, addresses[number], *map(str, given)]
            silent = stack.enter_context(
                subprocess.Popen(
                    [*network.under(number), *command], stdout=subprocess.PIPE, text=True
                )
            )
            stack.callback(silent.kill)
            assert silent.stdout
            assert silent.stdout.readline() == "listens\n"
            urls = [f"{scheme}://{addresses[number]}:8000", answering[scheme].url]
            ask = flavour_named(client, monkeypatch).ask_url
            calls[scheme, client] = threads.submit(ask, urls, permute, timeout_s=TIMEOUT_S)
            assert silent.stdout.readline() == "called\n"
            network.cut(number, "calls")
        wait(calls.values())
    return calls


@pytest.mark.parametrize("client", CLIENTS)
@pytest.mark.parametrize("scheme", SCHEMES)
def test_a_call_to_a_machine_that_has_vanished_is_repeated_elsewhere(
    scheme: str, client: str, answers: dict[tuple[str, str], Future[list[Any]]]
) -> None:
    if (scheme, client) not in answers:
        pytest.skip("openssl makes the certificate")

    (answer,) = answers[scheme, client].result()

    np.testing.assert_array_equal(answer, X.T)
