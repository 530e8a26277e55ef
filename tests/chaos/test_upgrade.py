"""Real servers of an earlier release go on while a new one updates their database, then leave.

    WARPCALL_TEST_BEFORE=HEAD~20 .venv/bin/pytest -n0 tests/chaos/test_upgrade.py

The variable is a commit with an earlier schema; `migration` means the one before the newest file in
migrations/. While there is one file only, no server has an earlier schema, and the test is skipped.
Without the variable it is skipped, too: it takes half a minute. tests/service/store/test_upgrade.py
is always run.
"""

from __future__ import annotations

import io
import os
import signal
import subprocess
import tarfile
from collections.abc import Iterator
from contextlib import ExitStack
from functools import partial
from pathlib import Path

import numpy as np
import pytest

from tests.servers import Server
from tests.service.databases import REVISION, Postgres, new_postgresql, postgres_cluster
from tests.service.job_requests import client, ended, reached, submit
from tests.service.jobs.test_two_servers import WAITS, beside, measured_once, states
from tests.service.nodes.test_nodes import states as nodes_of
from tests.template import BRIEF_JOBS, ROOT
from tests.waiting import until
from warpcall import Client
from warpcall_service.store.database import REVISIONS

BEFORE = os.environ.get("WARPCALL_TEST_BEFORE", "")
PARTS = ("client", "kernels", "service")


@pytest.fixture
def postgres() -> Iterator[Postgres]:
    with postgres_cluster() as running:
        yield running


@pytest.fixture
def before(tmp_path: Path) -> dict[str, str]:
    """Variables of a server of the earlier release."""
    commit, folder = BEFORE, tmp_path / "before"
    if BEFORE == "migration":
        *earlier, newest = sorted(REVISIONS.glob("v*.py"))
        if not earlier:
            pytest.skip("there is one schema only")
        found = _git("log", "-1", "--format=%H", "--diff-filter=A", "--", str(newest))
        commit = f"{found.decode().strip()}~"
    packed = _git("archive", commit, *PARTS)
    with tarfile.open(fileobj=io.BytesIO(packed)) as archive:
        archive.extractall(folder, filter="data")
    path = [BRIEF_JOBS, *(str(folder / part) for part in PARTS), ROOT]
    return {"PYTHONPATH": os.pathsep.join(path)}


def knows_three(server: Server) -> bool:
    return [*nodes_of(server).values()] == ["alive"] * 3


def _git(*words: str) -> bytes:
    return subprocess.run(["git", "-C", ROOT, *words], check=True, stdout=subprocess.PIPE).stdout


@pytest.mark.skipif(not BEFORE, reason="WARPCALL_TEST_BEFORE is not set")
@pytest.mark.timeout(600)
def test_servers_of_the_earlier_release_serve_until_they_are_drained(
    postgres: Postgres, before: dict[str, str], tmp_path: Path
) -> None:
    database = new_postgresql(postgres, tmp_path)
    store = database.store()
    with ExitStack() as stack:
        stack.callback(store.close)
        old = stack.enter_context(beside(database, tmp_path / "a", **before))
        first = stack.enter_context(client(old))
        waiting = submit(first, **WAITS)
        reached(first, waiting, lambda found: found["cases_done"] == 1)
        olds = [old, stack.enter_context(beside(database, tmp_path / "b", **before))]
        second = stack.enter_context(client(olds[1]))
        ids = [http.get("/v1/nodes").json()["node"] for http in (first, second)]
        was = store.revision()

        new = stack.enter_context(beside(database, tmp_path / "c"))
        third = stack.enter_context(client(new))
        own = third.get("/v1/nodes").json()["node"]
        now = store.revision()
        for server in (*olds, new):
            until(partial(knows_three, server))
            with Client(server.url) as gpu:
                assert gpu.permute(np.ones((1, 2)), dims=(1, 0)).shape == (2, 1)
        done = [
            ended(third, submit(http, fresh=True, node=node))
            for http in (first, second, third)
            for node in (ids[1], own)
        ]
        with pytest.raises(RuntimeError, match="a newer server has updated it"):
            stack.enter_context(beside(database, tmp_path / "d", **before))

        for node in ids:
            database.command("drain", node)
        until(lambda: sorted(nodes_of(new).values()) == ["alive", "draining", "draining"])
        done.append(ended(second, submit(second, fresh=True)))
        for old in olds:
            old.process.send_signal(signal.SIGTERM)
        for old in olds:
            assert old.process.wait(60) == 0
        (tmp_path / "continue_file").touch()
        continued = ended(third, waiting)
        once, seen = measured_once(third, continued), states(third, continued)
        found = sorted(nodes_of(new).values())

    assert was is not None
    assert was < REVISION == now
    assert [job["state"] for job in [*done, continued]] == ["succeeded"] * 8
    assert (once, seen.count("interrupted"), continued["attempts"]) == (True, 1, 1)
    assert found == ["alive", "stopped", "stopped"]
