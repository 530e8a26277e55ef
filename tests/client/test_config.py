"""The address that a client uses, and the servers to which it sends its key."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import Any

import pytest

from tests.client.scripted import ScriptedServer, Visit, well
from tests.client.scripted_ops import READY
from warpcall import Client, InvalidInput, __version__
from warpcall._config import configure

KEY = "wc-secret"


@pytest.fixture(autouse=True)
def _bare_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    names = ("WARPCALL_URL", "WARPCALL_API_KEY", "HTTP_PROXY", "http_proxy", "NO_PROXY", "no_proxy")
    for name in names:
        monkeypatch.delenv(name, raising=False)


def test_the_default_is_this_machine_without_a_key() -> None:
    (config,) = configure(None, None)

    assert (config.url, config.port, config.api_key) == ("http://127.0.0.1:8000", 8000, None)


def test_url_and_key_come_from_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WARPCALL_URL", "https://gpu.example.com/warp/")
    monkeypatch.setenv("WARPCALL_API_KEY", KEY)

    (config,) = configure(None, None)

    assert (config.url, config.port, config.prefix) == (
        "https://gpu.example.com/warp",
        443,
        "/warp",
    )
    assert config.api_key == KEY
    assert not config.direct


def test_an_argument_goes_before_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WARPCALL_URL", "http://elsewhere:1")
    monkeypatch.setenv("WARPCALL_API_KEY", "other")

    (config,) = configure("http://[::1]:9000", KEY)

    assert (config.host, config.port, config.api_key) == ("::1", 9000, KEY)


@pytest.mark.parametrize(
    "url",
    [
        "http://127.0.0.1:8000",
        "http://localhost",
        "http://[::1]:8000",
        "http://10.1.2.3:8000",
        "http://gpu-box:8000",
        "http://warpcall.gpus.svc:8000",
        "http://warpcall-0.warpcall-nodes.gpus.svc.cluster.local:8000",
        "https://gpu.example.com",
    ],
)
def test_a_key_goes_to_near_servers_and_over_tls(url: str) -> None:
    assert configure(url, KEY)[0].api_key == KEY


@pytest.mark.parametrize(
    "url", ["http://gpu.example.com", "http://svc.example.com", "http://8.8.8.8:8000"]
)
def test_a_key_is_not_shown_to_the_internet(url: str) -> None:
    with pytest.raises(InvalidInput, match="only over https") as caught:
        configure(url, KEY)

    assert KEY not in str(caught.value)


@pytest.mark.parametrize(
    "url",
    [
        "gpu-box:8000",
        "ftp://gpu-box",
        "http://",
        "http://gpu-box:port",
        "http://gpu-box:99999",
        "http://user:password@gpu-box",
        "unix://",
        "http://gpu-box/?a=b",
        "http://gpu box",
        "http://gpu-box\r\nX-Injected: 1",
        "http://gpu-box/a\x01b",
        "http://gpu-box\n",
    ],
)
def test_what_is_no_address_is_refused(url: str) -> None:
    with pytest.raises(InvalidInput, match="url must be like"):
        configure(url, None)


@pytest.mark.parametrize("key", ["a\r\nX-Injected: 1", "ключ", "\x00", " a", "a "])
def test_a_key_that_no_header_holds_is_refused(key: str) -> None:
    with pytest.raises(InvalidInput, match="printable ASCII"):
        configure(None, key)


@pytest.mark.parametrize(
    "options",
    [
        {"timeout_s": 0},
        {"timeout_s": -1},
        {"timeout_s": 5e6},
        {"timeout_s": float("nan")},
        {"retries": -1},
    ],
)
def test_options_that_cannot_be_are_refused_by_name(options: dict[str, Any]) -> None:
    with pytest.raises(InvalidInput) as caught:
        Client(**options)

    assert caught.value.field in options


def test_a_socket_of_this_machine_is_named_by_its_path() -> None:
    (config,) = configure("unix:///run/warp call.sock", KEY)

    assert (config.address, config.api_key, config.direct) == ("/run/warp call.sock", KEY, True)


@pytest.mark.parametrize("url", ["unix://run/warpcall.sock", "unix:///run\0/x"])
def test_a_socket_without_an_absolute_path_is_refused(url: str) -> None:
    with pytest.raises(InvalidInput, match="url must be like unix:///"):
        configure(url, None)


def test_loopback_is_never_reached_through_a_proxy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("http_proxy", "http://proxy:3128")

    assert configure("http://127.0.0.1:8000", None)[0].direct
    assert not configure("http://gpu-box:8000", None)[0].direct


def test_the_key_and_the_prefix_are_on_each_request() -> None:
    seen: list[str] = []

    def ready(visit: Visit) -> None:
        seen.append(visit.headers["authorization"])
        visit.answer(200, json.dumps(READY).encode())

    with ScriptedServer(ready) as server, Client(f"{server.url}/warp", api_key=KEY) as gpu:
        gpu.health()

        assert server.targets == ["/warp/readyz"]
    assert seen == [f"Bearer {KEY}"]
    assert KEY not in repr(gpu)


WITHOUT_TORCH = """
import sys
sys.modules["torch"] = None  # `import torch` now fails
import numpy as np
from warpcall import Client
from warpcall._cli import main as command
from warpcall._transport import httpcore_transport
with Client(sys.argv[1]) as gpu:
    x = np.arange(6, dtype=np.float32).reshape(2, 3)
    np.testing.assert_array_equal(gpu.permute(x, dims=(1, 0)), x.T)
sys.argv = ["warpcall", "--version"]
command.main()
"""


def test_the_client_and_its_command_do_not_need_torch() -> None:
    with ScriptedServer(well) as server:
        done = subprocess.run(
            [sys.executable, "-c", WITHOUT_TORCH, server.url],
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )

    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout == f"warpcall {__version__}\n"


def test_errors_and_wire_load_without_numpy() -> None:
    program = (
        "import sys, warpcall.errors, warpcall.wire\n"
        "assert not {'numpy', 'httptools', 'httpcore', 'asyncio'} & set(sys.modules)\n"
    )

    subprocess.run([sys.executable, "-c", program], check=True, timeout=60)
