"""The benchmark of the kernels keeps what it has measured, and its page compares by one clock."""

from __future__ import annotations

import gc
import json
import re
from typing import TYPE_CHECKING, Any

import pytest
import torch

from bench.kernels import measure, page, phases, references, report, run
from bench.kernels.peers import Peers
from tests.kernels.measuring.small_bench import CASES, EFFORT, MACHINE, PLANNED, given
from warpcall_kernels import ops

if TYPE_CHECKING:
    from pathlib import Path

ROW = {
    "op": "permute",
    "group": "recorded",
    "case": "some case",
    "bytes": 1000,
    "extra_bytes": 2_000_000,
    "ms": 0.5,
    "p20_ms": 0.4,
    "p80_ms": 0.6,
    "method": "events",
    "copy_ms": 0.25,
    "eager_ms": 2.0,
    "compile_ms": None,
    "best_peer": "another",
    "best_peer_ms": 1.0,
    "peer_clock": "do_bench",
    "do_bench_ms": 0.8,
    "error": None,
}
RECORDED: dict[str, Any] = {
    "machine": "one NVIDIA H200, torch 2.11",
    "ops": {"permute": {"square": {"peers_ms": {"slow": 2.0, "fast": 1.0}}}},
}


def page_of(*rows: dict[str, Any]) -> str:
    return page.markdown({"machine": MACHINE, "rows": rows})


def test_a_report_has_times_ratios_and_shares() -> None:
    text = page_of(ROW)

    assert "| permute | 1 | 50 % | 50 %: some case | 4.00 x | 1.25 x | 1.25 x: some case |" in text
    assert (
        "| some case | 500.0 | 400.0 to 600.0 | 250.0 | 50 % | 2000.0 |  | 800.0 | 1000.0 another "
        "| 1.25 x | 2.0 |" in text
    )


def test_a_peer_is_compared_by_its_own_clock() -> None:
    assert report.ratio(ROW, "best_peer") == pytest.approx(1.0 / 0.8)
    assert report.ratio(ROW, "eager") == pytest.approx(2.0 / 0.5)
    assert report.ratio(ROW | {"do_bench_ms": None}, "best_peer") is None
    assert report.ratio(ROW | {"peer_clock": "graph"}, "best_peer") == pytest.approx(1.0 / 0.5)


def test_the_worst_rows_come_first() -> None:
    rows = [ROW | {"case": name, "ms": ms} for name, ms in (("a", 0.3), ("b", 0.9), ("c", 0.6))]

    tables = page_of(*rows).split("## permute")[1]

    assert re.findall(r"^\| (\w) \|", tables, re.MULTILINE) == ["b", "c", "a"]


def test_exceptions_are_the_cases_that_are_slower_by_more_than_3_percent() -> None:
    rows = [
        ROW | {"case": "level", "best_peer_ms": 0.78},
        ROW | {"case": "slower", "best_peer_ms": 0.4},
        ROW | {"case": "faster", "compile_ms": 0.6},
    ]

    exceptions = page_of(*rows).split("## Exceptions")[1].split("## permute")[0]

    assert "Slower than the best peer by more than 3 %:\n\n- permute slower: 0.50 x\n" in exceptions
    assert "No case is slower than torch.compile by more than 3 %." in exceptions
    assert "level" not in exceptions


def test_families_have_the_median_and_the_worst_case() -> None:
    rows = [ROW | {"case": f"case {ms}", "ms": ms} for ms in (0.25, 0.5, 1.0)]

    assert "| permute | 3 | 50 % | 25 %: case 1.0 |" in page.families(rows)


def test_a_page_without_peers_has_no_columns_for_them() -> None:
    text = page_of(ROW | {"best_peer": None, "best_peer_ms": None, "do_bench_ms": None})

    assert page.NO_PEERS in text
    assert "do_bench" not in text
    assert "best peer" not in text


def test_a_wrong_result_has_no_time_and_comes_first() -> None:
    times = ("ms", "p20_ms", "p80_ms", "copy_ms", "do_bench_ms")
    wrong = ROW | dict.fromkeys(times) | {"case": "broken", "error": "differs"}

    table = page_of(ROW, wrong).split("## permute")[1].splitlines()

    assert table[4].startswith("| broken | wrong |")
    assert "WRONG: differs" in report.line(wrong)


def test_recorded_times_are_of_one_kind_of_gpu(tmp_path: Path) -> None:
    file = tmp_path / "peers.json"
    file.write_text(json.dumps(RECORDED))
    graphs = {"permute": {"square (graph)": RECORDED["ops"]["permute"]["square"]}}

    assert Peers.read(str(file), "NVIDIA H200").best("permute", "square") == (
        "fast",
        1.0,
        "do_bench",
    )
    assert Peers(graphs).best("permute", "square (graph)") == ("fast", 1.0, "graph")
    assert Peers.read(str(file), "NVIDIA H200").best("permute", "odd") is None
    assert Peers.read(str(file), "NVIDIA H100 80GB HBM3").best("permute", "square") is None
    assert Peers.read(None, "NVIDIA H200").best("permute", "square") is None


def test_our_time_by_the_peers_clock_is_taken_where_there_is_a_peer(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(measure, "by_do_bench", lambda op, case: 0.25)
    bench = measure.Bench(EFFORT, Peers(RECORDED["ops"]), "cpu", None)

    square, odd = (bench.row(planned) for planned in PLANNED[:2])

    assert (square["best_peer"], square["best_peer_ms"], square["do_bench_ms"]) == ("fast", 1, 0.25)
    assert (odd["best_peer"], odd["best_peer_ms"], odd["do_bench_ms"]) == (None, None, None)
    assert square["ms"] > 0
    assert square["copy_ms"] > 0


def test_cases_with_peers_are_measured_first_and_reported_in_the_order_of_the_ops(
    tmp_path: Path,
) -> None:
    planned = run.plan(given(tmp_path / "x.json"))
    groups = [p.group for p in planned]
    names = [row["op"] for row in run.in_order([{"op": p.op.name} for p in planned])]

    assert groups == sorted(groups)
    assert len(planned) > 200
    assert list(dict.fromkeys(names)) == list(ops())


def test_an_interrupted_benchmark_keeps_its_rows_and_is_resumed(
    tmp_path: Path, small: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "results.json"
    interrupted = iter([None, KeyboardInterrupt])

    def line(row: Any) -> str:
        if (error := next(interrupted, None)) is not None:
            raise error
        return ""

    monkeypatch.setattr(run, "line", line)
    with pytest.raises(KeyboardInterrupt):
        run.run(given(file))
    kept = [row["case"] for row in json.loads(file.read_text())["rows"]]
    status = run.run(given(file))

    rows = json.loads(file.read_text())["rows"]
    assert kept == ["square"]
    assert status == 0
    assert small == ["square", "odd", "odd", "no dims"]
    assert [row["case"] for row in rows] == ["square", "odd", "no dims"]


def test_rows_of_another_machine_are_not_kept(tmp_path: Path, small: list[str]) -> None:
    file = tmp_path / "results.json"
    file.write_text(json.dumps({"machine": MACHINE | {"gpu": "another"}, "rows": [ROW]}))

    run.run(given(file))

    assert len(json.loads(file.read_text())["rows"]) == len(CASES)


def test_a_case_that_lacked_memory_is_measured_again_by_a_resumed_run(
    tmp_path: Path, small: list[str]
) -> None:
    file = tmp_path / "results.json"
    run.run(given(file))
    results = json.loads(file.read_text())
    results["rows"][1]["out_of_memory"] = True
    file.write_text(json.dumps(results))
    small.clear()

    run.run(given(file))

    assert small == ["odd"]
    assert len(json.loads(file.read_text())["rows"]) == len(CASES)


def test_no_case_begins_after_the_end(tmp_path: Path, small: list[str]) -> None:
    file = tmp_path / "results.json"

    run.run(given(file, seconds=1e-9))

    assert small == []
    assert not file.exists()


def test_an_op_may_compile_for_its_own_time_and_for_what_others_left() -> None:
    permute, conv, case = ops()["permute"], ops()["conv"], CASES[0]

    def allowed(op: Any, **spent: float) -> bool:
        budgeted = references.Budgeted(10)
        for name, seconds in spent.items():
            budgeted.add(ops()[name], seconds)
        return budgeted.implementation(op, case) == references.COMPILED

    assert allowed(permute, conv=4, permute=15)
    assert not allowed(permute, conv=4, permute=17)
    assert allowed(conv, conv=4, permute=17)
    assert allowed(permute, conv=12)
    assert not allowed(conv, conv=12)


def test_the_time_of_phases_is_added_up() -> None:
    times = iter([0.0, 1.0, 4.0, 5.0, 7.0])
    spent = phases.Phases(lambda: next(times))

    for phase in (phases.CHECKING, phases.TIMING, None, phases.CHECKING):
        spent.begin(phase)
    spent.add({phases.TIMING: 0.5, phases.PEERS: 2.0})

    assert spent.seconds == {phases.CHECKING: 3.0, phases.TIMING: 1.5, phases.PEERS: 2.0}
    assert spent.summary() == "checking 3.0 s, do_bench 2.0 s, own timing 1.5 s"


def test_a_row_takes_its_time_in_the_phases_that_its_events_begin() -> None:
    spent = phases.Phases()
    bench = measure.Bench(EFFORT, Peers({}), "cpu", None, spent)

    bench.row(PLANNED[0])

    assert {phases.OWN, phases.CHECKING, phases.PREPARING, phases.TIMING} <= set(spent.seconds)
    again = {"phase": "correctness", "implementation": "warpcall"}
    assert phases.of_event(again, called={"warpcall"}) == phases.CHECKING


def test_a_measured_case_leaves_no_tensors_to_the_garbage_collector() -> None:
    gc.collect()
    before = {id(one) for one in gc.get_objects() if type(one) is torch.Tensor}
    gc.disable()
    try:
        measure.Bench(EFFORT, Peers({}), "cpu", None).row(PLANNED[0])
        left = [
            one.shape
            for one in gc.get_objects()
            if type(one) is torch.Tensor and id(one) not in before
        ]
    finally:
        gc.enable()

    assert left == []
