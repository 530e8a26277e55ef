"""Processes compile for the cases of the benchmark, and then measure them one after the other."""

from __future__ import annotations

import json
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest
import torch

from bench.kernels import measure, phases, references, run, workers
from bench.kernels.peers import Peers
from tests.kernels.measuring.small_bench import CASES, EFFORT, PLANNED, given
from warpcall_kernels import ops
from warpcall_kernels.execution import implementations as _implementations

if TYPE_CHECKING:
    from collections.abc import Mapping
    from multiprocessing.connection import Connection
    from pathlib import Path

pytestmark = pytest.mark.slow


def test_kernels_that_were_called_undecided_choose_at_their_next_call() -> None:
    # Not above: it takes 1.5 s to import, in each process that collects the tests.
    from torch._inductor.runtime.triton_heuristics import CachingAutotuner

    kernel: Any = SimpleNamespace(launchers=["first", "second"], _cached_launcher="first")
    torch_kernel: Any = CachingAutotuner
    choose = torch_kernel.autotune_to_one_config

    with references.undecided():
        torch_kernel.autotune_to_one_config(kernel, "an argument", stream=0)
        taken = kernel.launchers

    assert taken == ["first"]
    assert kernel.launchers == ["first", "second"]
    assert kernel._cached_launcher is None
    assert torch_kernel.autotune_to_one_config is choose


@pytest.fixture
def unregistered(monkeypatch: pytest.MonkeyPatch) -> None:
    """Forget after the test which implementations it registered."""
    monkeypatch.setattr(_implementations, "_known", {**_implementations._known})


@pytest.mark.usefixtures("unregistered")
def test_a_reference_that_was_compiled_ahead_is_not_compiled_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    compiled: list[Any] = []

    def compile_it(function: Any, *, dynamic: bool) -> Any:
        compiled.append(function)
        return function

    monkeypatch.setattr(torch, "compile", compile_it)
    kept = references.Kept("cpu")
    bench = measure.Bench(EFFORT, Peers({}), "cpu", kept)

    kept.compile(ops()["permute"], CASES[0])
    before = len(compiled)
    square, odd = (bench.row(planned) for planned in PLANNED[:2])

    assert before == 1
    assert len(compiled) == 2  # the other case was not compiled ahead
    assert square["compile_ms"] > 0
    assert odd["compile_ms"] > 0


@pytest.mark.usefixtures("unregistered")
def test_a_reference_that_cannot_be_compiled_is_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(function: Any, *, dynamic: bool) -> Any:
        raise RuntimeError("it cannot be compiled")

    monkeypatch.setattr(torch, "compile", fail)
    bench = measure.Bench(EFFORT, Peers({}), "cpu", references.Kept("cpu"))

    row = bench.row(PLANNED[0])

    assert row["compile_ms"] is None
    assert row["ms"] > 0


def test_cases_are_measured_by_the_processes_that_compiled_for_them(
    tmp_path: Path, small: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "results.json"

    status = run.run(given(file, ahead=2))

    rows = json.loads(file.read_text())["rows"]
    assert status == 0
    assert small == []  # this process measures nothing
    assert [row["case"] for row in rows] == [case.name for case in CASES]
    assert all(row["ms"] > 0 for row in rows)
    printed = capsys.readouterr().out
    assert "compiled for 3 of 3 cases" in printed
    assert "3 cases in" in printed


def test_cases_that_lacked_memory_are_measured_again_without_the_other_processes(
    tmp_path: Path, small: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    first: set[Any] = set()  # the processes of the start
    measured: list[tuple[str, int]] = []  # the case, and how many processes there were

    class Crowded(workers.Workers):
        """Processes of which those of the start lack memory for one case."""

        def row(
            self, planned: measure.Planned, limit_s: float | None = None
        ) -> tuple[dict[str, Any], Mapping[str, float]]:
            first.update([] if measured else self._processes)
            row, seconds = super().row(planned, limit_s)
            measured.append((planned.case.name, len(self._processes)))
            if planned.case.name == "odd" and not first.isdisjoint(self._processes):
                row |= {"ms": None, "error": "no memory is left", "out_of_memory": True}
            return row, seconds

    monkeypatch.setattr(run, "Workers", Crowded)
    file = tmp_path / "results.json"

    status = run.run(given(file, ahead=2))

    rows = json.loads(file.read_text())["rows"]
    assert measured == [("square", 2), ("odd", 2), ("no dims", 2), ("odd", 1)]
    assert status == 0
    assert {row["case"]: row["out_of_memory"] for row in rows} == dict.fromkeys(
        ["square", "odd", "no dims"], False
    )
    assert all(row["ms"] > 0 for row in rows)


@pytest.mark.usefixtures("unregistered")
def test_a_row_says_that_another_implementation_lacked_memory(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    calls: list[int] = []

    def lack(*_: Any, **given: Any) -> Any:
        calls.append(1)
        if len(calls) > 1:
            raise torch.OutOfMemoryError("CUDA out of memory")
        return given["x"]

    monkeypatch.setattr(torch, "compile", lambda function, *, dynamic: lack)
    alone = measure.Bench(EFFORT, Peers({}), "cpu", None)
    beside_another = measure.Bench(EFFORT, Peers({}), "cpu", references.Kept("cpu"))

    row, lacking = (bench.row(PLANNED[0]) for bench in (alone, beside_another))

    assert not row["out_of_memory"]
    assert lacking["out_of_memory"]
    assert lacking["compile_ms"] is None
    assert lacking["error"] is None
    assert lacking["ms"] > 0


def test_no_case_is_compiled_ahead_after_the_end() -> None:
    with workers.Workers(1, EFFORT, Peers({}), "cpu", references=False) as processes:
        assert processes.compile(PLANNED, seconds=0) == []


def test_a_process_that_ended_is_replaced() -> None:
    with workers.Workers(1, EFFORT, Peers({}), "cpu", references=False) as processes:
        (process,) = processes._processes.values()
        process.kill()
        row, seconds = processes.row(PLANNED[0])

    assert row["case"] == "square"
    assert seconds[phases.TIMING] > 0


def test_a_case_that_ends_two_processes_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    with workers.Workers(1, EFFORT, Peers({}), "cpu", references=False) as processes:
        start = processes._start

        def start_dead() -> Connection:
            connection = start()
            processes._processes[connection].kill()
            return connection

        monkeypatch.setattr(processes, "_start", start_dead)
        (process,) = processes._processes.values()
        process.kill()
        with pytest.raises(RuntimeError, match="that measured permute square have ended"):
            processes.row(PLANNED[0])
