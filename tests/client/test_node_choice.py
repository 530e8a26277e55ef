"""Which addresses a client sends requests and its key to, from servers that follow scripts."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.client.flavours import Flavour
from tests.client.scripted import OUT, ScriptedServer, Visit, permute, well
from tests.client.test_nodes import NODE
from tests.waiting import until
from warpcall import Client, InvalidInput, OnOtherNode
from warpcall._config import configure, configure_node, configure_one

IDS = ("a" * 16, "b" * 16)
KEY = "wc_secret"


class Cluster:
    """Two scripted servers that list each other. Every request is kept with its key."""

    def __init__(self, **changed: Any) -> None:
        self.seen: list[tuple[int, str, str | None]] = []
        self.changed = changed  # members of the second server's entry in the list
        self.second_id = IDS[1]  # under which the second server answers
        self.servers = [ScriptedServer(self._script(i)) for i in (0, 1)]

    def _script(self, i: int) -> Any:
        def answer(visit: Visit) -> None:
            self.seen.append((i, visit.target, visit.headers.get("authorization")))
            fields = {"X-Warpcall-Node": (IDS[0], self.second_id)[i]}
            visit.body()
            if visit.target.startswith("/v1/kernels"):
                visit.answer(200, OUT, fields)
            elif visit.target == "/v1/nodes":
                visit.answer(200, json.dumps(self.nodes()).encode(), fields)
            else:
                visit.answer(200, b"{}", {**fields, "Content-Type": "application/json"})

        return answer

    def nodes(self) -> dict[str, Any]:
        entries = [
            {**NODE, "id": id_, "url": server.url}
            for id_, server in zip(IDS, self.servers, strict=True)
        ]
        entries[1] |= self.changed
        return {"node": IDS[0], "read_s_ago": 0.0, "nodes": entries}

    def of(self, i: int, path: str = "") -> list[tuple[str, str | None]]:
        """The requests that a server got, with their keys."""
        return [(target, key) for at, target, key in self.seen if at == i and path in target]


def reads(gpu: Client, count: int) -> None:
    """Call until the list of servers has been read so often."""
    gpu._core._reader._due = 0.0
    until(lambda: permute(gpu) is not None and gpu._core._reader.reads >= count)


def test_a_server_that_shares_nothing_is_asked_for_nothing_else(flavour: Flavour) -> None:
    with ScriptedServer(well) as server:
        flavour.ask(server, *[permute] * 20)

    assert len(server.targets) == 20


def test_a_listed_server_gets_calls_after_a_probe_without_the_key() -> None:
    cluster = Cluster()
    with cluster.servers[0] as first, cluster.servers[1], Client(first.url, api_key=KEY) as gpu:
        reads(gpu, 1)
        for _ in range(30):
            permute(gpu)

    probe, *calls = cluster.of(1)
    assert probe == ("/readyz", None)
    assert calls
    assert {key for _, key in calls} == {f"Bearer {KEY}"}


@pytest.mark.parametrize(
    "changed",
    [
        {"state": "draining"},
        {"state": "gone", "gone_since": NODE["beat_at"]},
        {"url": "http://gpu.example.com:8000"},  # a key would be readable on the way
        {"url": "unix:///run/other.sock"},
        {"url": "ftp://127.0.0.1"},
    ],
)
def test_some_listed_servers_get_no_calls(changed: dict[str, Any]) -> None:
    cluster = Cluster(**changed)
    with cluster.servers[0] as first, cluster.servers[1], Client(first.url, api_key=KEY) as gpu:
        reads(gpu, 1)
        for _ in range(20):
            permute(gpu)

    assert [path for path, _ in cluster.of(1)] in ([], ["/readyz"])


def test_a_server_that_answers_under_another_id_gets_neither_calls_nor_the_key() -> None:
    cluster = Cluster()
    cluster.second_id = "c" * 16
    with cluster.servers[0] as first, cluster.servers[1], Client(first.url, api_key=KEY) as gpu:
        reads(gpu, 2)
        for _ in range(20):
            permute(gpu)

    assert set(cluster.of(1)) == {("/readyz", None)}


def test_a_server_that_only_another_one_lists_gets_no_key() -> None:
    """The given server dies. What others list from then on may be new states, not new addresses."""
    cluster = Cluster()
    with (
        cluster.servers[1],
        Client(cluster.servers[0].url, api_key=KEY) as gpu,
        ScriptedServer(well) as third,
    ):
        with cluster.servers[0]:
            reads(gpu, 1)
        named = {**NODE, "id": "d" * 16, "url": third.url}
        nodes = cluster.nodes()
        cluster.nodes = lambda: {**nodes, "nodes": [*nodes["nodes"], named]}  # type: ignore[method-assign]
        reads(gpu, 3)
        until(lambda: permute(gpu) is not None and len(cluster.of(1, "/v1/nodes")) > 0)
        reads(gpu, 5)

    assert third.targets == []


def moved(location: str) -> Any:
    def answer(visit: Visit) -> None:
        visit.body()
        problem = {"type": "urn:warpcall:problem:on-other-node", "detail": "it is elsewhere"}
        fields = {"Location": location, "Content-Type": "application/problem+json"}
        visit.answer(307, json.dumps(problem).encode(), {**fields, "X-Warpcall-Node": IDS[0]})

    return answer


def test_a_redirection_to_a_server_that_is_not_listed_is_not_followed(flavour: Flavour) -> None:
    with ScriptedServer(well) as other:
        script = moved(f"{other.url}/v1/kernels/permute")
        with ScriptedServer(script) as server, pytest.raises(OnOtherNode, match="elsewhere"):
            flavour.ask(server, permute, api_key=KEY)

    assert other.targets == []


def test_a_redirection_to_another_path_of_a_listed_server_is_not_followed() -> None:
    cluster = Cluster()
    with cluster.servers[0] as first, cluster.servers[1] as second, Client(first.url) as gpu:
        reads(gpu, 1)
        location = f"{second.url}/v1/other"

        assert gpu._core.targets.at_location(location, "/v1/kernels/permute") is None
        assert gpu._core.targets.at_location(location, "/v1/other") is not None


@pytest.mark.parametrize(
    ("given", "listed", "used"),
    [
        ("http://10.0.0.1:8000", "http://10.0.0.2:8000", True),
        ("http://10.0.0.1:8000", "https://gpu-2.example:8443/lab", True),
        ("http://10.0.0.1:8000", "http://127.0.0.1:8000", False),
        ("http://10.0.0.1:8000", "http://localhost:8000", False),
        ("http://127.0.0.1:8000", "http://127.0.0.1:8001", True),
        ("unix:///run/warpcall.sock", "http://127.0.0.1:8001", True),
        ("https://gpu.example", "http://10.0.0.2:8000", False),
        ("https://gpu.example", "https://10.0.0.2:8000", True),
        ("http://10.0.0.1:8000", "http://gpu-2.example:8000", False),
        ("http://10.0.0.1:8000", "http://user@10.0.0.2:8000", False),
        ("http://10.0.0.1:8000", "http://10.0.0.2:8000\r\nX: y", False),
    ],
)
def test_the_rules_for_addresses_that_a_server_lists(given: str, listed: str, used: bool) -> None:
    assert (configure_node(configure_one(given, KEY), listed) is not None) == used


def test_a_listed_address_never_gets_the_key_of_the_environment(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    given = configure_one("http://10.0.0.1:8000", None)
    monkeypatch.setenv("WARPCALL_API_KEY", KEY)

    found = configure_node(given, "http://10.0.0.2:8000")

    assert found is not None
    assert found.api_key is None


def test_several_addresses_are_a_list_or_one_text() -> None:
    listed = configure(["http://a:1/", "unix:///run/a,b.sock", "http://a:1"], None)
    written = configure("http://a:1/, unix:///run/a,b.sock", None)

    assert listed == written
    assert [config.url for config in listed] == ["http://a:1", "unix:///run/a,b.sock"]
    with Client("http://a:1,http://b:2") as gpu:
        assert gpu.url == "http://a:1,http://b:2"


@pytest.mark.parametrize(
    "urls", [[], [""], ["http://a", 3], [f"http://a:{port}" for port in range(1, 66)]]
)
def test_lists_that_name_no_servers_are_refused(urls: Any) -> None:
    with pytest.raises(InvalidInput, match="url must name"):
        configure(urls, None)
