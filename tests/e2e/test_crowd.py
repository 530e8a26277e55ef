"""A thousand bad clients at once: a good one gets its answers, and nothing stays when they leave."""

from __future__ import annotations

import resource
import subprocess
import sys

import psutil
import pytest

from bench.crowd import crowd
from bench.descriptors import held
from demo.steps import steps
from tests.e2e.test_survives import metric, until
from tests.servers import running_server
from warpcall import Client

CONNECTIONS = 1000


@pytest.mark.slow
def test_a_good_client_is_served_beside_a_crowd_that_leaves_nothing() -> None:
    with (
        running_server({"WARPCALL_ARENA_BYTES": "256MiB"}) as server,
        Client(server.url, retries=0, progress=False) as client,
    ):
        http = psutil.Process(server.process.pid)
        for step in steps():
            assert not step.wrong(client.call(step.op, step.inputs, step.params).outputs)
        descriptors = held(http.pid)

        with crowd(server.port, CONNECTIONS):
            wrong = [
                step.wrong(client.call(step.op, step.inputs, step.params).outputs)
                for _ in range(10)
                for step in steps()
            ]
            at_once = held(http.pid).total() - descriptors.total()

        assert not any(wrong)
        assert at_once > CONNECTIONS / 2  # those who broke off come and go
        until(lambda: metric(server, "warpcall_lane_arena_used") == 0)
        until(lambda: held(http.pid) <= descriptors)


def test_the_server_allows_itself_more_descriptors_than_it_was_started_with() -> None:
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    program = (
        "import resource; resource.setrlimit(resource.RLIMIT_NOFILE, (256, resource.RLIM_INFINITY"
        f" if {hard} < 0 else {hard}));"
        "from warpcall_service.http.listen import allow_connections; allow_connections();"
        "print(resource.getrlimit(resource.RLIMIT_NOFILE)[0])"
    )

    done = subprocess.run(
        [sys.executable, "-c", program], check=True, capture_output=True, text=True
    )

    assert int(done.stdout) > 256
