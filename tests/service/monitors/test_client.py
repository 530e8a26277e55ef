"""The SDK and the command line against a server with monitors."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
from collections.abc import Iterator
from typing import Any

import pytest

from tests import forks
from tests.commands import COMMANDS
from tests.servers import Server, running_server
from tests.service.databases import Database
from tests.service.job_requests import BRIEF
from tests.service.monitors.lab import add_runs
from tests.service.monitors.series import quiet, times
from tests.waiting import until_lasting as until
from warpcall import AsyncClient, Client, InvalidInput, NewMonitor, NotFound

pytestmark = pytest.mark.slow

SWEEP = {"shapes": [[8, 8]], "dtypes": ["F32"], "params": {"dims": [[1, 0]]}}
OPTIONS = ("--shape", "8x8", "--dtype", "f32", "--dims", "1,0", "--precision", "quick")


@pytest.fixture(scope="module")
def database(tmp_path_factory: pytest.TempPathFactory) -> Database:
    return Database("sqlite", {"WARPCALL_DATA_DIR": str(tmp_path_factory.mktemp("data"))})


@pytest.fixture(scope="module")
def served(database: Database) -> Iterator[Server]:
    with running_server({**database.settings, **BRIEF}) as running:
        yield running


def warpcall(served: Server, *words: str) -> subprocess.CompletedProcess[str]:
    command = [*COMMANDS["warpcall"], "monitors", *words, "--url", served.url]
    return forks.run(command, os.environ)


def test_a_monitor_in_the_sdk(served: Server, database: Database) -> None:
    with Client(served.url) as gpu:
        added = gpu.monitors.add("permute", every_s=3600, sweep=SWEEP, precision="quick")
        until(lambda: gpu.monitors.show(added.id).series)
        paused = gpu.monitors.pause(added.id[:6])
        store = database.store()
        add_runs(store, added.id, times(quiet, 0, 12, 10, 1.05), newest=True)
        store.close()
        until(lambda: gpu.monitors.show(added.id).found)
        (step,) = gpu.monitors.show(added.id).found
        listed = gpu.monitors.list()
        resumed = gpu.monitors.resume(added.id)
        gpu.monitors.remove(added.id)

        assert isinstance(added, NewMonitor)
        assert (added.op, added.every_s, added.least, added.state) == (
            "permute",
            3600,
            0.03,
            "active",
        )
        assert (paused.state, resumed.state) == ("paused", "active")
        assert (step.case, step.implementation) == ("case 0", "warpcall")
        assert step.ratio == pytest.approx(1.05, abs=0.01)
        assert [(one.id, one.steps) for one in listed] == [(added.id, 1)]
        with pytest.raises(NotFound):
            gpu.monitors.show(added.id)
        with pytest.raises(InvalidInput, match="every_s must be at least 3600"):
            gpu.monitors.add("permute", every_s=60, sweep=SWEEP)


def test_the_same_awaited(served: Server) -> None:
    async def run() -> list[Any]:
        async with AsyncClient(served.url) as gpu:
            added = await gpu.monitors.add("permute", every_s=3600, sweep=SWEEP, least=0.1)
            found = await gpu.monitors.show(added.id)
            paused = await gpu.monitors.pause(added.id)
            resumed = await gpu.monitors.resume(added.id)
            listed = await gpu.monitors.list(user="all")
            await gpu.monitors.remove(added.id)
            return [found.least, paused.state, resumed.state, len(listed)]

    assert asyncio.run(run()) == [0.1, "paused", "active", 1]


def test_a_monitor_on_the_command_line(served: Server, database: Database) -> None:
    def run(*words: str) -> str:
        done = warpcall(served, *words)
        assert done.returncode == 0, done.stderr
        return done.stdout

    added = json.loads(run("add", "permute", *OPTIONS, "--every", "12h", "--least", "2", "--json"))
    name = added["id"]
    until(lambda: json.loads(run("show", name, "--json"))["series"])
    store = database.store()
    add_runs(store, name, times(quiet, 0, 12, 10, 1.05), newest=True)
    store.close()
    until(lambda: json.loads(run("show", name, "--json"))["found"])
    shown, listed = run("show", name), run("list")
    paused, resumed, removed = (run(what, name) for what in ("pause", "resume", "remove"))

    assert (added["every_s"], added["least"]) == (12 * 3600, 0.02)
    assert f"{name}: permute every 12.0 h" in shown
    assert "1.0" in shown.partition("steps, the latest first")[2]
    assert name in listed
    assert paused == f"{name} is paused\n"
    assert resumed == f"{name} is active\n"
    assert removed == f"{name} is removed\n"
    assert run("list") == "no monitors\n"
    assert max(map(len, [*shown.splitlines(), *listed.splitlines()])) <= 80


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("--every", "5"), "--every must be a number with m, h, d or y"),
        (("--every", "5m"), "--every"),
        (("--every", "6h", "--least", "0"), "--least"),
        (("--every", "6h", "--gpu", "H9000"), "--gpu"),
    ],
)
def test_a_wrong_option_is_named(served: Server, words: tuple[str, ...], message: str) -> None:
    done = warpcall(served, "add", "permute", *OPTIONS, *words)

    assert done.returncode == 2
    assert message in done.stderr
