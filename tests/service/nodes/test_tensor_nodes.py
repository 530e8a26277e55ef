"""Stored tensors of several servers: which server has one, and what the others answer."""

from __future__ import annotations

import json
import os
import secrets
import signal
import socket
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import httpx
import numpy as np
import pytest
from safetensors.numpy import load, save

from tests.servers import Server
from tests.service.databases import Database, Postgres, new_postgresql
from tests.service.nodes.test_nodes import FACTS, killed, node, states
from tests.service.requests import SAFETENSORS, problem_of
from tests.service.stored_tensors import X, get, put
from tests.waiting import until_lasting as until
from warpcall_service.nodes import registry
from warpcall_service.nodes.registry import Beat

pytestmark = pytest.mark.slow

HEADERS = {"content-type": SAFETENSORS, "accept": SAFETENSORS}
ALL = "/v1/tensors"


@dataclass(frozen=True)
class Pair:
    """Two servers on one database, a client of each, and the id of the first one."""

    database: Database
    a: Server
    b: Server
    at_a: httpx.Client
    at_b: httpx.Client
    id: str


@pytest.fixture(scope="module")
def pair(postgres: Postgres, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pair]:
    folder = tmp_path_factory.mktemp("nodes")
    database = new_postgresql(postgres, folder)
    with (
        node(database, folder / "a") as a,
        node(database, folder / "b") as b,
        httpx.Client(base_url=a.url, timeout=30) as at_a,
        httpx.Client(base_url=b.url, timeout=30) as at_b,
    ):
        until(lambda: states(a) == states(b) == {a.url: "alive", b.url: "alive"})
        yield Pair(database, a, b, at_a, at_b, at_a.get("/v1/nodes").json()["node"])


def test_the_id_of_a_tensor_names_its_server_and_the_plain_id_works_there(pair: Pair) -> None:
    stored = put(pair.at_a, "photo").json()["stored"]["x"]["id"]

    assert stored == f"photo.{pair.id}"
    assert [tensor["id"] for tensor in pair.at_a.get(ALL).json()["tensors"]] == [stored]
    np.testing.assert_array_equal(get(pair.at_a, stored), X)
    np.testing.assert_array_equal(get(pair.at_a, "photo"), X)
    assert problem_of(pair.at_b.get(f"{ALL}/photo"), 404, "not-found", "photo")
    assert pair.at_a.delete(f"{ALL}/{stored}").json() == {"deleted": 1}


def test_another_server_answers_where_the_tensor_is(pair: Pair) -> None:
    stored = put(pair.at_a, "here").json()["stored"]["x"]["id"]
    target = f"{pair.a.url}{ALL}/{stored}"

    answers = [
        pair.at_b.get(f"{ALL}/{stored}"),
        put(pair.at_b, stored),
        pair.at_b.delete(f"{ALL}/{stored}"),
    ]
    followed = pair.at_b.delete(f"{ALL}/{stored}", follow_redirects=True)

    for answer, field in zip(answers, (stored, "id", "id"), strict=True):
        said = problem_of(answer, 307, "on-other-node", field)
        assert said.endswith(f"at {pair.a.url}")
        assert answer.headers["location"] == target
    assert followed.json() == {"deleted": 1}


@pytest.mark.parametrize("header", ["x-warpcall-tensors: x=", "x-warpcall-store: out="])
def test_the_answer_comes_before_the_body_and_has_the_query(pair: Pair, header: str) -> None:
    head = (
        "POST /v1/kernels/permute?dims=1,0 HTTP/1.1\r\nhost: localhost\r\ncontent-length: 30000000\r\n"
        f"content-type: {SAFETENSORS}\r\n{header}some.{pair.id}\r\n\r\n"
    )
    with socket.create_connection(("127.0.0.1", pair.b.port), timeout=30) as connection:
        connection.sendall(head.encode())
        answer = connection.recv(65536).decode().lower()

    assert answer.startswith("http/1.1 307")
    assert f"location: {pair.a.url}/v1/kernels/permute?dims=1,0\r\n" in answer


def test_curl_follows_with_the_body(pair: Pair, tmp_path: Path) -> None:
    stored = put(pair.at_a, "first").json()["stored"]["x"]["id"]
    body, out = tmp_path / "body", tmp_path / "out"
    addend = np.ones((3, 2), np.float32)
    body.write_bytes(save({"b": addend}))
    command = ["curl", "-sSL", "--data-binary", f"@{body}", "-o", str(out)]
    for name, value in {**HEADERS, "x-warpcall-tensors": f"a={stored}"}.items():
        command += ["-H", f"{name}: {value}"]

    subprocess.run([*command, f"{pair.b.url}/v1/kernels/transpose-add"], check=True, timeout=60)

    np.testing.assert_array_equal(load(out.read_bytes())["out"], X.T + addend)


def test_programs_get_the_address(pair: Pair) -> None:
    stored = put(pair.at_a, "start").json()["stored"]["x"]["id"]
    headers = {**HEADERS, "x-warpcall-tensors": f"x={stored}"}

    program = pair.at_b.post("/v1/programs", headers=headers)

    assert program.headers["location"] == f"{pair.a.url}/v1/programs"


def test_ids_that_cannot_name_a_server_are_refused_or_plain(pair: Pair) -> None:
    said = problem_of(put(pair.at_a, "x" * 48), 422, "invalid-input", "id")
    longest = put(pair.at_a, "x" * 47).json()["stored"]["x"]["id"]
    nobody = put(pair.at_a, f"x.{'0' * 16}").json()["stored"]["x"]["id"]

    assert "at most 47 characters where several servers share a database, got 48" in said
    assert longest == f"{'x' * 47}.{pair.id}"
    assert nobody == f"x.{'0' * 16}.{pair.id}"
    np.testing.assert_array_equal(get(pair.at_a, longest), X)


@pytest.mark.parametrize("method", ["GET", "PUT", "DELETE", "POST"])
def test_a_server_waits_until_it_knows_one_that_has_just_come(pair: Pair, method: str) -> None:
    new, url = secrets.token_hex(8), "http://127.0.0.1:1"
    beat = Beat(new, url, "x", json.dumps(FACTS), draining=False, first=True)
    path, headers = f"{ALL}/some.{new}", HEADERS
    if method == "POST":
        path, headers = "/v1/programs", {**HEADERS, "x-warpcall-tensors": f"x=some.{new}"}
    store = pair.database.store()
    with store.write() as session:
        registry.write_beat(session, beat)
    store.close()

    answer = pair.at_a.request(method, path, headers=headers)

    assert (answer.status_code, answer.headers.get("location")) == (307, url + path), answer.text


def test_an_id_with_a_server_that_never_was_is_not_found(pair: Pair) -> None:
    nobody = f"some.{'0' * 16}"

    answers = [pair.at_a.get(f"{ALL}/{nobody}"), pair.at_a.delete(f"{ALL}/{nobody}")]

    for answer, field in zip(answers, (nobody, "id"), strict=True):
        problem_of(answer, 404, "not-found", field)


def test_a_tensor_of_a_server_that_is_gone_is_gone_since_then(
    pair: Pair, postgres: Postgres, tmp_path: Path
) -> None:
    database = new_postgresql(postgres, tmp_path)
    with (
        node(database, tmp_path / "b") as b,
        httpx.Client(base_url=b.url, timeout=30) as at_b,
        killed(),
        node(database, tmp_path / "a") as a,
        httpx.Client(base_url=a.url, timeout=30) as at_a,
    ):
        until(lambda: states(b) == {a.url: "alive", b.url: "alive"})
        stored = put(at_a, "lost").json()["stored"]["x"]["id"]
        os.kill(a.process.pid, signal.SIGKILL)
        until(lambda: states(b)[a.url] == "gone")
        answer = at_b.get(f"{ALL}/{stored}")
        (gone,) = (n for n in at_b.get("/v1/nodes").json()["nodes"] if n["state"] == "gone")

    said = problem_of(answer, 410, "node-gone", stored)
    assert (
        f"the server {gone['id']} on {gone['host']}, which is gone since {gone['beat_at']}" in said
    )
