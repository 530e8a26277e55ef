"""A race of implementations in this process: who is timed, who leaves, and what the result says."""

from __future__ import annotations

import itertools
import json
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from tests.kernels.measuring.brief import BRIEF, SPEC
from warpcall_bench.jobs.models import RACE_AT_ONCE
from warpcall_bench.runs.results import CaseModel
from warpcall_kernels import InvalidInput, measuring
from warpcall_kernels.execution import implementations
from warpcall_kernels.measuring._race import AT_ONCE
from warpcall_kernels.measuring._race_history import MOST_POINTS, History

# It ends when it is decided, long before; a busy machine needs more rounds.
PRECISION = replace(BRIEF, seconds=20, max_rounds=400)
SLEEPS_S = {"fast": 0.001, "slow": 0.02, "slower": 0.06}


def sleeping(seconds: float) -> Callable[..., Any]:
    """Builds an implementation that takes so long, whatever else the machine does."""

    def build(op: object, params: dict[str, Any]) -> Callable[[Tensor], Tensor]:
        def permute(x: Tensor) -> Tensor:
            time.sleep(seconds)
            return x.permute(params["dims"]).contiguous()

        return permute

    return build


def wrong(op: object, params: dict[str, Any]) -> Callable[[Tensor], Tensor]:
    return lambda x: torch.zeros(x.mT.shape)


def raising(op: object, params: dict[str, Any]) -> Callable[[Tensor], Tensor]:
    def permute(x: Tensor) -> Tensor:
        raise ValueError("not today")

    return permute


def failing_later(op: object, params: dict[str, Any]) -> Callable[[Tensor], Tensor]:
    calls = iter(range(16))  # 13 are checked and timed before the rounds, and none leaves in three

    def permute(x: Tensor) -> Tensor:
        next(calls)
        time.sleep(0.001)  # as long as the fastest
        return x.permute(params["dims"]).contiguous()

    return permute


@pytest.fixture(autouse=True)
def registered() -> Iterator[None]:
    before = dict(implementations._known)
    builds = {name: sleeping(seconds) for name, seconds in SLEEPS_S.items()}
    builds |= {f"slow {number}": sleeping(0.02) for number in range(9)}
    builds |= {"wrong": wrong, "raising": raising, "failing later": failing_later}
    for name, build in builds.items():
        measuring.register(measuring.Implementation(name, "a test", build, ops=("permute",)))
    yield
    implementations._known.clear()
    implementations._known.update(before)


def raced(
    *names: str,
    precision: measuring.Precision = PRECISION,
    events: list[dict[str, Any]] | None = None,
) -> tuple[measuring.CaseResult, list[dict[str, Any]]]:
    """What a race results in, and the events of its progress; with `events` they are added there."""
    events = [] if events is None else events
    case = measuring.make_case("permute", SPEC)
    result = measuring.race(case, names, "cpu", precision, progress=events.append)
    return result, events


def test_the_fastest_wins_and_failures_do_not_race() -> None:
    result, events = raced("slow", "wrong", "fast", "raising", "slower")

    rows = {row.name: row for row in result.implementations}
    assert result.race is not None
    assert (result.race.outcome, result.race.leader) == ("winner", "fast")
    assert result.race.fastest == ("fast",)
    assert result.converged
    assert [*rows] == ["slow", "wrong", "fast", "raising", "slower"]
    assert [row.status for row in rows.values()] == ["ok", "wrong_result", "ok", "error", "ok"]
    ranks = {name: row.race.rank for name, row in rows.items() if row.race is not None}
    assert ranks == {"fast": 1, "slow": 2, "slower": 3, "wrong": None, "raising": None}
    left = rows["slower"].race
    assert left is not None
    assert (left.left_why, left.left_leader) == ("slower", "fast")
    assert left.left_ratio is not None
    assert left.left_ratio.low is not None
    assert left.left_ratio.low > 1
    assert left.left_round is not None
    assert len(rows["slower"].samples_us) <= left.left_round <= result.rounds
    assert left.left_s is not None
    history = result.race.history
    assert history is not None
    assert set(history.ratios) == {"slow", "fast", "slower"}, "those that failed never raced"
    assert [*history.rounds] == sorted({*history.rounds})
    assert [*history.seconds] == sorted(history.seconds)
    assert history.rounds[0] <= left.left_round <= history.rounds[-1]
    assert history.rounds[-1] == result.rounds
    assert left.left_s <= history.seconds[-1]
    stood = history.ratios["slower"]
    assert stood[0] is not None
    assert stood[0] > 5
    assert all(
        ratio is None
        for ratio, rounds in zip(stood, history.rounds, strict=True)
        if rounds > left.left_round
    )
    assert history.ratios["fast"][-1] == 1.0
    assert rows["slower"].median_us == pytest.approx(60_000, rel=0.5)
    assert rows["wrong"].samples_us == ()
    assert (rows["raising"].traceback or "").endswith("ValueError: not today")
    assert {one["implementation"] for one in events if one["phase"] == "left"} == {
        "slow",
        "slower",
    }


def test_the_result_is_what_a_server_takes_and_can_be_read_again() -> None:
    result, _ = raced("fast", "slower", "wrong")

    text = json.dumps(result.to_json())
    assert CaseModel.model_validate_json(text).race is not None
    assert measuring.CaseResult.from_json(json.loads(text)) == result


def test_a_history_has_few_points_of_the_whole_race() -> None:
    history = History(["a", "b", "c"])
    for look in range(1, 1001):
        history.add(look, look / 7, {0: 1.0, 1: 1.23456} if look < 500 else {0: 1.0})
    history.end(1001, 143.1, {0: 1.0})

    found = history.result()

    assert MOST_POINTS / 2 < len(found.rounds) <= MOST_POINTS
    assert (found.rounds[0], found.rounds[-1]) == (1, 1001)
    steps = {b - a for a, b in itertools.pairwise(found.rounds[:-1])}
    assert len(steps) == 1, "points are evenly spread"
    assert {len(found.seconds), *map(len, found.ratios.values())} == {len(found.rounds)}
    assert set(found.ratios) == {"a", "b"}
    assert {one for one in found.ratios["b"][:10]} == {1.235}
    assert found.ratios["b"][-1] is None


@pytest.mark.slow
def test_more_than_race_at_once_all_have_their_turn() -> None:
    names = [f"slow {number}" for number in range(9)]

    result, events = raced(*names, "fast")

    assert result.race is not None
    assert (result.race.outcome, result.race.leader) == ("winner", "fast")
    assert all(row.n for row in result.implementations)
    assert max(one.get("racing", 0) for one in events) == AT_ONCE == RACE_AT_ONCE


def test_one_that_fails_in_the_rounds_leaves_the_others_their_samples() -> None:
    result, events = raced("failing later", "fast", "slower")

    failed, fast, slower = result.implementations
    assert 3 in [one.get("racing") for one in events], "it raced"
    assert (failed.status, failed.median_us) == ("error", None)
    assert fast.n >= slower.n > 0
    assert result.race is not None
    assert (result.race.outcome, result.race.leader) == ("winner", "fast")


@pytest.mark.slow
def test_those_that_left_because_of_a_leader_that_fails_race_again() -> None:
    events: list[dict[str, Any]] = []

    def failing(op: object, params: Any) -> Callable[[Tensor], Tensor]:
        def permute(x: Tensor) -> Tensor:
            if any(one["phase"] == "left" for one in events):
                raise ValueError("no more")
            time.sleep(0.001)
            return x.permute(params["dims"]).contiguous()

        return permute

    measuring.register(measuring.Implementation("leads", "a test", failing, ops=("permute",)))
    slow = [f"slow {number}" for number in range(AT_ONCE - 1)]

    result, _ = raced("leads", *slow, "fast", events=events)  # the last one enters when one leaves

    leads, *others, fast = result.implementations
    assert leads.status == "error"
    assert result.race is not None
    assert (result.race.outcome, result.race.fastest) == ("winner", ("fast",))
    # On a busy machine "fast" may have raced before, as one of them made room. Who was surely slower
    # than it by then does not race again.
    leaders = {row.race and row.race.left_leader for row in others}
    assert leaders in ({"fast"}, {"fast", "leads"})
    assert fast.race is not None
    assert fast.race.rank == 1


def test_the_only_one_that_is_right_wins_by_its_times() -> None:
    result, _ = raced("wrong", "fast", "raising")

    _, fast, _ = result.implementations
    assert result.race is not None
    assert (result.race.outcome, result.race.fastest) == ("winner", ("fast",))
    assert fast.race is not None
    assert fast.race.rank == 1
    assert fast.median_us is not None


def test_without_time_nothing_is_decided() -> None:
    result, _ = raced("slow 1", "slow 2", precision=replace(PRECISION, max_rounds=4))

    assert result.race is not None
    assert (result.race.outcome, len(result.race.fastest)) == ("undecided", 2)
    assert not result.converged
    assert [row.race.rank for row in result.implementations if row.race] == [1, 1]


def test_plain_torch_in_place_of_a_kernel_does_not_win() -> None:
    result, _ = raced("warpcall", "slow", "slower", precision=replace(PRECISION, max_rounds=40))

    ours, slow, _ = result.implementations
    assert ours.race is not None
    assert ours.race.rank is None
    assert result.race is not None
    assert result.race.leader == "slow"
    assert slow.race is not None
    assert slow.race.rank == 1


def test_nothing_wins_if_all_fail() -> None:
    result, _ = raced("wrong", "raising")

    assert result.race is not None
    assert (result.race.outcome, result.race.leader, result.race.fastest) == ("none", None, ())
    assert result.race.full_device_s is None


def test_a_race_needs_times() -> None:
    with pytest.raises(InvalidInput, match="a race times, the precision check does not"):
        raced("fast", "slow", precision=measuring.PRECISIONS["check"])
