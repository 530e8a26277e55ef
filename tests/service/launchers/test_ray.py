"""Servers on a Ray cluster of a head and two nodes, on this machine: `launchers/ray/warpcall_ray.py`."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import psutil
import pytest
import sqlalchemy as sa

from tests import forks
from tests.service.databases import Database, Postgres, environment, new_postgresql
from tests.service.job_requests import (
    BRIEF,
    ended,
    gone_is_gone,
    reached,
    show,
    submit,
)
from tests.service.jobs.test_two_servers import WAITS, measured_once
from tests.waiting import lives, until
from warpcall import Client
from warpcall_service.nodes.tables import NodeRow

cluster_utils = pytest.importorskip("ray.cluster_utils")

NODE = {
    "num_cpus": 2,  # one server each, and room for one of another node
    "object_store_memory": 80 << 20,
    "include_dashboard": False,
    "include_log_monitor": False,
    "no_monitor": True,
}
COMMAND_S = 240.0  # beside other tests; alone some 10
SCRIPT = Path(__file__).parents[3] / "launchers/ray/warpcall_ray.py"
RUN = "import runpy, sys; del sys.argv[0]; runpy.run_path(sys.argv[0], run_name='__main__')"
X = np.arange(6, dtype=np.float32).reshape(2, 3)

pytestmark = [pytest.mark.timeout(550), pytest.mark.slow]


class RayCluster:
    """A Ray cluster, and the servers on it.

    Attributes:
        continue_file: lets jobs go on that wait.
        key: an API key.
    """

    def __init__(self, cluster: Any, database: Database, folder: Path) -> None:
        self.continue_file = folder / "continue_file"
        self.key = database.key("ann", "bench")  # Ray's nodes have this machine's own address
        self._cluster, self._database = cluster, database
        self._settings = {
            **database.settings,
            "WARPCALL_DEVICES": "cpu",
            "WARPCALL_ARENA_BYTES": "16MiB",
            "WARPCALL_JOB_LEASE_S": "3",
            "WARPCALL_JOB_MODULES": "tests.service.misbehaving",
        }

    def ray(self, *words: str, **settings: str) -> subprocess.CompletedProcess[str]:
        """What the command prints, and how it ends."""
        return ray(
            *words, "--address", self._cluster.address, settings={**self._settings, **settings}
        )

    def addresses(self, *words: str) -> dict[str, str]:
        """The addresses that such a command prints, by server."""
        done = self.ray(*words)
        assert done.returncode == 0, done.stderr
        return dict(sorted(line.split(" ", 1) for line in done.stdout.splitlines()))

    def http(self, url: str) -> httpx.Client:
        headers = {"authorization": f"Bearer {self.key}"}
        return httpx.Client(base_url=url, headers=headers, timeout=30)

    def states(self) -> dict[str, str]:
        """The states of all servers that the database knows, by address."""
        with closing(self._database.store()) as store, store.read() as session:
            rows = session.scalars(sa.select(NodeRow)).all()
            return {row.url: "stopped" if row.stopped_ms else "runs" for row in rows}

    def below(self, raylet: psutil.Process) -> list[psutil.Process]:
        """The processes of a node whose raylet is given."""
        with gone_is_gone():
            return [raylet, *raylet.children(recursive=True)]
        return []

    def raylets(self) -> list[psutil.Process]:
        found = []
        for node in self._cluster.worker_nodes:
            with gone_is_gone():
                found.append(psutil.Process(node.all_processes["raylet"][0].process.pid))
        return [process for process in found if lives(process)]

    def raylet_of(self, url: str) -> psutil.Process:
        """The raylet of the node on which the server with this address runs."""
        port = int(url.rpartition(":")[2])
        for raylet in self.raylets():
            for process in self.below(raylet):
                with gone_is_gone():
                    if any(one.laddr.port == port for one in process.net_connections("tcp")):
                        return raylet
        raise AssertionError(f"no process listens on {url}")

    def servers(self) -> list[psutil.Process]:
        """All processes of servers, and of the actors that have started them."""
        found = []
        for process in [one for raylet in self.raylets() for one in self.below(raylet)]:
            with gone_is_gone():
                words = " ".join(process.cmdline())
                if lives(process) and ("warpcall_service" in words or "ServerActor" in words):
                    found.append(process)
        return found


def ray(*words: str, settings: dict[str, str]) -> subprocess.CompletedProcess[str]:
    """The script in a fork of the template, which has imported what it needs except Ray."""
    program = [sys.executable, "-c", RUN, str(SCRIPT), *words]
    return forks.run(program, environment(settings), timeout_s=COMMAND_S)


@pytest.fixture(scope="module")
def cluster(postgres: Postgres, tmp_path_factory: pytest.TempPathFactory) -> Iterator[RayCluster]:
    folder = tmp_path_factory.mktemp("ray")
    variables = {
        "RAY_USAGE_STATS_ENABLED": "0",
        "RAY_memory_monitor_refresh_ms": "0",  # other tests may fill this machine's memory
        "PYTHONPATH": os.pathsep.join([BRIEF["PYTHONPATH"], str(Path(__file__).parents[3])]),
        "CONTINUE_FILE": str(folder / "continue_file"),
    }
    with (
        tempfile.TemporaryDirectory(prefix="warpcall-ray-") as temporary,
        pytest.MonkeyPatch.context() as patch,
    ):
        for name, value in {**variables, "RAY_TMPDIR": temporary}.items():
            patch.setenv(name, value)
        running = cluster_utils.Cluster(
            initialize_head=True, head_node_args={**NODE, "num_cpus": 0}
        )
        try:
            for _ in range(2):
                running.add_node(**NODE)
            yield RayCluster(running, new_postgresql(postgres, folder), folder)
        finally:
            running.shutdown()


def test_a_server_of_a_killed_node_is_placed_again_and_its_job_goes_on(cluster: RayCluster) -> None:
    first = cluster.addresses("up", "--num-servers", "1")
    urls = cluster.addresses("up", "--num-servers", "2")
    assert list(urls) == ["warpcall-0", "warpcall-1"]
    assert {name: urls[name] for name in first} == first
    assert cluster.states() == dict.fromkeys(urls.values(), "runs")
    with Client([*urls.values()], api_key=cluster.key) as gpu:
        np.testing.assert_array_equal(gpu.permute(X, dims=[1, 0]), X.T)
        nodes = {node.id: node.url for node in gpu.nodes().nodes}
    with cluster.http(urls["warpcall-0"]) as http:
        job = reached(http, submit(http, **WAITS), lambda found: found["cases_done"] == 1)
    lost = nodes[job["node"]]
    (name,) = [name for name, url in urls.items() if url == lost]
    (other,) = [url for url in urls.values() if url != lost]

    for process in cluster.below(cluster.raylet_of(lost)):
        with gone_is_gone():
            process.kill()

    until(lambda: len(cluster.raylets()) == 1, "not one of the two nodes is left")

    with Client(other, api_key=cluster.key) as gpu:
        np.testing.assert_array_equal(gpu.permute(X, dims=[1, 0]), X.T)
    until(lambda: set(cluster.states()) - set(urls.values()), timeout_s=COMMAND_S, passes=False)
    # Its first heartbeat comes before it says that it listens.
    until(
        lambda: set(cluster.addresses("status").values()) <= set(cluster.states()),
        timeout_s=COMMAND_S,
        passes=False,
    )
    now = cluster.addresses("status")
    assert now[name] != lost
    with Client(now[name], api_key=cluster.key) as gpu:
        np.testing.assert_array_equal(gpu.permute(X, dims=[1, 0]), X.T)
    cluster.continue_file.touch()
    with cluster.http(now[name]) as http:
        done = ended(http, job)
        assert done["state"] == "succeeded", show(http, done)
        assert measured_once(http, done)

    began = cluster.servers()
    down = cluster.ray("down")

    assert (down.returncode, down.stdout, down.stderr) == (
        0,
        "warpcall-0 stopped\nwarpcall-1 stopped\n",
        "",
    )
    assert len(began) >= 2 * 3, "actors, servers and workers"
    # A process whose parent has ended is no longer below the cluster, and may still be ending.
    until(
        lambda: not cluster.servers() and not any(map(lives, began)),
        "processes are left",
        passes=False,
    )
    states = cluster.states()
    assert {states[url] for url in now.values()} == {"stopped"}


def test_up_says_why_servers_are_not_ready_and_down_removes_them(
    cluster: RayCluster, postgres: Postgres, tmp_path: Path
) -> None:
    without_keys = new_postgresql(postgres, tmp_path).settings

    refused = cluster.ray("up", "--num-servers=1", **without_keys, WARPCALL_REQUIRE_KEYS="true")
    waiting = cluster.ray("up", "--num-servers=2", "--wait=0", WARPCALL_DEVICES="auto")
    down = cluster.ray("down")

    assert (refused.returncode, waiting.returncode, down.returncode) == (1, 1, 0)
    assert "WARPCALL_REQUIRE_KEYS is set and the database has no API key" in refused.stderr
    assert "warpcall-1 waits until Ray has a machine for it" in waiting.stderr, "with a GPU"
    assert down.stdout == "warpcall-0 stopped\nwarpcall-1 killed\n"
    until(lambda: not cluster.servers(), "processes are left", passes=False)


POSTGRES = {"WARPCALL_DATABASE_URL": "postgresql://127.0.0.1:1/none"}


@pytest.mark.parametrize(
    ("settings", "reason"),
    [
        ({}, "WARPCALL_DATABASE_URL must name a PostgreSQL database"),
        ({"WARPCALL_DATABASE_URL": "sqlite:///x"}, "must name a PostgreSQL database, got x"),
        ({**POSTGRES, "WARPCALL_UDS": "/x"}, "WARPCALL_UDS must not be set"),
        ({**POSTGRES, "WARPCALL_SERVERS": "2"}, "WARPCALL_SERVERS must not be set"),
        ({**POSTGRES, "WARPCALL_DEVICES": "cuda:1"}, "must be auto or cpu"),
        ({**POSTGRES, "WARPCALL_PRT": "1"}, "WARPCALL_PRT is no setting"),
    ],
)
def test_up_refuses_settings_that_its_servers_cannot_have(
    settings: dict[str, str], reason: str
) -> None:
    up = ray("up", settings=settings)

    assert up.returncode == 2
    assert reason in up.stderr
    assert "Traceback" not in up.stderr


def test_down_says_that_there_is_no_ray_cluster() -> None:
    down = ray("down", "--address", "nowhere", settings={})

    assert down.returncode == 1
    assert "no Ray cluster at nowhere" in down.stderr
    assert "Traceback" not in down.stderr
