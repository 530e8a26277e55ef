"""Three servers on one database, killed and cut off at random: nothing is lost, twice or late.

A few kills and partitions, in less than a minute; `make chaos` does 100 kills and 20 partitions.
"""

from __future__ import annotations

import os
import random
import time
from collections import Counter
from pathlib import Path

import pytest

from tests.chaos.checks import calls_charged, job_ids, wrong_in
from tests.chaos.machines import Killer, Machine, Partitions
from tests.chaos.network import Network, needs_networks, network_of
from tests.chaos.users import User
from tests.service.databases import Postgres, new_postgresql, postgres_cluster
from tests.waiting import until

SEED = int(os.environ.get("WARPCALL_TEST_SEED", "7"))
KILLS = int(os.environ.get("WARPCALL_TEST_KILLS", "6"))
PARTITIONS = int(os.environ.get("WARPCALL_TEST_PARTITIONS", "2"))
PARTITION_S = 10.0 if PARTITIONS > 2 else 6.0
PAUSE_S = (0.5, 2.5)  # between two kills
USERS = ("ada", "bob", "cem")

pytestmark = [
    needs_networks,
    pytest.mark.timeout(300 + 20 * KILLS + 20 * PARTITIONS),
    pytest.mark.slow,
]


def test_nothing_is_lost_twice_or_late_while_servers_are_killed_and_cut_off(
    tmp_path: Path,
) -> None:
    with network_of(3) as network, postgres_cluster(network.database) as postgres:
        _survive(network, postgres, tmp_path)


def _survive(network: Network, postgres: Postgres, folder: Path) -> None:
    database = new_postgresql(postgres, folder)
    keys = {name: database.key(name, "bench") for name in USERS}
    name = database.settings["WARPCALL_DATABASE_URL"].rpartition("/")[2]
    machines = [Machine(n, network, database, folder / letter) for n, letter in enumerate("abc")]
    chooser = random.Random(SEED)
    users: list[User] = []
    began = time.monotonic()
    try:
        for machine in machines:
            machine.start()
        users += [User(u, key, machines, 1, repeats=u == USERS[-1]) for u, key in keys.items()]
        partitions = Partitions(network, PARTITIONS, PARTITION_S, random.Random(SEED))
        killer = Killer(machines, postgres, name, chooser)
        try:
            for _ in range(KILLS):
                killer.kill_one()
                time.sleep(chooser.uniform(*PAUSE_S))
        finally:
            partitions.join()
    finally:
        for user in users:
            user.stop()
        for user in users:
            user.join()
        for machine in machines:
            machine.stop()

    calls = sum((user.calls for user in users), Counter[str]())
    ended = Counter(job["state"] for user in users for job in user.ended.values())
    accepted = [job for user in users for job in user.accepted]
    charged = calls_charged(database)
    sent = {user.name: user.calls.total() for user in users}
    print(  # noqa: T201  # the counts of a long run
        f"\n{time.monotonic() - began:.0f} s; killed {dict(killer.killed)}; "
        f"partitions {dict(partitions.made)}; calls {dict(calls)}; jobs {dict(ended)}; "
        f"calls charged {charged} of {sent}; {USERS[-1]}'s calls: {dict(users[-1].calls)}"
    )
    assert [wrong for user in users for wrong in user.wrong] == []
    assert wrong_in(database) == {}
    assert sorted(job_ids(database)) == sorted(accepted)
    assert ended.total() == len(accepted)
    assert calls["answered"] > 0
    assert ended["succeeded"] > 0
    # The last one's calls are repeated. Saves of usage are, too, if an answer of the database is lost.
    assert all(charged[name] <= 2 * sent[name] for name in USERS[:-1])
    until(lambda: not network.processes(), "processes are left")
    assert [path for machine in machines for path in machine.temporary.iterdir()] == []
