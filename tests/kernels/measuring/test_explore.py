"""The search for slow and wrong calls draws the same cases everywhere, and finds what was planted."""

from __future__ import annotations

import dataclasses
import json
import math
import time
from typing import TYPE_CHECKING, Any

import pytest
import torch

from bench.kernels import explore, explore_domains, explore_page, explore_patterns, measure, workers
from bench.kernels.__main__ import main
from bench.kernels.explore_draw import SMALL, Draw, Range
from bench.kernels.peers import Peers
from tests.kernels.measuring.small_bench import EFFORT, MACHINE
from warpcall_kernels import Op, ops
from warpcall_kernels.execution import implementations as _implementations
from warpcall_kernels.op.cases import Case, Sample
from warpcall_kernels.op.declaration import Meta

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from pathlib import Path

EACH_OP = pytest.mark.parametrize("op", ops().values(), ids=lambda op: op.name)
RANGES = pytest.mark.parametrize("within", [Range(), SMALL], ids=["default", "small"])
ROW: dict[str, Any] = {
    "op": "permute",
    "case": "#0 [2,3] fp32, dims (1,0)",
    "number": 0,
    "command": "python -m bench.kernels explore permute --seed 1 --only 0",
    "contiguous": True,
    "bytes": 48,
    "ms": 0.5,
    "copy_ms": 0.25,
    "eager_ms": 1.0,
    "compile_ms": None,
    "status": "ok",
    "error": None,
}


def row(number: int, **others: Any) -> dict[str, Any]:
    command = f"python -m bench.kernels explore permute --seed 1 --only {number}"
    return ROW | {"case": f"#{number}", "number": number, "command": command} | others


@EACH_OP
def test_a_seed_and_a_number_give_one_case(op: Op) -> None:
    def drawn(seed: int, number: int) -> tuple[Any, ...]:
        case = explore_domains.case_of(op, seed, number, Range())
        return case.name, dict(case.inputs), dict(case.params), case.seed

    forwards = [drawn(1, number) for number in range(20)]
    backwards = [drawn(1, number) for number in reversed(range(20))]

    assert forwards == backwards[::-1]
    assert forwards != [drawn(2, number) for number in range(20)]


def test_the_cases_of_a_seed_are_the_same_on_each_machine() -> None:
    names = [
        explore_domains.case_of(ops()[name], 47, 5, Range()).name
        for name in ("permute", "masked-softmax", "isin")
    ]

    assert names == [
        "#5 channel shuffle, channels last: [3,1124,8,8,64] fp32, dims (0,1,2,4,3)",
        "#5 [1,1,1,8192] fp16, bias [1,1,1,8192] bf16",
        "#5 [651,112] fp16, test_elements [1] (sparse values)",
    ]


@EACH_OP
@RANGES
def test_ops_take_the_cases_of_their_domains(op: Op, within: Range) -> None:
    sizes: list[int] = []

    for number in range(300):
        case = explore_domains.case_of(op, 3, number, within)
        metas = {name: Meta(s.shape, s.dtype) for name, s in case.inputs.items()}
        params = op.check_params(case.params)
        op.check(metas, params)
        for sample in case.inputs.values():
            sample.check("x")
        sizes.append(op.bytes_moved(**metas, **params))

    assert all(within.least <= size <= within.most for size in sizes)
    middle = math.sqrt(within.least * within.most)
    assert 0.35 < sum(size < middle for size in sizes) / len(sizes) < 0.65


@pytest.mark.parametrize("name", explore_domains.DOMAINS)
def test_a_domain_has_patterns_layouts_and_dtypes(name: str) -> None:
    op = ops()[name]
    cases = [explore_domains.case_of(op, 0, number, Range()) for number in range(300)]

    assert sum(":" in case.name for case in cases) > 30
    layouts = {sample.layout for case in cases for sample in case.inputs.values()}
    assert layouts == {"contiguous", "strided", "offset", "expanded", "transposed"}
    assert len({next(iter(case.inputs.values())).dtype for case in cases}) >= 4


def test_softmax_has_masks_of_every_kind() -> None:
    op = ops()["masked-softmax"]
    cases = [explore_domains.case_of(op, 0, number, Range()) for number in range(200)]

    found = [(c.inputs["x"].shape, c.inputs["mask"].shape) for c in cases if "mask" in c.inputs]
    assert any(mask == x and 1 not in x for x, mask in found)
    assert any(len(x) == 4 and mask == (1, 1, *x[-2:]) and x[0] > 1 for x, mask in found)
    assert any(len(x) == 4 and mask == (x[0], 1, 1, x[-1]) and x[0] > 1 for x, mask in found)
    assert {c.inputs["mask"].dtype for c in cases if "mask" in c.inputs} == {
        torch.bool,
        torch.uint8,
    }
    assert any("lengths" in case.inputs for case in cases)
    assert any(case.params["causal"] for case in cases)


@pytest.mark.parametrize("which", explore_patterns.REARRANGEMENTS, ids=lambda which: which.name)
def test_a_rearrangement_moves_all_of_its_axes(which: explore_patterns.Rearrangement) -> None:
    for number in range(10):
        draw = Draw(f"{number}", Range())
        name, shape, dims = explore_patterns.rearrangement(draw, 1 << 20, which)

        assert name == which.name
        assert sorted(dims) == [*range(len(shape))]
        assert dims != tuple(sorted(dims))
        assert 1 << 17 < math.prod(shape) < 1 << 21


def test_an_op_without_a_domain_has_the_sizes_that_it_declares() -> None:
    op = dataclasses.replace(ops()["conv"], name="another")

    case = explore_domains.case_of(op, 0, 1, Range(1 << 10, 1 << 30))

    assert set(case.inputs) >= {"x", "weight"}


class InProcess:
    """Measures cases in this process, and notes what it is asked for."""

    def __init__(self, function: Callable[[measure.Planned], dict[str, Any]]) -> None:
        self._function = function
        self.measured: list[tuple[str, bool]] = []
        self.compiled: list[list[str]] = []

    def compile(self, planned: Sequence[measure.Planned], seconds: float) -> None:
        self.compiled.append([one.case.name for one in planned])

    def row(self, planned: measure.Planned) -> dict[str, Any]:
        self.measured.append((planned.case.name.split()[0], planned.compiled))
        return self._function(planned)


def cases_of(count: int) -> list[explore.Numbered]:
    """Small cases of permute."""
    op = ops()["permute"]
    return [
        explore.Numbered(
            measure.Planned(
                op, "explore", explore_domains.case_of(op, 1, number, Range(2048, 4096))
            ),
            number,
            explore.command_of(op, 1, number, Range()),
        )
        for number in range(count)
    ]


def wrong(x: torch.Tensor, dims: tuple[int, ...]) -> torch.Tensor:
    return torch.zeros_like(x.permute(dims).contiguous())


def slow(x: torch.Tensor, dims: tuple[int, ...]) -> torch.Tensor:
    time.sleep(0.02)
    return x.permute(dims).clone(memory_format=torch.contiguous_format)


def quick(x: torch.Tensor, dims: tuple[int, ...]) -> torch.Tensor:
    return x.permute(dims).clone(memory_format=torch.contiguous_format)


def test_a_wrong_and_a_slow_kernel_come_first(monkeypatch: pytest.MonkeyPatch) -> None:
    cases = cases_of(5)
    planted: dict[tuple[int, ...], Any] = {cases[1].planned.case.inputs["x"].shape: slow}
    planted[cases[3].planned.case.inputs["x"].shape] = wrong
    ours = dataclasses.replace(
        _implementations._known["warpcall"],
        build=lambda op, params: lambda x: planted.get(tuple(x.shape), quick)(x, params["dims"]),
    )
    monkeypatch.setattr(_implementations, "_known", {**_implementations._known, "warpcall": ours})
    bench = measure.Bench(EFFORT, Peers({}), "cpu", None)

    rows = [*explore.explored(cases, InProcess(bench.row), 2, None, always=False)]

    assert sorted(one["number"] for one in rows) == [0, 1, 2, 3, 4]
    assert [one["number"] for one in explore_page.worst_first(rows)[:2]] == [3, 1]
    text = explore_page.summary(rows, 2)
    first = text.split("The worst cases of permute:\n")[1].splitlines()
    assert "WRONG_RESULT: out differs" in first[0]
    assert first[1].strip() == "python -m bench.kernels explore permute --seed 1 --only 3"
    assert "ratio 0.0" in first[2]


def measured(planned: measure.Planned) -> dict[str, Any]:
    """A row whose share is 0.5 for odd numbers, and 1 for even ones."""
    number = int(planned.case.name.split()[0][1:])
    empty = measure.failed_row(planned, "ok", "")
    times = {"ms": 0.5, "copy_ms": 0.25 if number % 2 else 0.5, "eager_ms": 1.0}
    return empty | {"error": None} | times | {"compile_ms": 0.4 if planned.compiled else None}


def test_torch_compile_is_timed_where_our_share_is_low() -> None:
    measurer = InProcess(measured)

    rows = [*explore.explored(cases_of(4), measurer, 4, None, always=False)]

    assert measurer.measured[4:] == [("#1", True), ("#3", True)]
    assert [len(names) for names in measurer.compiled] == [4, 2]
    assert {one["number"]: one["compile_ms"] for one in rows} == {0: None, 1: 0.4, 2: None, 3: 0.4}


def test_a_row_has_its_case_as_python() -> None:
    (numbered,) = cases_of(1)
    wanted = numbered.planned.case

    (found,) = explore.explored([numbered], InProcess(measured), 1, None, always=False)

    case = eval(found["python"], {"Case": Case, "Sample": Sample, "torch": torch})
    assert (case.name, case.inputs, case.params) == (wanted.name, wanted.inputs, wanted.params)


def test_torch_compile_is_timed_in_each_case_if_asked_for() -> None:
    measurer = InProcess(measured)

    rows = [*explore.explored(cases_of(3), measurer, 1, None, always=True)]

    assert measurer.measured == [("#0", True), ("#1", True), ("#2", True)]
    assert all(one["compile_ms"] == 0.4 for one in rows)


def test_a_reference_that_ends_the_process_leaves_our_time() -> None:
    def crash(planned: measure.Planned) -> dict[str, Any]:
        if planned.compiled:
            return measure.failed_row(planned, "crashed", "it has ended")
        return measured(planned)

    (found,) = explore.explored(cases_of(2)[1:], InProcess(crash), 1, None, always=False)

    assert (found["ms"], found["error"]) == (0.5, None)


def test_no_case_begins_after_the_end() -> None:
    measurer = InProcess(measured)

    rows = [*explore.explored(cases_of(3), measurer, 2, time.monotonic() - 1, always=False)]

    assert (rows, measurer.measured) == ([], [])


class Ending(workers.Workers):
    """Processes that end before they answer, or take too long."""

    def __init__(self, error: Exception) -> None:
        self._error = error

    def row(
        self, planned: measure.Planned, limit_s: float | None = None
    ) -> tuple[dict[str, Any], Mapping[str, float]]:
        raise self._error


def test_a_case_that_ends_its_processes_is_a_row() -> None:
    processes = explore.Processes(Ending(RuntimeError("they have ended")), False, 1.0)

    (found,) = explore.explored(cases_of(1), processes, 1, None, always=False)

    assert (found["status"], found["error"]) == ("crashed", "they have ended")
    assert explore_page.failed(found)


def test_a_case_that_takes_too_long_is_a_row() -> None:
    planned = cases_of(1)[0].planned

    with workers.Workers(1, EFFORT, Peers({}), "cpu", references=False) as processes:
        found, _ = processes.row(planned, 0.0)

    assert found["status"] == "timeout"


def test_quantiles_are_the_tenth_percentile_and_the_median() -> None:
    found = explore_page.Quantiles.of([None, *(n / 10 for n in range(11))])

    assert found == pytest.approx((0.1, 0.5))
    assert explore_page.Quantiles.of([None]) is None


def test_the_ratio_is_of_the_faster_of_eager_and_compile() -> None:
    assert explore_page.ratio(ROW) == 2.0
    assert explore_page.ratio(ROW | {"compile_ms": 0.4}) == pytest.approx(0.8)
    assert explore_page.ratio(ROW | {"ms": None}) is None
    assert explore_page.is_slower(ROW | {"compile_ms": 0.4})
    assert not explore_page.is_slower(ROW | {"ms": 0.005, "eager_ms": 0.001})


def test_failures_come_before_what_torch_does_faster_and_low_shares() -> None:
    rows = [
        row(0),
        row(1, copy_ms=0.1),
        row(2, compile_ms=0.3),
        row(3, ms=None, error="differs", status="wrong_result"),
        row(4, ms=None, error="needs a GPU", status="unchecked"),
    ]

    assert [one["number"] for one in explore_page.worst_first(rows)] == [3, 2, 1, 0, 4]
    assert [explore_page.failed(one) for one in rows] == [False, False, False, True, False]


def results(gpu: str, *rows: dict[str, Any]) -> dict[str, Any]:
    about = {"seed": 1, **Range()._asdict(), "checked_only": False}
    return {"machine": MACHINE | {"gpu": gpu}, "explore": about, "rows": rows}


def test_a_page_has_columns_for_each_gpu(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    files = [tmp_path / "one.json", tmp_path / "other.json"]
    files[0].write_text(json.dumps(results("NVIDIA H200", row(0), row(1, contiguous=False))))
    files[1].write_text(json.dumps(results("NVIDIA H100 80GB HBM3", row(0, ms=0.25))))

    status = main(["report", *map(str, files)])

    page = capsys.readouterr().out
    assert status == 0
    assert "seeds 1; 32 KiB to 256 MiB; 2 cases.\n" in page
    assert "| op | h200 cases | h200 failed | h200 share |" in page
    assert (
        "| permute | 1 | 0 | 0.50, 0.50 | 2.00, 2.00 | 0 | 1 | 0 | 1.00, 1.00 | 4.00, 4.00 | 0 |"
        in page
    )
    assert "| permute, other layouts | 1 | 0 | 0.50, 0.50 | 2.00, 2.00 | 0 | 0 | 0 | -, - |" in page
    assert "| #0 | 500.0 | 250.0 | 1000.0 |  | 0.50 | 2.00 | 250.0 | 250.0 | 1000.0 |" in page
    assert f"`{ROW['command']}`" in page


def test_files_of_other_commands_are_not_reported_together(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "bench.json"
    file.write_text(json.dumps({"machine": MACHINE, "rows": []}))

    assert main(["report", str(file), str(file)]) == 1
    assert "only files that explore wrote" in capsys.readouterr().err


def test_times_need_a_gpu(capsys: pytest.CaptureFixture[str]) -> None:
    if torch.cuda.is_available():
        pytest.skip("there is one")

    assert main(["explore", "permute"]) == 1
    assert "explore needs a CUDA GPU, unless with --check" in capsys.readouterr().err


def test_bounds_that_leave_no_bytes_are_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["explore", "--check", "--least-bytes", "9", "--most-bytes", "8"]) == 1
    assert "--least-bytes must be at least 1 and at most --most-bytes" in capsys.readouterr().err


def test_results_are_checked_without_a_gpu(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "explore.json"
    small = ["--check", "--small", "--seed", "1", "--json", str(file)]

    status = main(["explore", "permute", *small, "--only", "3", "5"])

    found = json.loads(file.read_text())
    assert status == 0
    assert [one["number"] for one in found["rows"]] == [3, 5]
    assert [one["status"] for one in found["rows"]] == ["ok", "ok"]
    assert found["rows"][0]["command"].endswith("explore permute --seed 1 --small --only 3")
    assert found["explore"] == {"seed": 1, **SMALL._asdict(), "checked_only": True}
    assert ": right\n" in capsys.readouterr().out
