"""The list of servers that share a database: who is alive, who has left, and since when."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import threading
from collections.abc import Iterator
from contextlib import closing, contextmanager
from datetime import datetime
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import httpx
import pytest

from tests.servers import Server, running_server
from tests.service.databases import Database, Postgres
from tests.waiting import until_lasting as until
from warpcall import Client
from warpcall_service.nodes import registry
from warpcall_service.nodes.membership import Membership
from warpcall_service.nodes.registry import Beat
from warpcall_service.nodes.server_identity import ServerIdentity
from warpcall_service.nodes.tables import NodeRow
from warpcall_service.store.database import Store

pytestmark = pytest.mark.slow

CLOCK = Path(__file__).parents[1] / "clock"
DAY_MS = 86_400_000
FACTS: dict[str, Any] = {"version": "0", "versions": {}, "ops_sha256": None, "lanes": []}

only_postgresql = pytest.mark.parametrize("database", ["postgresql"], indirect=True)


@contextmanager
def node(database: Database, folder: Path, **settings: str) -> Iterator[Server]:
    """A server on this database, with a data folder of its own."""
    own = {"WARPCALL_DATA_DIR": str(folder), "WARPCALL_ARENA_BYTES": "16MiB"}
    with running_server({**database.settings, **own, **settings}) as server:
        yield server


@contextmanager
def killed() -> Iterator[None]:
    """Around a server that the test kills."""
    with pytest.raises(RuntimeError, match="ended with status -9"):
        yield


def listed(server: Server) -> dict[str, Any]:
    """The answer of a server."""
    found: dict[str, Any] = httpx.get(f"{server.url}/v1/nodes", timeout=30).json()
    return found


def states(server: Server) -> dict[str, str]:
    """The state of each server by its URL, as `server` lists them."""
    return {found["url"]: found["state"] for found in listed(server)["nodes"]}


def entry(server: Server, url: str) -> dict[str, Any]:
    (found,) = (one for one in listed(server)["nodes"] if one["url"] == url)
    return dict(found)


def rows(database: Database) -> int:
    """The number of servers in the table."""
    store = database.store()
    with store.read() as session:
        found = session.query(NodeRow).count()
    store.close()
    return found


def test_a_server_lists_itself_with_its_devices(database: Database) -> None:
    with node(database, Path(database.settings["WARPCALL_DATA_DIR"])) as server:
        until(lambda: httpx.get(f"{server.url}/readyz").status_code == 200)
        found = listed(server)
        lanes = httpx.get(f"{server.url}/readyz").json()["lanes"]
        metrics = httpx.get(f"{server.url}/metrics").text
        if database.kind == "postgresql":
            until(lambda: rows(database) == 1)
        else:  # it would write each second
            assert (rows(database), found["read_s_ago"]) == (0, 0.0)

    (own,) = found["nodes"]
    assert (found["node"], own["url"], own["state"]) == (own["id"], server.url, "alive")
    assert [lane["name"] for lane in own["lanes"]] == [lane["name"] for lane in lanes]
    assert own["lanes"][0]["state"] == "ready"
    assert own["lanes"][0]["model"] in own["lanes"][0]["environment"]
    assert len(own["ops_sha256"]) == 64
    assert own["gone_since"] is None
    assert 'warpcall_nodes{state="alive"} 1.0' in metrics


LOCKED_UNTIL_ONE_WAITS = (
    "SET LOCAL statement_timeout = 60000",
    "LOCK TABLE nodes IN EXCLUSIVE MODE",
    """DO $$ BEGIN
        WHILE NOT EXISTS (SELECT 1 FROM pg_locks WHERE NOT granted) LOOP
            PERFORM pg_sleep(0.05);
        END LOOP;
        PERFORM pg_sleep(1.5);
    END $$""",
)


@only_postgresql
def test_a_server_is_in_the_database_before_it_says_that_it_listens(
    database: Database, tmp_path: Path
) -> None:
    with closing(database.store()) as store:
        store.migrate()
    locking = threading.Thread(target=database.sql, args=LOCKED_UNTIL_ONE_WAITS)
    locking.start()

    with node(database, tmp_path / "a"):
        found = rows(database)

    locking.join()
    assert found == 1


@only_postgresql
def test_servers_see_each_other_come_die_return_and_stop(
    database: Database, tmp_path: Path
) -> None:
    with node(database, tmp_path / "a") as a:
        with killed(), node(database, tmp_path / "b") as b:
            both = {a.url: "alive", b.url: "alive"}
            until(lambda: states(a) == states(b) == both)
            first = entry(a, b.url)
            os.kill(b.process.pid, signal.SIGKILL)
            until(lambda: states(a)[b.url] == "gone")
            gone = entry(a, b.url)
        with node(database, tmp_path / "b") as b, Client(a.url) as gpu:
            until(lambda: states(a).get(b.url) == "alive")
            again = entry(a, b.url)
            seen = {found.url: found.state for found in gpu.nodes().nodes}
        until(lambda: states(a)[b.url] == "stopped")
        stopped = entry(a, b.url)

    assert gone["id"] == first["id"] == again["id"] == stopped["id"]
    assert gone["gone_since"] == gone["beat_at"] >= first["beat_at"]
    assert again["gone_since"] is None
    assert again["started_at"] > gone["gone_since"]
    assert seen == {a.url: "alive", b.url: "alive"}
    assert stopped["gone_since"] >= stopped["beat_at"]


@only_postgresql
def test_the_clocks_of_machines_do_not_decide_who_is_gone(
    database: Database, tmp_path: Path
) -> None:
    ahead, behind = tmp_path / "ahead", tmp_path / "behind"
    ahead.write_text("86400")
    behind.write_text("-86400")
    path = {"PYTHONPATH": f"{CLOCK}{os.pathsep}{Path(__file__).parents[3]}"}
    with (
        node(database, tmp_path / "a", CLOCK=str(ahead), **path) as a,
        killed(),
        node(database, tmp_path / "b", CLOCK=str(behind), **path) as b,
    ):
        until(lambda: states(a) == states(b) == {a.url: "alive", b.url: "alive"})
        beats = [datetime.fromisoformat(entry(a, one.url)["beat_at"]) for one in (a, b)]
        os.kill(b.process.pid, signal.SIGKILL)
        until(lambda: states(a)[b.url] == "gone")

    assert abs((beats[0] - beats[1]).total_seconds()) < 3600


@only_postgresql
def test_while_the_database_hangs_the_list_stays_and_says_how_old_it_is(
    database: Database, postgres: Postgres, tmp_path: Path
) -> None:
    with node(database, tmp_path / "a") as a, node(database, tmp_path / "b") as b:
        until(lambda: len(states(a)) == 2)
        with postgres.frozen():
            until(lambda: listed(a)["read_s_ago"] > 6)
            seen = states(a)
        until(lambda: listed(a)["read_s_ago"] < 3)

        assert seen == {a.url: "alive", b.url: "alive"}


@only_postgresql
def test_two_servers_on_one_data_folder_have_two_ids_and_the_addresses_they_are_given(
    database: Database, tmp_path: Path
) -> None:
    url = "https://gpu-1.example:8443/lab"
    with (
        node(database, tmp_path / "a") as a,
        node(database, tmp_path / "a", WARPCALL_ADVERTISED_URL=url) as b,
    ):
        until(lambda: states(a) == {a.url: "alive", url: "alive"})

        assert listed(a)["node"] != listed(b)["node"]


def beat(store: Store, node_id: str, *, first: bool = False) -> dict[str, NodeRow]:
    """Write a heartbeat, and return the rows by id."""
    with store.write() as session:
        rows = registry.write_beat(
            session, Beat(node_id, "http://x", "x", json.dumps(FACTS), draining=False, first=first)
        )[1]
    return {row.id: row for row in rows}


@only_postgresql
def test_a_heartbeat_in_the_future_becomes_the_present(database: Database, store: Store) -> None:
    beat(store, "a", first=True)
    database.sql(f"UPDATE nodes SET beat_ms = beat_ms + {DAY_MS}")

    found = beat(store, "b", first=True)

    assert abs(found["a"].beat_ms - found["b"].beat_ms) < 60_000


@only_postgresql
def test_only_the_first_request_waits_for_a_server_that_is_not_there(
    database: Database, store: Store, tmp_path: Path
) -> None:
    engine: Any = SimpleNamespace(all_lanes=[])
    own = Membership(engine, store, ServerIdentity(tmp_path), "http://x", lambda: False)
    other = "0" * 16

    async def waits() -> bool:
        asking = asyncio.create_task(own.await_others([other]))
        await asyncio.sleep(0)
        waiting = not asking.done()
        await asking
        return waiting

    async def come_and_go() -> None:
        beat(store, other)
        while own.other(other) is None:
            await asyncio.sleep(0.05)
        database.sql(f"DELETE FROM nodes WHERE id = '{other}'")
        while own.other(other) is not None:
            await asyncio.sleep(0.05)

    async def play() -> list[bool]:
        await own.start()
        found = [await waits(), await waits()]
        await come_and_go()
        found += [await waits(), await waits()]
        await own.stop()
        return found

    assert asyncio.run(play()) == [True, False, True, False]


@only_postgresql
def test_a_row_that_another_server_has_locked_delays_no_heartbeat(
    database: Database, store: Store
) -> None:
    beat(store, "a", first=True)
    database.sql(f"UPDATE nodes SET beat_ms = beat_ms + {DAY_MS}")
    with store.write() as session:
        session.get_one(NodeRow, "a", with_for_update=True)
        found = beat(store, "b", first=True)

    assert found["a"].beat_ms - found["b"].beat_ms > DAY_MS / 2


@only_postgresql
def test_rows_of_servers_that_left_long_ago_are_deleted(database: Database, store: Store) -> None:
    for name in ("a", "b", "c"):
        beat(store, name, first=True)
    database.sql(
        f"UPDATE nodes SET beat_ms = beat_ms - {DAY_MS + 1000} WHERE id = 'a'",
        f"UPDATE nodes SET beat_ms = beat_ms - {DAY_MS - 60_000} WHERE id = 'b'",
    )

    found = beat(store, "c", first=True)

    assert found.keys() == {"b", "c"}
