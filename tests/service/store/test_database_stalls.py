"""A server whose database stands still or is slow: it serves, is healthy, and ends."""

from __future__ import annotations

import gc
import re
import socket
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import httpx
import psutil
import pytest

from tests.servers import Server, running_server
from tests.service.databases import Database, Postgres
from tests.service.requests import PERMUTE, SAFETENSORS, logged, metrics
from tests.service.stalled import SETTINGS, at_start_of_python, ends, is_healthy, serves
from tests.waiting import until_lasting as until
from warpcall_service.store.database import Store, StoreError

pytestmark = pytest.mark.slow

CROWD = 20
only_postgresql = pytest.mark.parametrize("database", ["postgresql"], indirect=True)

# A call of which only the head has come.
BEGUN = (
    f"POST {PERMUTE}?dims=0 HTTP/1.1\r\nHost: localhost\r\nContent-Type: {SAFETENSORS}\r\n"
    "Content-Length: 1000\r\nAuthorization: Bearer {key}\r\n\r\n"
)
# While the file is there, nothing that SQLite does comes to an end, as on a disk that is stuck.
STUCK_DISK = """
import pathlib, sqlite3, time
flag, connect = pathlib.Path({flag!r}), sqlite3.connect
def stuck(*args, factory=sqlite3.Connection, **options):
    class Connection(factory):
        def cursor(self, *args):
            while flag.exists():
                time.sleep(0.05)
            return super().cursor(*args)
        def close(self):
            while flag.exists():
                time.sleep(0.05)
            super().close()
    return connect(*args, factory=Connection, **options)
sqlite3.connect = stuck
"""


def speak_to(server: Server, key: str) -> httpx.Client:
    headers = {"authorization": f"Bearer {key}"}
    return httpx.Client(base_url=server.url, headers=headers, timeout=60)


def readable(http: httpx.Client) -> bool:
    return metrics(http)['warpcall_database_up{operation="read"}'] == 1


def said(server: Server) -> list[str]:
    return [m for line in logged(server) if "the database" in (m := line.get("message", ""))]


@contextmanager
def locked(database: Database) -> Iterator[None]:
    """Hold a lock that readers of PostgreSQL, and writers of both kinds, wait for."""
    store = database.store()
    with store.write() as session:
        if database.kind == "postgresql":
            session.connection().exec_driver_sql("LOCK TABLE changes, jobs, usage")
        yield
    store.close()


@only_postgresql
def test_a_database_that_stands_still_holds_up_nobody(
    database: Database, postgres: Postgres
) -> None:
    key, other = database.key("alice", "admin"), database.key("bob")
    settings = {**SETTINGS, **database.settings}
    with running_server(settings) as server, speak_to(server, key) as http:
        serves(http)
        process = psutil.Process(server.process.pid)
        before = process.num_threads(), process.num_fds()
        with postgres.frozen():
            serves(http)
            until(lambda: not readable(http))
            assert "cannot be read" in http.get("/readyz").json()["reasons"][0]
            with ThreadPoolExecutor(CROWD) as crowd:
                asked = [crowd.submit(http.get, "/v1/jobs") for _ in range(CROWD)]
                is_healthy(http)
                assert {answer.result().status_code for answer in asked} == {503}
            assert http.get("/v1/jobs").status_code == 503
            serves(http)
            # At most the threads of keys, usage and jobs; for each a connection and what waits for it.
            assert process.num_threads() <= before[0] + 6
            assert process.num_fds() <= before[1] + 12 + CROWD
        until(lambda: readable(http))
        assert http.get("/v1/jobs").status_code == 200
        database.revoke(other)
        with speak_to(server, other) as other_http:
            until(lambda: other_http.get("/v1/kernels").status_code == 401)
        about_reads = [text for text in said(server) if "read" in text]
        # A read that needs a new connection waits for that, and its limit is 5 s, too.
        assert re.search("did not answer within 5 s|connection timeout expired", about_reads[0])
        assert about_reads.count("the database can be read again") == 1

        with postgres.frozen():
            serves(http)
            ends(server)


def test_connections_that_were_not_made_in_time_are_closed_at_once(tmp_path: Path) -> None:
    """At once: the garbage collector may come much later, and each one holds a socket."""
    with socket.create_server(("127.0.0.1", 0)) as silent:
        address = silent.getsockname()
        store = Store(f"postgresql://postgres@127.0.0.1:{address[1]}/x", tmp_path)
        gc.disable()
        try:
            with pytest.raises(StoreError, match="timeout"), store.read():
                pass
            connected = psutil.Process().net_connections("tcp4")
            assert address not in [connection.raddr for connection in connected]
        finally:
            gc.enable()
            store.close()


@only_postgresql
def test_connections_that_stay_silent_are_replaced(database: Database, postgres: Postgres) -> None:
    """As behind a pooler that has lost its back-ends: only new connections are answered."""
    key, other = database.key("alice", "admin"), database.key("bob")
    with (
        running_server({**SETTINGS, **database.settings}) as server,
        speak_to(server, key) as http,
        speak_to(server, other) as other_http,
    ):
        serves(http)
        with postgres.silent(database):
            until(lambda: not readable(http), passes=True)  # until the connections are replaced
            until(lambda: readable(http))
            database.revoke(other)
            until(lambda: other_http.get("/v1/kernels").status_code == 401)
            assert http.get("/v1/jobs").status_code == 200

            ends(server)


@only_postgresql
def test_keys_that_were_not_read_for_too_long_admit_nobody(
    database: Database, postgres: Postgres
) -> None:
    key = database.key("alice", "admin")
    settings = {**SETTINGS, **database.settings, "WARPCALL_KEYS_MAX_AGE_S": "4"}
    with running_server(settings) as server, speak_to(server, key) as http:
        serves(http)
        address = ("127.0.0.1", server.port)
        with postgres.frozen(), socket.create_connection(address, timeout=60) as half:
            half.sendall(BEGUN.format(key=key).encode())
            until(lambda: http.get("/v1/kernels").status_code == 503)

            answer = http.get("/v1/kernels")
            assert "was not read for more than 4 s" in answer.json()["detail"]
            assert answer.headers["retry-after"] == "5"
            assert half.recv(100).startswith(b"HTTP/1.1 503 "), "a request under way ends, too"
            ready = http.get("/readyz")
            assert (ready.status_code, ready.json()["status"]) == (503, "unready")
            assert "was not read" in ready.json()["reasons"][-1]
            assert http.get("/v2/health/ready").status_code == 503
            is_healthy(http)
        until(lambda: http.get("/v1/kernels").status_code == 200)
        serves(http)


def test_a_database_that_is_slow_holds_up_nobody(database: Database) -> None:
    key = database.key("alice", "admin")
    settings = {**SETTINGS, **database.settings}
    with running_server(settings) as server, speak_to(server, key) as http:
        serves(http)
        with locked(database):
            serves(http)
            until(lambda: any("another process has been writing" in text for text in said(server)))
            serves(http)

            ends(server)


def test_a_disk_that_is_stuck_holds_up_nobody(sqlite: Database, tmp_path: Path) -> None:
    key = sqlite.key("alice", "admin")
    flag = tmp_path / "stuck"
    hook = at_start_of_python(tmp_path, STUCK_DISK.format(flag=str(flag)))
    settings = {**SETTINGS, **sqlite.settings, **hook}
    with running_server(settings) as server, speak_to(server, key) as http:
        flag.touch()
        until(lambda: not readable(http))
        serves(http)
        flag.unlink()
        until(lambda: readable(http))
        assert http.get("/v1/jobs").status_code == 200

        flag.touch()
        threads = psutil.Process(server.process.pid).num_threads()
        with ThreadPoolExecutor(CROWD) as crowd:
            asked = [crowd.submit(http.get, "/v1/jobs") for _ in range(CROWD)]
            assert {answer.result().status_code for answer in asked} == {503}
        assert http.get("/v1/jobs").status_code == 503, "at once: no thread is free"
        serves(http)
        assert psutil.Process(server.process.pid).num_threads() <= threads + 6

        ends(server)
