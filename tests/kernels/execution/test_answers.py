"""What a process with uploaded code answers is used only if an honest process could say it."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch

from warpcall_kernels.execution import answers
from warpcall_kernels.execution.answers import MOST_RESULTS, MOST_SETS, Unsound
from warpcall_kernels.execution.inputs import BufferLayout

FACTS: dict[str, Any] = {
    "method": "events",
    "rough_us": 3.5,
    "host_us": 2,
    "repeats": 1,
    "sets": 2,
    "tags": ["cache warm"],
}
LAYOUTS = {"x": BufferLayout(torch.float32, (2,), (1,), 1024, 2)}
NO_NUMBERS: list[Any] = [None, "1", True, -1.0, math.nan, math.inf, 1e10, [1], {}]


def test_facts_of_an_honest_process_are_taken_over() -> None:
    found = answers.facts(FACTS)

    assert (found.method, found.rough_us, found.host_us) == ("events", 3.5, 2.0)
    assert (found.repeats, found.sets) == (1, 2)
    assert found.tags == ("cache warm",)


@pytest.mark.parametrize("value", NO_NUMBERS, ids=repr)
@pytest.mark.parametrize("name", ["rough_us", "host_us"])
def test_a_time_that_is_no_time_is_refused(name: str, value: Any) -> None:
    with pytest.raises(Unsound):
        answers.facts({**FACTS, name: value})


@pytest.mark.parametrize("value", [None, 0, -1, 1.0, True, "2", MOST_SETS + 1, 1 << 100], ids=repr)
@pytest.mark.parametrize("name", ["repeats", "sets"])
def test_a_number_of_calls_that_cannot_be_is_refused(name: str, value: Any) -> None:
    with pytest.raises(Unsound):
        answers.facts({**FACTS, name: value})


def test_texts_of_facts_are_short_and_can_be_shown() -> None:
    tags = ["\x1b[31m" + "x" * 1000, 3, *["t"] * 100]

    found = answers.facts({**FACTS, "tags": tags, "method": ["\x00"] * 1000})

    assert len(found.tags) == answers.MOST_TAGS
    assert all(len(text) <= answers.MOST_CHARS for text in (*found.tags, found.method))
    assert "".join((*found.tags, found.method)).isprintable()
    assert answers.facts({**FACTS, "tags": "no list"}).tags == ()


@pytest.mark.parametrize(
    "found", [None, {}, [], [1.0, 2.0], [0], [5e-324], [1e-9], ["1"], [math.nan], [True]]
)
def test_times_that_are_not_as_many_numbers_above_zero_are_refused(found: Any) -> None:
    with pytest.raises(Unsound):
        answers.times(found, 1)


def test_times_are_numbers() -> None:
    assert answers.times([1, 2.5], 2) == [1.0, 2.5]


@pytest.mark.parametrize(
    "found",
    [
        None,
        {},
        [{"x": {"address": 1}}] * (MOST_SETS + 1),
        ["x"],
        [{}],
        [{"y": {"address": 1}}],
        [{"x": {"address": 1}, "y": {"address": 1}}],
        [{"x": {"address": "1"}}],
    ],
    ids=lambda value: repr(value)[:30],
)
def test_sets_of_other_inputs_are_refused(found: Any) -> None:
    with pytest.raises(Unsound):
        answers.sets(found, LAYOUTS)


def test_sets_have_an_address_for_each_input() -> None:
    found = [{"x": {"address": 1}}, {"x": {"address": 2, "handle": "a"}}]

    assert answers.sets(found, LAYOUTS) == found


@pytest.mark.parametrize(
    "found",
    [
        None,
        {},
        [],
        [[1, []]] * (MOST_RESULTS + 1),
        [[1]],
        [(1, [])],
        [[True, []]],
        [["1", []]],
        [[3, []]],
    ],
    ids=lambda value: repr(value)[:30],
)
def test_results_of_other_calls_are_refused(found: Any) -> None:
    with pytest.raises(Unsound):
        answers.results(found, {0, 1})


def test_results_are_keys_with_addresses() -> None:
    assert answers.results([[1, "a"], [0, "b"]], {0, 1}) == [(1, "a"), (0, "b")]


@pytest.mark.parametrize(
    "one",
    [
        None,
        [],
        {},
        {"address": 1, "size": 2},
        {"address": None},
        {"address": True},
        {"address": 1.0},
        {"address": -1},
        {"address": 1 << 63},
        {"address": 1, "handle": 2},
        {"handle": "a"},
    ],
    ids=repr,
)
def test_an_address_that_is_none_is_refused(one: Any) -> None:
    with pytest.raises(Unsound):
        answers.addresses([{"address": 1}, one])


def test_addresses_must_be_a_list() -> None:
    with pytest.raises(Unsound):
        answers.addresses({"address": 1})


def test_places_of_different_allocations_are_far_from_each_other() -> None:
    first, second = ({"address": 8, "handle": handle} for handle in ("aa", "ab"))

    assert answers.place({"address": 8}) == 8
    assert abs(answers.place(first) - answers.place(second)) >= 1 << 64


@pytest.mark.parametrize("handle", [1, "\ud800", "é"])
def test_handles_that_are_no_plain_text_are_refused(handle: Any) -> None:
    with pytest.raises(Unsound):
        answers.addresses([{"address": 64, "handle": handle}])
