"""The list of servers in the SDK and on the command line, from a real server that follows a script."""

from __future__ import annotations

import json
import re
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from tests.client.command import Command
from tests.client.flavours import Flavour
from tests.client.scripted import ScriptedServer
from tests.client.test_jobs import answers
from warpcall import TransportError

LANE = {
    "name": "cuda:0",
    "state": "ready",
    "model": "NVIDIA H200",
    "driver": "1",
    "environment": "e",
}
AGO = (datetime.now(UTC) - timedelta(hours=2)).isoformat()
NODE: dict[str, Any] = {
    "id": "0123456789abcdef", "url": "http://gpu-1:8000", "host": "gpu-1", "state": "alive",
    "started_at": AGO, "beat_at": AGO, "gone_since": None, "version": "1.0",
    "versions": {"torch": "2.11", "cuda": None}, "ops_sha256": None, "lanes": [LANE],
}  # fmt: skip
STARTING = {**LANE, "name": "cuda:1", "state": "starting", "model": None}
GONE = {**NODE, "id": "f" * 16, "state": "gone", "gone_since": AGO, "lanes": [LANE, STARTING]}
NODES = {"node": NODE["id"], "read_s_ago": 0.5, "nodes": [NODE, GONE], "new": 1}


def test_the_nodes_have_their_types(flavour: Flavour) -> None:
    with ScriptedServer(answers(NODES)) as server:
        (found,) = flavour.ask(server, lambda gpu: gpu.nodes())

    alive, gone = found.nodes
    assert (found.node, alive.host, alive.lanes[0].model) == (alive.id, "gpu-1", "NVIDIA H200")
    assert (gone.state, gone.gone_since, gone.lanes[1].model) == ("gone", AGO, None)


def test_an_answer_that_is_no_list_of_nodes_is_refused(direct: Flavour) -> None:
    wrong = {**NODES, "nodes": [{**NODE, "lanes": [{}]}]}

    with (
        ScriptedServer(answers(wrong)) as server,
        pytest.raises(TransportError, match=r"nodes\[0\].lanes\[0\] must have 'name'"),
    ):
        direct.ask(server, lambda gpu: gpu.nodes())


def command(
    payload: object,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    *flags: str,
) -> str:
    """What `warpcall nodes` prints for an answer."""
    monkeypatch.setenv("COLUMNS", "200")
    with ScriptedServer(answers(payload)) as server:
        result = Command(server, monkeypatch, capsys)("nodes", *flags)  # type: ignore[arg-type]
    assert (result.code, result.err) == (0, "")
    return result.out


def test_the_command_prints_a_line_for_each_node(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    head, alive, gone = command(NODES, monkeypatch, capsys).splitlines()

    assert head.split() == ["node", "host", "state", "devices", "version", "url"]
    assert alive.split()[:3] == [NODE["id"], "gpu-1", "alive"]
    assert "cuda:0: NVIDIA H200" in alive
    assert re.search(
        r" gone 2\.\d h ago ", gone
    )  # the answer was made when the tests were collected
    assert "cuda:1: no device yet (starting)" in gone


def test_the_command_says_that_the_list_is_old(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    said = command({**NODES, "read_s_ago": 42.0}, monkeypatch, capsys)

    assert said.splitlines()[-1] == "this is 42 s old: the database does not answer"


def test_the_command_prints_json(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    printed = json.loads(command(NODES, monkeypatch, capsys, "--json"))

    assert printed == {k: v for k, v in NODES.items() if k != "new"}
