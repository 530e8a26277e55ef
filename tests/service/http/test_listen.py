"""The Unix socket on which the server listens too."""

from __future__ import annotations

import asyncio
import socket
import stat
from pathlib import Path

import httpx
import numpy as np
import pytest

from demo.server import COMMAND
from tests import forks
from tests.servers import Server, running_server
from tests.service.databases import Database, environment
from tests.service.requests import well
from warpcall import AsyncClient, Client, TransportError, Unauthorized

X = np.random.default_rng(0).integers(0, 256, (3, 5 << 20), np.uint8)


def test_calls_small_and_large_go_through_the_file(server: Server) -> None:
    with Client(f"unix://{server.uds}") as gpu:
        for x in (X[:, :7], X, X[:2]):
            np.testing.assert_array_equal(gpu.permute(x, dims=(1, 0)), x.T)
        assert gpu.health().status == "ready"


def test_many_calls_at_once_go_through_the_file(server: Server) -> None:
    async def run() -> None:
        async with AsyncClient(f"unix://{server.uds}") as gpu:
            parts = [X[:, i : i + 1000 * i] for i in range(1, 17)]
            for part, out in zip(
                parts,
                await asyncio.gather(*(gpu.permute(x, dims=(1, 0)) for x in parts)),
                strict=True,
            ):
                np.testing.assert_array_equal(out, part.T)

    asyncio.run(run())


def test_other_clients_find_http_there(server: Server) -> None:
    transport = httpx.HTTPTransport(uds=str(server.uds))
    with httpx.Client(transport=transport, base_url="http://localhost") as http:
        assert well(http).status_code == 200


def test_owner_and_group_may_connect(server: Server) -> None:
    mode = server.uds.stat().st_mode

    assert stat.S_ISSOCK(mode)
    assert stat.S_IMODE(mode) == 0o660


def test_keys_count_there_too(sqlite: Database) -> None:
    key = sqlite.key("alice")

    with running_server({**sqlite.settings, "WARPCALL_ARENA_BYTES": "64MiB"}) as server:
        url = f"unix://{server.uds}"
        with Client(url) as gpu, pytest.raises(Unauthorized):
            gpu.kernels()
        with Client(url, api_key=key) as gpu:
            np.testing.assert_array_equal(gpu.permute(X[:, :7], dims=(1, 0)), X[:, :7].T)


def test_the_file_of_a_killed_server_is_replaced_and_ours_removed(tmp_path: Path) -> None:
    path = tmp_path / "warpcall.sock"
    with socket.socket(socket.AF_UNIX) as left:
        left.bind(str(path))

    with running_server({"WARPCALL_UDS": str(path), "WARPCALL_ARENA_BYTES": "64MiB"}):
        with Client(f"unix://{path}") as gpu:
            assert gpu.health().status == "ready"
        assert f"cannot listen on {path}: Address already in use" in _refused(path, tmp_path)
        assert path.exists()

    assert not path.exists()


def test_a_file_that_is_no_socket_is_left_alone(tmp_path: Path) -> None:
    path = tmp_path / "notes.txt"
    path.write_text("mine")

    assert f"cannot listen on {path}: Address already in use" in _refused(path, tmp_path)
    assert path.read_text() == "mine"


@pytest.mark.parametrize("name", ["missing/warpcall.sock", "x" * 200])
def test_an_impossible_path_is_an_error_that_names_the_setting(tmp_path: Path, name: str) -> None:
    assert "WARPCALL_UDS: cannot listen" in _refused(tmp_path / name, tmp_path)


def test_a_client_gets_an_error_if_nobody_listens(tmp_path: Path) -> None:
    path = tmp_path / "nobody.sock"

    missing = f"cannot reach {path}: No such file"
    with Client(f"unix://{path}", retries=0) as gpu, pytest.raises(TransportError, match=missing):
        gpu.health()


def _refused(path: Path, data: Path) -> str:
    """The message of a server that cannot listen on this path."""
    settings = {"WARPCALL_UDS": str(path), "WARPCALL_PORT": "0", "WARPCALL_DATA_DIR": str(data)}
    done = forks.run(COMMAND, environment(settings))
    assert done.returncode == 2
    assert "Traceback" not in done.stderr
    return done.stderr
