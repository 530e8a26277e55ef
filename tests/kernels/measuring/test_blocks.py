"""The length of timed blocks."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from tests.kernels.measuring.brief import BRIEF, SPEC
from warpcall_kernels import execution
from warpcall_kernels.execution.check import Expected
from warpcall_kernels.execution.clock import clock
from warpcall_kernels.execution.inputs import Pool, Values
from warpcall_kernels.execution.reading import Results
from warpcall_kernels.execution.remote import RemoteExecutor
from warpcall_kernels.measuring import (
    Implementation,
    _blocks,
    _measure,
    _racing,
    make_case,
    measure,
)
from warpcall_kernels.measuring import race as measure_race
from warpcall_kernels.measuring._blocks import ANSWERS, FEWEST_CHECKS, Blocks
from warpcall_kernels.measuring._candidates import Candidate
from warpcall_kernels.measuring._measure import FEWEST_ROUNDS


@pytest.mark.parametrize(("block_s", "most"), [(0.0, 1), (None, 10_000)])
def test_a_block_has_as_many_samples_as_its_lease_allows(
    block_s: float | None, most: int, device: str
) -> None:
    """The rounds are the same in both: each has a sample of every candidate."""
    blocks: list[int] = []

    @contextlib.contextmanager
    def lease() -> Iterator[float | None]:
        blocks.append(0)
        yield block_s

    def note(x: Any) -> Any:
        if blocks:
            blocks[-1] += 1
        return x.permute(1, 0).contiguous()

    one = Implementation("watched", "tells when it runs", lambda op, params: note)
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(execution.implementations._known, one.name, one)
        side = 600 if device == "cpu" else 8192  # not short: a graph would call nobody
        result = measure(
            make_case("permute", {**SPEC, "shape": [side, side]}),
            ["watched"],
            device,
            BRIEF,
            lease=lease,
        )

    warm = 1 if device == "cuda" else 0  # a block's first sample, which does not count
    calls = [count for count in blocks[1:] if count]  # the first has what `ready` called, too
    assert max(calls) <= most + warm
    assert (max(calls) > 1 + warm) is (block_s is None)
    (watched,) = result.implementations
    assert watched.n == result.rounds - len(result.masked)


@pytest.mark.parametrize("race", [False, True])
def test_the_time_for_which_another_job_has_the_device_does_not_count(
    race: bool, device: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    late_s, blocks, took_part = 0.0, 0, measure_race if race else measure
    elsewhere_s = 10_000.0  # many times what a measurement may take
    now = SimpleNamespace(monotonic=lambda: time.monotonic() + late_s)
    for module in (_blocks, _measure, _racing):
        monkeypatch.setattr(module, "time", now, raising=False)

    @contextlib.contextmanager
    def lease() -> Iterator[float | None]:
        nonlocal late_s, blocks
        blocks += 1
        if blocks % 5 == 0:
            late_s += elsewhere_s
        yield 0.0  # one sample

    result = took_part(
        make_case("permute", SPEC), ["torch", "warpcall"], device, BRIEF, lease=lease
    )

    assert late_s > elsewhere_s
    assert result.seconds < elsewhere_s
    assert result.rounds > FEWEST_ROUNDS + 1


def test_a_few_outputs_are_compared_however_long_that_takes(
    device: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(_blocks, "CHECK_S", 0.0)
    monkeypatch.setattr(_blocks, "CHECK_SHARE", 0.0)
    monkeypatch.setattr(_blocks, "BLOCK_US", 1e12)  # one block
    compared: list[str] = []
    check = Expected.check

    def noted(self: Expected, outputs: Any, what: str) -> None:
        compared.append(what)
        check(self, outputs, what)

    monkeypatch.setattr(Expected, "check", noted)

    measure(make_case("permute", SPEC), ["torch"], device, BRIEF)

    assert compared.count("a timed call") >= FEWEST_CHECKS


def test_answers_are_timed_as_the_calls_are_after_the_process_got_other_values() -> None:
    """A GPU takes longer to begin for a process after another one has used it."""
    case, events = make_case("permute", SPEC), list[str]()

    class Remote(RemoteExecutor):
        sets = 2

        def __init__(self) -> None:
            self.facts = None

        def stop(self) -> None:
            events.append("stop")

        def write(self, which: int, values: Values) -> None:
            written.append(values)
            events.append("write")

        def time_answer(self) -> None:
            events.append("answer")

        def changed(self) -> None:
            return None

        def take_tight(self) -> Results:
            events.append("calls")
            return []

    written: list[Values] = []
    cpu = torch.device("cpu")
    blocks = Blocks(case, Pool.draw(case.inputs, 1, cpu), clock(cpu), contextlib.nullcontext)

    blocks.take_tight(Candidate("u/one", Remote()))

    before = ["stop", "write", "write"]
    assert len({id(values) for values in written}) == len(written)
    assert events == [*before, "answer"] * ANSWERS + [*before, "calls"]
