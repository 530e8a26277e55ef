"""Verified uploads that try to fool a measurement, as far as no GPU is needed to refuse them.

Where nothing is refused here, a GPU finds what is wrong (`tests/gpu/test_verified_cheats`), or the launch
plan is that of the honest source. Each idea succeeds where what it fails at is switched off.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from tests.service.cheats.verified.naive import Naive, Report, running_naive
from tests.service.cheats.verified.recorder import RULES, Recorders, running_recorders
from tests.service.cheats.verified.sources import ON_A_GPU, Cheat, cheats, honest

CHEATS = cheats()
PUBLIC = [one for one in CHEATS if one.origin != "ours"]
OURS = [one for one in CHEATS if one.origin == "ours"]
HARMFUL = {
    "eats-memory",
    "many-processes",
}  # which only a sandbox bounds: see `test_verified_cheats_in_jobs`
GAIN = 0.6  # of the honest time, below which a time is false
HANGING_S = 3.0
TRIES = 3  # in which a cheat must succeed once: what must happen in time may not on a busy machine


@pytest.fixture(scope="module")
def recorders(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Recorders]:
    with running_recorders(tmp_path_factory.mktemp("recorders")) as running:
        yield running


@pytest.fixture(scope="module")
def naive() -> Iterator[Naive]:
    with running_naive() as running:
        yield running


@pytest.fixture(scope="module")
def honest_report(naive: Naive) -> Callable[[tuple[int, int]], Report]:
    """What the naive judge says of the honest source, for inputs of each size once."""

    @functools.cache
    def report(shape: tuple[int, int]) -> Report:
        found = naive.report(honest(shape))
        assert found is not None
        return found

    return report


@pytest.fixture(scope="module")
def honest_plan(recorders: Recorders) -> Any:
    found = recorders.answer(honest())
    assert found.status == "unchecked", found.error
    assert found.plan is not None
    return found.plan


def named(cheat: Cheat) -> str:
    return cheat.name


def compile_s(cheat: Cheat) -> float:
    return HANGING_S if cheat.error.startswith("did not end") else 30.0


def test_all_ideas_are_there() -> None:
    assert len(PUBLIC) >= 22
    assert len(OURS) >= 15
    assert [one.name for one in CHEATS if not one.idea.endswith(".")] == []
    known = {*RULES, "plans", "none"}
    asked = {rule for one in CHEATS if not one.on_gpu for rule in rules_of(one)}
    assert asked <= known
    assert len({one.name for one in CHEATS}) == len(CHEATS)


def rules_of(cheat: Cheat) -> list[str]:
    return cheat.without.split(", ")


@pytest.mark.slow
@pytest.mark.parametrize("cheat", [one for one in CHEATS if one.name not in HARMFUL], ids=named)
def test_a_cheat_is_refused_or_left_to_a_gpu(
    cheat: Cheat, recorders: Recorders, honest_plan: Any
) -> None:
    found = recorders.answer(cheat, compile_s=compile_s(cheat))

    if found.status == "unchecked":
        assert ON_A_GPU.intersection(cheat.statuses) or found.plan == honest_plan, found
        assert "honest" not in cheat.statuses or found.plan == honest_plan
    else:
        assert found.status in cheat.statuses, found
        assert cheat.error in found.error


@pytest.mark.slow
@pytest.mark.parametrize("cheat", [one for one in CHEATS if one.without == "plans"], ids=named)
def test_a_cheat_succeeds_where_its_code_meets_the_clock(
    cheat: Cheat, naive: Naive, honest_report: Callable[[tuple[int, int]], Report]
) -> None:
    """A judge that calls the author's function accepts it; see `naive`."""
    real = honest_report(cheat.shape)

    tries = []
    for _ in range(TRIES):
        found = naive.report(cheat)
        tries.append((found, real))
        if found is not None and found.accepted and gains(cheat, found, real):
            return
        again = naive.report(honest(cheat.shape))  # the machine may have become slower
        assert again is not None
        real = again
    raise AssertionError(tries)


def gains(cheat: Cheat, found: Report, real: Report) -> bool:
    return not found.right if cheat.gains == "a wrong result" else found.us < GAIN * real.us


@pytest.mark.slow
@pytest.mark.parametrize(
    "cheat", [one for one in CHEATS if {*rules_of(one)} & RULES.keys()], ids=named
)
def test_a_cheat_is_let_through_without_the_rules_against_it(
    cheat: Cheat, recorders: Recorders
) -> None:
    rules = rules_of(cheat)
    found = recorders.answer(cheat, *rules)

    assert found.status == "unchecked", found
    for rule in rules if len(rules) > 1 else ():  # each of them alone refuses it
        others = [other for other in rules if other != rule]
        assert recorders.answer(cheat, *others).status != "unchecked"


@pytest.mark.slow
def test_the_honest_source_is_accepted(honest_plan: Any, naive: Naive) -> None:
    assert len(honest_plan["kernels"]) == 1
    assert honest_plan["steps"]
    report = naive.report(honest())
    assert report is not None
    assert report.accepted
    assert report.right
