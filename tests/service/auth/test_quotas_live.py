"""Quotas on two servers that share a PostgreSQL: changed while calls and jobs run, device time."""

from __future__ import annotations

import threading
import time
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest
import safetensors.numpy

from tests.servers import running_server
from tests.service.databases import Database
from tests.service.job_requests import BRIEF, JOB, client, ended, reached, show, submit
from tests.service.requests import PERMUTE, SAFETENSORS, problem_of
from tests.waiting import until
from warpcall import Client
from warpcall_service.quotas import DEVICE_S

pytestmark = pytest.mark.slow

BODY = safetensors.numpy.save({"x": np.zeros((32, 32), np.float32)})  # 4 KB
HEADERS = {"content-type": SAFETENSORS, "accept": SAFETENSORS}


def call(http: httpx.Client) -> httpx.Response:
    return http.post(f"{PERMUTE}?dims=1,0", content=BODY, headers=HEADERS)


def limits(http: httpx.Client) -> dict[str, Any]:
    return {one["name"]: one for one in http.get("/v1/me/quotas").json()["quotas"]}


@pytest.mark.parametrize("database", ["postgresql"], indirect=True)
def test_quotas_change_on_two_servers_while_calls_and_jobs_run(
    database: Database, tmp_path: Path
) -> None:
    keys = {name: database.key(name, "bench") for name in ("ann", "bob")}
    root = database.key("root", "admin")
    with ExitStack() as opened:
        servers = [
            opened.enter_context(
                running_server(
                    {
                        **database.settings,
                        **BRIEF,
                        "WARPCALL_DATA_DIR": str(tmp_path / name),
                        "WARPCALL_ARENA_BYTES": "16MiB",
                    }
                )
            )
            for name in ("one", "two")
        ]
        first, second = servers
        admin = opened.enter_context(client(first, root))
        ann, other = (opened.enter_context(client(one, keys["ann"])) for one in servers)
        bob = opened.enter_context(client(second, keys["bob"]))
        path = f"/v1/admin/quotas/user/ann/{DEVICE_S}"

        # Calls that repeat on one connection of the second server, while the first one changes what
        # they may: all are answered, until the limit is below what ann has used.
        with client(second, keys["ann"]) as calls:
            answered, refusals, stop = 0, [], threading.Event()

            def call_on() -> None:
                nonlocal answered
                while not stop.is_set():
                    answer = call(calls)
                    if answer.status_code == 200:
                        answered += 1
                    else:
                        refusals.append(answer)
                        time.sleep(0.02)

            calling = threading.Thread(target=call_on)
            calling.start()
            until(lambda: answered > 50)
            for limit in (1000, 2000, 3000):
                assert admin.put(path, json={"limit": limit}).status_code == 200
                until(lambda limit=limit: limits(other)[DEVICE_S]["limit"] == limit)  # type: ignore[misc]  # a default binds it
            before, refused_before = answered, len(refusals)
            until(lambda: answered > before + 50)
            admin.put(path, json={"limit": 1e-9})
            until(lambda: refusals)
            stopped = answered
            until(lambda: len(refusals) > 10)
            after = answered
            stop.set()
            calling.join(60)
        assert refused_before == 0
        assert after == stopped
        assert f"the quota {DEVICE_S} allows 1e-09" in problem_of(refusals[0], 429, "busy", None)
        assert 0 < int(refusals[0].headers["retry-after"]) <= 86_400

        with Client(first.url, api_key=keys["ann"]) as gpu:
            own = {one.name: one for one in gpu.quotas().quotas}
        assert (own[DEVICE_S].limit, own[DEVICE_S].source) == (1e-9, "user")
        assert (own["user_max_jobs"].limit, own["user_requests_per_s"].used) == (1000, None)

        # The first server learns of what the second one has counted.
        until(lambda: ann.post("/v1/jobs", json=JOB).status_code == 429)
        assert bob.post("/v1/jobs/preview", json=JOB).status_code == 200

        # A repeated call that comes after its user has used up the time is refused, too.
        admin.delete(path)
        admin.put(f"/v1/admin/quotas/user/bob/{DEVICE_S}", json={"limit": 1e-9})
        until(lambda: limits(bob)[DEVICE_S]["limit"] == 1e-9)
        assert [call(bob).status_code for _ in range(3)] == [200, 429, 429]

        # Jobs: one at a time, although two servers could run them. The one that runs is cancelled,
        # and the one that waits runs when its user may use devices again.
        cases = [
            {"shape": [8, n], "dtype": "F32", "params": {"dims": [1, 0]}} for n in range(8, 88)
        ]
        database.command("quotas", "set", "user_running_jobs", "1", "--role", "bench")
        until(lambda: limits(other)["user_running_jobs"]["limit"] == 1)
        before = limits(ann)[DEVICE_S]["used"]
        running = submit(ann, fresh=True, cases=cases)
        reached(ann, running, lambda job: job["state"] == "running")
        waiting = submit(ann, fresh=True)
        admin.put(path, json={"limit": 1e-9})
        until(lambda: limits(other)[DEVICE_S]["limit"] == 1e-9)
        until(lambda: limits(ann)[DEVICE_S]["used"] > before)  # it counts while the job runs
        uses = limits(ann)["user_running_jobs"]["used"], limits(ann)["user_max_jobs"]["used"]
        ann.post(f"/v1/jobs/{running['id']}/cancel")
        done = ended(ann, running)
        time.sleep(3)  # some polls of both servers
        held = show(ann, waiting)["state"]
        admin.delete(path)
        last = ended(ann, waiting)

    assert uses == (1, 2)
    assert (done["state"], held, last["state"]) == ("cancelled", "queued", "succeeded")
