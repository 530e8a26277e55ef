"""Verified uploads that try to fool a measurement on a GPU, through a real server and its sandbox.

What is refused without a GPU is in `tests/service/cheats/verified`. Each idea that only a GPU can refuse
succeeds here where the rule against it is switched off: the launcher's and the judge's checks are not made.
"""

from __future__ import annotations

import dataclasses
import os
import time
from collections.abc import Callable, Iterator
from typing import Any

import httpx
import pytest
import torch
from torch import Tensor

from tests.gpu.sandboxed import PATHS, sandboxing
from tests.service.cheats.verified import jobs
from tests.service.cheats.verified.naive import Naive, Report, running_naive
from tests.service.cheats.verified.recorder import Recorders, running_recorders
from tests.service.cheats.verified.sources import ON_A_GPU, Cheat, cheats, honest
from tests.service.runs.sandboxes import needs_bubblewrap
from tests.template import BRIEF_JOBS
from warpcall_kernels.op.declaration import Meta
from warpcall_kernels.verified.launcher import OutOfBounds, PlannedFunction
from warpcall_kernels.verified.plan import Plan

pytestmark = [needs_bubblewrap, pytest.mark.timeout(600)]

SETTINGS = {
    "WARPCALL_UPLOAD_COMPILE_S": "30",
    "PYTHONPATH": os.pathsep.join([BRIEF_JOBS, *PATHS]),
}
CHEATS = {one.name: one for one in cheats()}
IN_THE_RECORDER = {"hangs", "exits", "eats-memory", "many-processes"}  # and never on the GPU
LEFT = [
    one
    for one in CHEATS.values()
    if ON_A_GPU.intersection(one.statuses) and one.name not in IN_THE_RECORDER
]
LARGE = 8192  # columns of cases whose calls are not captured in a graph
TIMED = [  # found only where calls are timed, or timed as what they are
    "by-the-time-of-day",
    "mark-in-scratch-memory",
    "configurations-differ",
    "output-as-a-cache",
    "label-as-a-tag",
    "output-as-a-small-cache",
    "ends-early",
    "reads-the-next-call-ahead",
    "torch-in-place-of-a-kernel",
    "by-address",
    "patched-clock",
]
TIMED_LARGE = ["output-as-a-cache", "ends-early", "reads-the-next-call-ahead", "first-calls-only"]
# They change the recorder for all that follow in its process.
CHANGING = ["patched-comparison", "patched-reference"]
ALONE = [one.name for one in LEFT if one.apart or one.language == "cuda"]
CHECKED = [one.name for one in LEFT if one.name not in (*TIMED, *CHANGING, *ALONE)]
HONEST_SHARE = 0.98  # of an honest time, which a time must reach
GAIN = 0.8  # of an honest time, below which a time is false
SHAPE = (8192, 8192)  # of F32, more than a cache has


@pytest.fixture(scope="module")
def http(device: str) -> Iterator[httpx.Client]:
    with sandboxing(device, **SETTINGS) as http:
        yield http


def assert_not_accepted(one: jobs.Placed, row: dict[str, Any]) -> None:
    """A cheat has none of the time or the result that it tried to get."""
    assert row["verified"], row
    if not one.is_last:
        assert row["status"] == "ok", row
        return
    allowed = {"ok" if status == "honest" else status for status in one.cheat.statuses}
    assert row["status"] in allowed, row
    assert one.cheat.error in (row["error"] or ""), row
    assert row["status"] == "ok" or row["verdict"] is None, row


def test_wrong_results_are_found(http: httpx.Client) -> None:
    cases = jobs.placed([CHEATS[name] for name in (*CHECKED, *CHANGING)])
    name = jobs.add(http, "checked", jobs.source_of(cases))

    found = jobs.rows(http, [name], [one.case for one in cases], precision="check")

    failed = []
    for one, row in zip(cases, found, strict=True):
        try:
            assert_not_accepted(one, row[name])
        except AssertionError as error:
            failed.append((one.cheat.name, str(error)))
    assert failed == []


def test_times_are_those_of_the_work(http: httpx.Client) -> None:
    cases = jobs.placed([CHEATS[name] for name in TIMED])
    cases += jobs.placed([CHEATS[name] for name in TIMED_LARGE], LARGE)
    mine = jobs.add(http, "timed", jobs.source_of(cases))
    # It refuses other shapes as the cheats do, so that its odd cases take no time.
    alike = [dataclasses.replace(one, cheat=honest()) for one in cases]
    right = jobs.add(http, "right", jobs.source_of(alike))

    found = jobs.rows(http, [right, mine], [one.case for one in cases])

    failed = []
    for one, row in zip(cases, found, strict=True):
        try:
            assert row[right]["status"] == "ok", row[right]
            assert_not_accepted(one, row[mine])
            if row[mine]["status"] == "ok":
                assert row[mine]["median_us"] >= HONEST_SHARE * least_us(one.cheat, row[right])
        except AssertionError as error:
            failed.append((one.cheat.name, str(error), row[right]["median_us"]))
    assert failed == []


def least_us(cheat: Cheat, row: dict[str, Any]) -> float:
    """The time of an honest kernel; where others do the work, that of a copy of as many bytes."""
    time_us = float(row["median_us"])
    if cheat.name in ("torch-in-place-of-a-kernel", "ends-early"):  # their kernels are others
        return time_us * float(row["share_of_limit"]) / 1.03
    return time_us


def test_what_breaks_its_process_breaks_no_other(http: httpx.Client) -> None:
    names = {name: jobs.add(http, name, CHEATS[name]) for name in ALONE}
    right = jobs.add(http, "honest", honest())
    (case,) = jobs.placed([honest()])

    (found,) = jobs.rows(http, [right, *names.values()], [case.case], precision="check")

    assert found[right]["status"] == "ok", found[right]
    for name, full in names.items():
        assert found[full]["status"] in CHEATS[name].statuses, found[full]


# The same ideas without the rules against them


@pytest.fixture(scope="module")
def recorders(device: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Recorders]:
    if device != "cuda":
        pytest.skip("needs --device cuda")
    with running_recorders(tmp_path_factory.mktemp("recorders")) as running:
        yield running


@pytest.fixture(scope="module")
def naive(device: str) -> Iterator[Naive]:
    if device != "cuda":
        pytest.skip("needs --device cuda")
    with running_naive("cuda") as running:
        yield running


def planned(recorders: Recorders, cheat: Cheat) -> PlannedFunction:
    rows, columns = SHAPE
    shapes = [(rows + 64 * n, columns) for n in reversed(range(cheat.cases))]
    found = recorders.answers(cheat, shapes=shapes)[-1]
    assert found.status == "unchecked", found
    nbytes = 4 * rows * columns
    plan = Plan.from_json(found.plan, {"x": nbytes}, [nbytes])
    return PlannedFunction(plan, {"out": Meta((columns, rows), torch.float32)})


def without(*rules: str) -> list[Any]:
    return [pytest.param(one, id=one.name) for one in CHEATS.values() if one.without in rules]


@pytest.fixture
def x(device: str) -> Tensor:
    return torch.randn(SHAPE, device=device)


@pytest.mark.parametrize("cheat", without("values on a GPU"))
def test_only_the_values_tell_that_it_is_wrong(
    cheat: Cheat, recorders: Recorders, x: Tensor
) -> None:
    function = planned(recorders, cheat)

    with function.checking():
        out = function(x=x)

    assert out.shape == (SHAPE[1], SHAPE[0])
    assert not torch.equal(out, x.T)


@pytest.mark.parametrize("cheat", without("guard bands on a GPU"))
def test_only_guard_bands_tell_that_it_writes_there(
    cheat: Cheat, recorders: Recorders, x: Tensor
) -> None:
    function = planned(recorders, cheat)

    assert torch.equal(function(x=x), x.T)
    with pytest.raises(OutOfBounds), function.checking():
        function(x=x)


@pytest.mark.parametrize("cheat", without("inputs stay on a GPU"))
def test_only_its_input_tells_that_it_writes_there(
    cheat: Cheat, recorders: Recorders, x: Tensor
) -> None:
    function, before = planned(recorders, cheat), x.clone()

    with function.checking():
        out = function(x=x)

    assert torch.equal(out, before.T)
    assert not torch.equal(x, before)


@pytest.mark.parametrize("cheat", without("values of later calls on a GPU"))
def test_only_values_of_timed_calls_tell_that_it_stops_computing(
    cheat: Cheat, recorders: Recorders, x: Tensor
) -> None:
    torch.cuda.synchronize()
    function, begin = planned(recorders, cheat), time.monotonic()
    with function.checking():
        assert torch.equal(function(x=x), x.T)
    function.choose({"x": x})
    if cheat.name == "by-the-time-of-day":
        time.sleep(max(0.0, 4.5 - (time.monotonic() - begin)))
    graph, out = captured(function, x)

    x.normal_()
    cheat_us = replayed_us(graph)

    assert not torch.equal(out, x.T)
    assert cheat_us < GAIN * honest_us(recorders, x)


@pytest.mark.parametrize("cheat", without("overwritten memory on a GPU"))
def test_memory_that_stays_lets_it_skip_what_it_repeats(
    cheat: Cheat, recorders: Recorders, x: Tensor
) -> None:
    function = planned(recorders, cheat)
    graph, out = captured(function, x)
    x.normal_()

    cheat_us = replayed_us(graph)

    assert torch.equal(out, x.T)
    if cheat.name == "output-as-a-cache":  # the other one gains too little for a short test
        assert cheat_us < GAIN * honest_us(recorders, x)


def honest_us(recorders: Recorders, x: Tensor) -> float:
    function = planned(recorders, honest())  # its kernels are loaded as long as it lives
    return replayed_us(captured(function, x)[0])


def captured(function: Callable[..., Tensor], x: Tensor) -> tuple[torch.cuda.CUDAGraph, Tensor]:
    """A graph of one call, to be replayed while the function lives, and what it writes to."""
    function(x=x)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        out = function(x=x)
    graph.replay()
    return graph, out


def replayed_us(graph: torch.cuda.CUDAGraph) -> float:
    """The time of a replay, of which the first computes what all of them return."""
    event: Any = torch.cuda.Event
    first, last = event(enable_timing=True), event(enable_timing=True)
    graph.replay()
    first.record()
    for _ in range(50):
        graph.replay()
    last.record()
    last.synchronize()
    return float(1000 * first.elapsed_time(last) / 50)


@pytest.fixture(scope="module")
def real(naive: Naive) -> Report:
    found = naive.report(honest((LARGE, LARGE)))
    assert found is not None
    return found


@pytest.mark.parametrize("cheat", without("plans on a GPU"))
def test_a_cheat_succeeds_where_its_code_meets_the_clock(
    cheat: Cheat, naive: Naive, real: Report
) -> None:
    found = naive.report(cheat, (LARGE, LARGE))

    assert found is not None
    assert (found.accepted, found.right) == (True, True)
    assert found.us < GAIN * real.us
