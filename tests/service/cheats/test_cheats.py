"""Uploads that try to fool a measurement: none succeeds, and each does without the rule against it."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.service.cheats.cheats import CASES, Cheat, cheats
from tests.service.cheats.judge import Judge, Measured, Request, running_judge
from tests.service.job_requests import known_tags

pytestmark = pytest.mark.slow

CHEATS = [one for folder in ("results", "calls", "times", "processes") for one in cheats(folder)]
GAIN = 0.6  # of the honest time, below which a time is false; a busy machine only adds to it
HONEST = {"ann/mine": "def permute(x, dims):\n    return x.permute(dims).contiguous()\n"}
CALL_S = 10.0  # for a call; on a busy machine a process can wait for a CPU for more than a second
HANGING_CALL_S = 1.0  # of a cheat that shall not end in time
TRIES = 6  # in which a cheat must succeed once: what must happen in time may not on a busy machine


@pytest.fixture(scope="module")
def judge() -> Iterator[Judge]:
    with running_judge() as running:
        yield running


def measured(judge: Judge, cheat: Cheat, folder: Path, *off: str) -> Measured:
    """Measure a cheat beside torch, without some rules."""
    request = Request(
        {"ann/mine": cheat.source},
        str(folder),
        ["torch", "ann/mine"],
        cheat.op,
        cheat.spec,
        off,
        cheat.rounds,
        HANGING_CALL_S if "timeout" in cheat.statuses else CALL_S,
        cheat.short_us,
    )
    return judge.measure(request)


def is_false(found: Measured) -> bool:
    """Whether the time of the cheat is one that cannot be."""
    mine, torch = found.rows["ann/mine"], found.rows["torch"]
    return bool(mine["min_us"] < GAIN * torch["min_us"])


@contextmanager
def busy_machine() -> Iterator[None]:
    """Let two processes compute for each CPU, which other tests need, too."""
    with contextlib.ExitStack() as stack:
        for _ in range(2 * (os.cpu_count() or 1)):
            process = subprocess.Popen([sys.executable, "-c", "while True: pass"])
            stack.callback(process.wait)
            stack.callback(process.kill)
        yield


def named(cheat: Cheat) -> str:
    return cheat.name


def test_there_are_cheats_and_each_has_an_idea() -> None:
    assert len(CHEATS) >= 25
    assert [one.name for one in CHEATS if not one.idea.endswith(".")] == []


@pytest.mark.parametrize("cheat", CHEATS, ids=named)
def test_a_cheat_gets_its_true_status_and_changes_no_other_row(
    cheat: Cheat, judge: Judge, tmp_path: Path
) -> None:
    found = measured(judge, cheat, tmp_path)

    mine, torch = found.rows["ann/mine"], found.rows["torch"]
    assert mine["status"] in cheat.statuses, mine["error"]
    assert mine["status"] == "ok" or cheat.error in mine["error"]
    assert (torch["status"], torch["error"]) == ("ok", None)
    assert found.beside == 0, "it ran while another implementation was timed"
    if mine["status"] == "ok" and "unconfirmed" not in mine["tags"]:
        # On a busy machine our clock doubts fewer samples, but their median is still a true time.
        assert mine["median_us"] >= GAIN * torch["min_us"]
    if mine["status"] != "ok" or mine["tags"]:
        assert mine["relative"] is None, "it has a verdict"
    if cheat.tag:
        assert cheat.tag in mine["tags"]


@pytest.mark.parametrize("cheat", [one for one in CHEATS if one.rules], ids=named)
def test_a_cheat_succeeds_without_the_rules_against_it(
    cheat: Cheat, judge: Judge, tmp_path: Path
) -> None:
    tries = []
    for number in range(TRIES):
        (folder := tmp_path / str(number)).mkdir()
        found = measured(judge, cheat, folder, *cheat.rules)
        mine = found.rows["ann/mine"]
        tries.append((mine["status"], mine["error"], mine["median_us"]))
        if mine["status"] == "ok" and (is_false(found) or cheat.gains == "a wrong result"):
            return
    raise AssertionError(tries)


def test_an_honest_implementation_is_ok(judge: Judge, tmp_path: Path) -> None:
    request = Request(HONEST, str(tmp_path), ["torch", "ann/mine"])

    found = judge.measure(request)

    assert [(row["status"], known_tags(row)) for row in found.rows.values()] == [("ok", [])] * 2
    assert found.beside == 0


@pytest.mark.parametrize("case", ["short", "matrix"])
def test_an_honest_implementation_is_ok_on_a_busy_machine(
    case: str, judge: Judge, tmp_path: Path
) -> None:
    op, spec = CASES[case]
    short_us = 1000.0 if case == "short" else 0.0
    request = Request(HONEST, str(tmp_path), ["torch", "ann/mine"], op, spec, (), 10, 10, short_us)

    with busy_machine():
        found = judge.measure(request)

    mine = found.rows["ann/mine"]
    assert (mine["status"], mine["error"]) == ("ok", None)
    assert mine["relative"] is None or "unconfirmed" not in mine["tags"]
