"""Which kernels isin launches, and what they compute where a test sets their thresholds."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator

import pytest
import torch
import triton.language as tl

from tests.gpu import every_kernel
from tests.kernels.isin.forced import (
    by_comparison,
    by_variant,
    leave_out_shared,
    planned,
    planned_set,
)
from warpcall_kernels._isin import few_plan, rule, table
from warpcall_kernels._isin import plan as module
from warpcall_kernels._isin.rule import Variant, choose
from warpcall_kernels.isin import isin
from warpcall_kernels.op.launch import Launch


@pytest.fixture
def without_scan(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """The rule as it is for more elements: without SCAN, which takes calls of the size of a test."""
    monkeypatch.setattr(rule, "SCANNED_PAIRS", 0)
    module.plan.cache_clear()
    yield
    module.plan.cache_clear()


@pytest.fixture
def without_shared(monkeypatch: pytest.MonkeyPatch, without_scan: None) -> None:
    """The rule as it is for more test elements: without SCAN and SHARED."""
    leave_out_shared(monkeypatch)


SIZES = sorted({max(1, (1 << k) + d) for k in range(26) for d in (-1, 0, 1)})
LARGE_LAUNCHES = ["prepare_kernel", "build_kernel", "probe_kernel"]
BITS_LAUNCHES = ["prepare_kernel", "build_bits_kernel", "look_up_bits_kernel"]


@pytest.mark.usefixtures("without_scan")
@pytest.mark.thinned(together=1)
@pytest.mark.parametrize(
    ("n", "dtype", "kernels", "kind"),
    [
        (100, torch.int32, ["compare_kernel"], ""),
        (200, torch.int32, ["compare_kernel"], ""),
        (300, torch.int32, ["shared_kernel"], " hash"),
        (2000, torch.uint8, ["shared_kernel"], " bits"),
        (2000, torch.int32, ["shared_kernel"], " hash"),
        (4000, torch.int64, ["shared_kernel"], " hash"),
        (4000, torch.float32, ["shared_kernel"], " hash"),
        (33_000, torch.int16, BITS_LAUNCHES, ""),
        (4100, torch.int64, LARGE_LAUNCHES, " either 2"),
        (5000, torch.int32, LARGE_LAUNCHES, " either 4"),
        (5000, torch.float32, LARGE_LAUNCHES, " hash 4"),
        (5000, torch.float64, LARGE_LAUNCHES, " hash 2"),
    ],
)
@pytest.mark.parametrize("step", [3, 400_000], ids=["dense", "sparse"])
def test_each_regime_runs_its_kernels(
    n: int,
    dtype: torch.dtype,
    kernels: list[str],
    kind: str,
    step: int,
    device: str,
    launched: list[Launch],
) -> None:
    x = torch.arange(0, 100 * step, step // 3, device=device).to(dtype)
    test = torch.arange(0, n * step, step, device=device).to(dtype)

    out = isin(x, test)

    assert [described(launch) for launch in launched] == [
        name if name == "prepare_kernel" else name + kind for name in kernels
    ]
    assert torch.equal(out, by_comparison(x, test))


@pytest.mark.usefixtures("without_scan")
@pytest.mark.parametrize("dtype", [torch.int32, torch.int64, torch.float32])
@pytest.mark.parametrize("step", [3, 400_000], ids=["dense", "sparse"])
def test_a_filter_of_few_elements_rejects_many_test_elements(
    dtype: torch.dtype,
    step: int,
    device: str,
    launched: list[Launch],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for name in ("NARROW", "WIDE", "FLOAT32"):
        monkeypatch.setattr(rule, name, rule.WIDE._replace(shared=(), reversed=((900, 4),)))
    module.plan.cache_clear()
    test = torch.arange(0, 1000 * step, step, device=device).to(dtype)
    x = torch.arange(-step, 60 * step, step // 3, device=device).to(dtype)
    out = isin(x, test, invert=True)
    module.plan.cache_clear()

    assert [launch.kernel.fn.__name__ for launch in launched] == [
        *("prepare_kernel", "add_elements_kernel", "keep_kernel", "collect_kernel")
    ]
    assert torch.equal(out, ~by_comparison(x, test))


def test_few_elements_share_their_comparisons_with_many_test_elements() -> None:
    """SPLIT, GROUPS and BLOCK by dtype, elements and test elements."""
    compared = {
        (tl.int32, 1 << 12, 1 << 7): (1, 4, 128),
        (tl.int32, 1 << 12, (1 << 7) + 1): (4, 1, 32),
        (tl.int32, (1 << 12) + 1, 1 << 8): (1, 4, 128),
        (tl.float64, 1 << 12, 1 << 6): (1, 1, 64),
        (tl.float64, 1 << 12, (1 << 6) + 1): (4, 1, 32),
        (tl.int64, 1, 1 << 8): (8, 1, 16),
        (tl.int64, (1 << 12) + 1, 1 << 8): (1, 4, 128),
        (tl.int64, 1 << 17, 1): (1, 1, 512),
    }
    found = {}
    for common, m, n in compared:
        forced = module.launches(Variant.COMPARE, common, m, n, invert=False, words=(None, None))
        assert isinstance(forced, Launch)
        found[common, m, n] = tuple(forced.arguments[key] for key in ("SPLIT", "GROUPS", "BLOCK"))

    assert found == compared


@pytest.mark.thinned
@pytest.mark.parametrize("dtype", [torch.int32, torch.int64, torch.float32, torch.float64])
@pytest.mark.parametrize("tests", [129, 255, 256])
@pytest.mark.parametrize("elements", [1, 15, 33, 130])
def test_shared_comparisons_find_what_is_there(
    dtype: torch.dtype, tests: int, elements: int, device: str
) -> None:
    test = torch.arange(0, 7 * tests, 7, device=device).to(dtype)
    x = torch.cat([test[-elements // 2 :], test[: elements // 2] + 1])
    if dtype.is_floating_point:
        x[0], test[3] = -0.0, float("nan")

    plan = planned(Variant.COMPARE, x, test)

    assert isinstance(plan, Launch)
    assert plan.arguments["SPLIT"] > 1
    assert torch.equal(by_variant(Variant.COMPARE, x, test), by_comparison(x, test))


@pytest.mark.parametrize("dtype", [torch.int32, torch.int64])
def test_the_range_of_few_elements_is_found_by_the_programs_that_add_them(
    dtype: torch.dtype,
) -> None:
    """RANGED, BLOCK, and whether the first launch looks for the range, by elements."""
    wide = dtype == torch.int64
    ranged = {
        1: (1, 32, False),
        (1 << 10) + 1: (1 << 11, 128 if wide else 32, False),
        (1 << 11) + 1: (1 << 12, 256 if wide else 128, False),
        1 << 12: (1 << 12, 256 if wide else 128, False),
        (1 << 12) + 1: (0, 64, True),
    }
    found = {}
    for elements in ranged:
        forced = planned_set(Variant.REVERSED, dtype, elements, 1 << 16)
        prepare, add = (launch.arguments for launch, _takes in forced.launches[:2])
        found[elements] = (add["RANGED"], add["BLOCK"], prepare["RANGE"])

    assert found == ranged


def test_the_programs_of_large_that_look_up() -> None:
    """Elements of a program at a time, its warps, and its blocks, by elements."""
    looked_up = {
        (torch.int32, 1 << 17): (128, 4, 1),
        (torch.int64, (1 << 17) + 1): (256, 8, 1),
        (torch.int64, (1 << 18) + 1): (256, 4, 1),
        (torch.int32, (1 << 20) + 1): (512, 8, 1),
        (torch.int32, (1 << 21) + 1): (256, 4, 2),
    }
    found = {}
    for dtype, m in looked_up:
        arguments = planned_set(Variant.LARGE, dtype, m, 5000).launches[-1][0].arguments
        found[dtype, m] = tuple(arguments[key] for key in ("BLOCK", "num_warps", "BLOCKS"))

    assert found == looked_up


@pytest.mark.parametrize(("m", "blocks"), [(1 << 21, 2), ((1 << 21) + 1, 4)])
def test_a_bitmap_of_all_values_of_32_bits_has_more_values_at_a_time(m: int, blocks: int) -> None:
    _zero, build, probe = planned_set(Variant.LARGE, torch.int32, m, 1 << 25).launches

    assert probe[0].arguments["SET"] == "bits"
    assert [build[0].arguments[key] for key in ("BLOCK", "num_warps")] == [128, 2]
    assert [probe[0].arguments[key] for key in ("BLOCK", "num_warps")] == [256, 4]
    assert probe[0].arguments["BLOCKS"] == blocks


def test_the_sanitizers_see_each_variant_that_makes_a_set(monkeypatch: pytest.MonkeyPatch) -> None:
    for changed, name, value in every_kernel.LOWERED_THRESHOLDS:
        monkeypatch.setattr(changed, name, value)
    chosen = {}
    for op, case in every_kernel.further():
        if op == "isin":
            elements, test = case.inputs["elements"], case.inputs["test_elements"]
            m, n = math.prod(elements.shape), math.prod(test.shape)
            chosen[elements.dtype, m, n] = choose(module.DTYPES[elements.dtype], m, n)

    assert {*chosen.values()} == set(Variant) - {Variant.SCAN}
    zeroed_first = {
        planned_set(Variant.REVERSED, *call).launches[1][0].arguments["ZEROED_FIRST"]
        for call, variant in chosen.items()
        if variant is Variant.REVERSED
    }
    assert zeroed_first == {False, True}


@pytest.mark.parametrize("variant", [Variant.LARGE, Variant.REVERSED])
def test_smaller_programs_look_up_among_as_many_test_elements(variant: Variant) -> None:
    looked_up = {
        (1 << 18, 1 << 18): (128, 4, 1),
        (1 << 20, 1 << 20): (128, 4, 1),
        (1 << 20, (1 << 20) - 1): (256, 4, 1),
        ((1 << 20) + 1, 1 << 22): (512, 8, 1),
    }
    found = {}
    for m, n in looked_up:
        arguments = planned_set(variant, torch.int32, m, n).launches[-1][0].arguments
        found[m, n] = (arguments["BLOCK"], arguments["num_warps"], arguments.get("BLOCKS", 1))

    assert found == looked_up


def filtered_from(dtype: torch.dtype) -> int:
    """Test elements from which on FILTERED may be taken."""
    if dtype == torch.float32:
        return rule.EVERY
    return (1 << 20 if dtype.itemsize == 8 else 1 << 21) + 1


@pytest.mark.parametrize("dtype", [torch.int32, torch.int64, torch.float32, torch.float64])
def test_a_set_has_at_most_the_memory_that_the_limits_of_the_op_say(dtype: torch.dtype) -> None:
    common, many = module.DTYPES[dtype], filtered_from(dtype)
    for m, n in itertools.product(SIZES, SIZES):
        variant = choose(common, m, n)
        forced = module.launches(variant, common, m, n, invert=False, words=(None, None))
        if not isinstance(forced, table.SetPlan):
            continue
        nbytes = forced.words * forced.word.itemsize
        if variant is Variant.REVERSED:
            most = max(10.0 * m * dtype.itemsize, 4 << 20)
        else:
            times = 13.5 if n >= many else 8.5
            most = max(times * n * dtype.itemsize, min(32 * n * dtype.itemsize, 4 << 20))
            most = max(most, min(16.5 * n * dtype.itemsize, 8 << 20) if m <= 2_097_152 else 0)
        assert nbytes <= most + 5120, (m, n, variant)


@pytest.mark.usefixtures("without_scan")
@pytest.mark.parametrize("dtype", [torch.int32, torch.int64])
@pytest.mark.parametrize("step", [3, 400_000], ids=["dense", "sparse"])
def test_the_range_of_many_members_is_combined_by_a_launch_of_its_own(
    dtype: torch.dtype,
    step: int,
    device: str,
    launched: list[Launch],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(module, "FUSED_N", 4999)
    module.plan.cache_clear()
    test = torch.arange(-step, 4999 * step, step, device=device).to(dtype)
    x = torch.arange(0, 100 * step, step // 3, device=device).to(dtype)

    out = isin(x, test)
    module.plan.cache_clear()

    assert launched[1].kernel.fn.__name__ == "range_kernel"
    assert torch.equal(out, by_comparison(x, test))


def described(launch: Launch) -> str:
    """The name of a kernel, the kind of set, and the slots of a bucket."""
    which = [str(launch.arguments[key]) for key in ("SET", "BUCKET") if key in launch.arguments]
    return " ".join([launch.kernel.fn.__name__, *which])


@pytest.mark.usefixtures("without_scan")
@pytest.mark.parametrize("dtype", [torch.int32, torch.int64, torch.float32, torch.float64])
@pytest.mark.parametrize("step", [3, 400_000], ids=["dense", "sparse"])
def test_a_set_too_large_for_the_l2_is_filtered(
    dtype: torch.dtype,
    step: int,
    device: str,
    launched: list[Launch],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(table, "FILTERED_BYTES", 1 << 16)
    module.plan.cache_clear()
    test = torch.arange(0, 5000 * step, step, device=device).to(dtype)
    x = torch.cat([test[:700], test[:700] + 1, torch.tensor([0, -1, 3]).to(test)])

    out = isin(x, test)
    module.plan.cache_clear()

    assert all(launch.arguments["FILTER"] for launch in launched[-2:])
    assert torch.equal(out, by_comparison(x, test))


@pytest.mark.thinned
@pytest.mark.usefixtures("without_shared")
@pytest.mark.parametrize("dtype", [torch.int64, torch.float32])
@pytest.mark.parametrize("step", [3, 400_000], ids=["dense", "sparse"])
@pytest.mark.parametrize("elements", [1, 512, 1300])
def test_many_elements_are_asked_for_some_blocks_at_a_time(
    dtype: torch.dtype,
    step: int,
    elements: int,
    device: str,
    launched: list[Launch],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(module, "LOOKED_UP", ((1300, 128, 2, 4),))
    module.plan.cache_clear()
    test = torch.arange(0, 5000 * step, step, device=device).to(dtype)
    x = torch.arange(0, elements * step, step, device=device).to(dtype) // 2

    out = isin(x, test)
    module.plan.cache_clear()

    assert launched[-1].arguments["BLOCKS"] == 4
    assert torch.equal(out, by_comparison(x, test))


@pytest.mark.thinned
@pytest.mark.parametrize("dtype", [torch.int16, torch.uint8, torch.float16, torch.bfloat16])
@pytest.mark.parametrize("elements", [1, 512, 5000])
@pytest.mark.parametrize("invert", [False, True])
def test_short_types_are_looked_up_in_copies_of_a_bitmap(
    dtype: torch.dtype,
    elements: int,
    invert: bool,
    device: str,
    launched: list[Launch],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    leave_out_shared(monkeypatch)
    monkeypatch.setattr(few_plan, "OF_THREAD", ((5000, 1, 16),))
    monkeypatch.setattr(few_plan, "multiprocessors", lambda: 2)
    module.plan.cache_clear()
    values = torch.arange(0, 40_000, 7, device=device)
    test = torch.cat([values.to(dtype), torch.full((3000,), 7.0, device=device).to(dtype)])
    x = torch.arange(elements, device=device).to(dtype)
    if dtype.is_floating_point:
        x[::3] = -0.0
        test[:2] = torch.tensor([float("nan"), 0.0])
        x[-1:] = float("nan")

    out = isin(x, test, invert=invert)
    module.plan.cache_clear()

    assert [launch.kernel.fn.__name__ for launch in launched] == BITS_LAUNCHES
    assert launched[1].arguments["blocks"] == 2
    assert launched[2].arguments["blocks"] == (5 if elements == 5000 else 1)
    assert torch.equal(out, by_comparison(x, test) ^ invert)
