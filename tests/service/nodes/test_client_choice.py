"""The SDK among servers that share a database: where its calls and stored tensors go."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest

from tests.client.flavours import Flavour, flavour_named
from tests.servers import Server
from tests.service.databases import Database, Postgres, new_postgresql
from tests.service.nodes.test_nodes import killed, node, states
from tests.waiting import until_lasting as until
from warpcall import AsyncClient, Client, InvalidInput, NodeGone, NotFound, TransportError
from warpcall._blocking import run_now

pytestmark = pytest.mark.slow

X = np.arange(6, dtype=np.float32).reshape(2, 3)


@dataclass(frozen=True)
class Three:
    """Three servers on one database."""

    servers: tuple[Server, ...]
    ids: tuple[str, ...]
    database: Database

    def drain(self, node_id: str, drained: bool) -> None:
        """Have a server take no more jobs, or take them again."""
        self.database.sql(f"UPDATE nodes SET drained = {drained} WHERE id = '{node_id}'")

    def calls(self) -> list[float]:
        """The numbers of calls that each server has run."""
        return [calls_of(server) for server in self.servers]


def calls_of(server: Server) -> float:
    text = httpx.get(f"{server.url}/metrics", timeout=30).text
    lines = [line for line in text.splitlines() if line.startswith("warpcall_requests_total{")]
    return sum(float(line.split()[-1]) for line in lines if 'op="permute"' in line)


def is_ready(server: Server) -> bool:
    return httpx.get(f"{server.url}/readyz", timeout=30).status_code == 200


@pytest.fixture(scope="module")
def three(postgres: Postgres, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Three]:
    folder = tmp_path_factory.mktemp("choice")
    database = new_postgresql(postgres, folder)
    with (
        node(database, folder / "a") as a,
        node(database, folder / "b") as b,
        node(database, folder / "c") as c,
    ):
        servers = (a, b, c)
        alive = {server.url: "alive" for server in servers}
        until(lambda: all(states(server) == alive and is_ready(server) for server in servers))
        ids = tuple(httpx.get(f"{s.url}/v1/nodes").json()["node"] for s in servers)
        yield Three(servers, ids, database)


@pytest.fixture(params=["direct-sync", "direct-async"])
def flavour(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Flavour:
    return flavour_named(request.param, monkeypatch)


def permute(gpu: Any) -> Any:
    return gpu.run("permute", x=X, dims=(1, 0))


def spread(gpu: Client) -> None:
    """Call until the client spreads its calls."""
    until(lambda: permute(gpu) is not None and len(gpu._core.targets.candidates) == 3)


def test_calls_are_spread_over_all_servers(three: Three, flavour: Flavour) -> None:
    async def several(gpu: AsyncClient) -> None:
        while len(gpu._core.targets.candidates) < 3:
            await permute(gpu)
        await asyncio.gather(*(permute(gpu) for _ in range(60)))

    before = three.calls()
    if flavour.asynchronous:
        flavour.ask_url(three.servers[0].url, several)
    else:
        with Client(three.servers[0].url) as gpu:
            spread(gpu)
            for _ in range(60):
                permute(gpu)

    ran = [after - b for after, b in zip(three.calls(), before, strict=True)]
    assert sum(ran) >= 60
    assert min(ran) >= 5, "60 calls, each to a random one of three"


def test_what_a_client_stores_is_on_one_server_so_that_a_call_can_use_all_of_it(
    three: Three,
) -> None:
    with Client(three.servers[0].url) as gpu:
        first = gpu.put(X)  # before the client knows the other servers
        spread(gpu)
        stored = [
            first,
            *(gpu.put(X) for _ in range(8)),
            *(gpu.stored.permute(X.T.copy(), dims=(1, 0)) for _ in range(8)),
        ]
        added = [gpu.transpose_add(one, X.T.copy()) for one in stored]
        together = gpu.transpose_add(gpu.stored.permute(first, dims=(1, 0)), stored[-1])
        owners = {one.id[-16:] for one in stored}
        for one in gpu.tensors():
            one.delete()

    assert len(owners) == 1
    np.testing.assert_array_equal(together, 2 * X)
    np.testing.assert_array_equal(added[-1], 2 * X.T)


def test_stored_tensors_are_used_where_they_are(three: Three) -> None:
    with Client(three.servers[0].url) as gpu:
        spread(gpu)
        stored = []
        for owner in three.ids * 2:
            gpu._core.targets.store = owner
            stored.append(gpu.put(X))
        sums = [gpu.transpose_add(one, X.T.copy()) for one in stored]
        programs = []
        for one in stored:
            p = gpu.program()
            programs.append(p.run(y=p.permute(one, dims=(1, 0))).outputs["y"])
        answers = [one.get() for one in stored]
        listed = {one.id for one in gpu.tensors()}
        owners = {one.id[-16:]: one for one in stored}
        a, b, _ = owners.values()
        with pytest.raises(InvalidInput, match=f"must be on one server, got .*{a.id[-16:]}"):
            gpu.transpose_add(a, b)
        for one in stored:
            one.delete()
        left = {one.id for one in gpu.tensors()} & listed

    assert set(owners) == set(three.ids)
    for answer, added, turned in zip(answers, sums, programs, strict=True):
        np.testing.assert_array_equal(answer, X)
        np.testing.assert_array_equal(added, X.T + X.T)
        np.testing.assert_array_equal(turned, X.T)
    assert {one.id for one in stored} <= listed
    assert not left


def test_a_tensor_of_another_server_is_followed_to_it_with_the_body(
    three: Three, flavour: Flavour
) -> None:
    with Client(three.servers[0].url) as gpu:
        stored = gpu.put(X)  # the list of servers is not read yet, so this server has it

    def call(gpu: Any) -> Any:
        return gpu.transpose_add(stored, X.T.copy())

    fetched, added = flavour.ask_url(three.servers[1].url, fetch_of(stored), call)

    assert stored.id.endswith(three.ids[0])
    np.testing.assert_array_equal(fetched, X)
    np.testing.assert_array_equal(added, X.T + X.T)


def fetch_of(stored: Any) -> Any:
    """A question that fetches a stored tensor through any client."""

    def ask(gpu: Any) -> Any:
        got = gpu._core.fetch(stored.id, stored._kind)
        return got if isinstance(gpu, AsyncClient) else run_now(got)

    return ask


def test_a_drained_server_gets_no_calls(three: Three) -> None:
    drained = three.servers[2]
    with Client(three.servers[0].url) as gpu:
        spread(gpu)
        three.drain(three.ids[2], True)
        until(lambda: permute(gpu) is not None and len(gpu._core.targets.candidates) == 2)
        before = calls_of(drained)
        for _ in range(30):
            permute(gpu)
        after = calls_of(drained)
        three.drain(three.ids[2], False)
        spread(gpu)

    assert after == before


def test_when_servers_die_their_calls_are_repeated_elsewhere(
    postgres: Postgres, tmp_path: Path, flavour: Flavour
) -> None:
    """The server that the client was given dies, too. Nothing that is asked of it is lost."""
    database = new_postgresql(postgres, tmp_path)
    with (
        node(database, tmp_path / "b") as b,
        killed(),
        node(database, tmp_path / "a") as a,
    ):
        until(lambda: states(a) == states(b) == {a.url: "alive", b.url: "alive"})
        until(lambda: is_ready(b))
        id_of_a = httpx.get(f"{a.url}/v1/nodes").json()["node"]
        with Client(a.url) as gpu:
            stored = gpu.put(X)
            until(lambda: permute(gpu) is not None and len(gpu._core.targets.candidates) == 2)
            os.kill(a.process.pid, signal.SIGKILL)
            answers = [permute(gpu) for _ in range(20)]
            jobs = gpu.jobs.list()
            with pytest.raises(NodeGone, match=f"server {id_of_a} on .*, which is gone since"):
                stored.get()
            asked = sum(
                f"/v1/tensors/{stored.id}" in line for line in b.log.read_text().splitlines()
            )

        with Client([a.url, b.url]) as gpu:  # the first of them is dead from the beginning
            answers += [permute(gpu) for _ in range(3)]

    assert stored.id.endswith(id_of_a)
    assert 0 < asked < 100, "while the lost server is listed, the other one is asked after pauses"
    assert jobs == []
    for answer in answers:
        np.testing.assert_array_equal(answer, X.T)


def test_a_client_without_retries_tries_no_other_server(three: Three) -> None:
    with (
        Client(["http://127.0.0.1:9", three.servers[1].url], retries=0) as gpu,
        pytest.raises(TransportError, match="cannot reach"),
    ):
        permute(gpu)


def test_a_tensor_that_is_not_there_is_not_found_anywhere(three: Three) -> None:
    with Client(three.servers[0].url) as gpu:
        spread(gpu)
        stored = gpu.put(X)
        stored.delete()
        with pytest.raises(NotFound):
            stored.get()
