"""The table of Nsight Compute, and the text that is made of it."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.service.worker.ncu_tables import table
from warpcall_service.profilers.raw_page import NoMetrics, parse_raw_page
from warpcall_service.profilers.summary import MAX_BYTES, summary

TEXT = """\
masked-softmax x=BF16[8192,4096]

kernel 1 of 1: _softmax
  time       43.62 us; grid 8192x1x1, block 256x1x1, 7.76 waves
  limiter    memory (DRAM), at 83.2 % of its peak
  of peak    memory 83.2 %, DRAM 83.2 %, L2 40.5 %, L1 31.0 %, compute 35.1 %
  occupancy  91.5 %, 100.0 % possible (limited by registers and warps)
  stalls     long scoreboard 60.0 %, barrier 20.0 %, wait 15.0 %
  needs      32 registers, 1.062 KiB shared memory of a block; no spills
"""
OF_AN_H200 = """\
a softmax in Triton and torch's

kernel 1 of 2: softmax_kernel
  time       32.35 us, 23.2 % of the call; grid 8192x1x1, block 256x1x1, 7.76 waves
  limiter    memory (DRAM), at 70.6 % of its peak
  of peak    memory 70.6 %, DRAM 70.6 %, L2 86.0 %, L1 39.4 %, compute 58.5 %
  occupancy  92.0 %, 100.0 % possible (limited by registers and warps)
  stalls     long scoreboard 45.9 %, barrier 14.7 %, not selected 12.9 %
  needs      32 registers, 1.031 KiB shared memory of a block; no spills

kernel 2 of 2: void at::<unnamed>::cunn_SoftMaxForwardReg<c10::BFloat16, float, c10::BFloat16, ...
  time       107.2 us, 76.8 % of the call; grid 8192x1x1, block 1024x1x1, 31 waves
  limiter    compute, at 75.3 % of its peak
  of peak    memory 26.5 %, DRAM 22.5 %, L2 33.2 %, L1 27.2 %, compute 75.3 %
  occupancy  94.0 %, 100.0 % possible (limited by registers and warps)
  stalls     not selected 33.4 %, barrier 11.8 %, long scoreboard 11.1 %
  needs      30 registers, 1.125 KiB shared memory of a block; no spills
"""
MEMORY = "gpu__compute_memory_throughput_avg_pct_of_peak_sustained_elapsed"
DRAM = "gpu__dram_throughput_avg_pct_of_peak_sustained_elapsed"
COMPUTE = "sm__throughput_avg_pct_of_peak_sustained_elapsed"


def shown(printed: str, most: int = 16) -> str:
    return summary("masked-softmax x=BF16[8192,4096]", parse_raw_page(printed), most=most)


def line(text: str, name: str) -> str:
    return next(one for one in text.splitlines() if one.strip().startswith(name)).split(None, 1)[1]


def test_the_text_of_one_kernel() -> None:
    assert shown(table()) == TEXT


def test_lines_before_the_table_are_skipped() -> None:
    assert shown("==PROF== Connected\n==WARNING== slow\n" + table()) == TEXT


@pytest.mark.parametrize(
    ("changed", "limiter"),
    [
        ({COMPUTE: "90"}, "compute, at 90.0 % of its peak"),
        (
            {DRAM: "20", "lts__throughput_avg_pct_of_peak_sustained_elapsed": "84"},
            "memory (L2), at 83.2 % of its peak",
        ),
        ({MEMORY: "59.9"}, "latency, since no unit is above 60 % of its peak; the kernel waits"),
        (
            {MEMORY: "3", "launch__waves_per_multiprocessor": "0.2"},
            "latency, since no unit is above 60 % of its peak; the grid is too small",
        ),
    ],
)
def test_the_limiter(changed: dict[str, str], limiter: str) -> None:
    assert line(shown(table(**changed)), "limiter").startswith(limiter)


def test_spills_are_named() -> None:
    text = shown(table(derived__local_spilling_requests="1,024"))

    assert "; 1024 requests to memory for spilled registers" in line(text, "needs")


@pytest.mark.parametrize("value", ["nan", "-nan", "inf", "n/a", ""])
@pytest.mark.parametrize(
    "name", ["gpu__time_duration_sum", MEMORY, DRAM, COMPUTE, "launch__registers_per_thread"]
)
def test_a_counter_without_a_value_is_an_error(name: str, value: str) -> None:
    with pytest.raises(NoMetrics, match="of the kernel _softmax, which is no number"):
        parse_raw_page(table(**{name: value}))


def test_a_metric_that_only_some_gpus_have_may_be_missing() -> None:
    text = shown(
        table(
            derived__local_spilling_requests="n/a",
            launch__shared_mem_per_block="nan",
            lts__throughput_avg_pct_of_peak_sustained_elapsed="",
        )
    )

    assert line(text, "needs") == "32 registers, unknown shared memory of a block; spills unknown"
    assert "L2 unknown" in line(text, "of peak")


@pytest.mark.parametrize(
    "printed",
    ["", "==ERROR== no such file\n", "\n".join(table().splitlines()[:2]), table().splitlines()[0]],
)
def test_a_report_without_kernels_is_an_error(printed: str) -> None:
    with pytest.raises(NoMetrics, match="holds no kernel"):
        parse_raw_page(printed)


def test_a_unit_that_is_not_known_is_an_error() -> None:
    with pytest.raises(NoMetrics, match="unknown unit 'fortnight'"):
        parse_raw_page(table().replace('"ns"', '"fortnight"'))


def test_many_kernels_are_cut_to_those_that_take_longest() -> None:
    kernels = [
        {"Kernel Name": f"_{'k' * 200}{n}", "gpu__time_duration.sum": f"{1000 + n}"}
        for n in range(16)
    ]

    text = shown(table(*kernels))

    assert len(text.encode()) <= MAX_BYTES
    assert "kernel 16 of 16" in text
    assert "kernel 1 of 16" not in text
    assert "further kernels, " in text
    assert text.endswith("Only the first 16 launches of the call are profiled.\n")


def test_names_of_kernels_stay_on_their_line() -> None:
    text = shown(table({"Kernel Name": "a\nb\x1b[31m"}))

    assert "kernel 1 of 1: a\ufffdb\ufffd[31m\n" in text


def test_a_long_heading_does_not_exceed_the_limit() -> None:
    text = summary("x" * 10_000, parse_raw_page(table()), most=16)

    assert len(text.encode()) <= MAX_BYTES
    assert "kernel 1 of 1" in text


def test_the_table_of_an_h200() -> None:
    recorded = Path(__file__).with_name("ncu_softmax.csv").read_text()  # by ncu 2025.3.1, cut

    text = summary("a softmax in Triton and torch's", parse_raw_page(recorded), most=16)

    assert text == OF_AN_H200
