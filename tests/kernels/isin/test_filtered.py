"""The filtered variant of isin: which of its branches the device takes, and that each is exact."""

from __future__ import annotations

import pytest
import torch
import triton.language as tl
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from tests.kernels.isin.forced import by_comparison, planned_set, run_in
from warpcall_kernels._isin import bloom, filtered_plan, hash_set, plan, rule, table
from warpcall_kernels._isin.plan import DTYPES
from warpcall_kernels._isin.rule import Variant, choose
from warpcall_kernels._isin.table import CandidateSet, Table
from warpcall_kernels.isin import isin
from warpcall_kernels.op.launch import Launch

pytestmark = pytest.mark.slow

JUDGING = filtered_plan.JUDGING  # as on a GPU
TYPES = [torch.int32, torch.int64, torch.float32, torch.float64]


def filtered(x: Tensor, test: Tensor, *, invert: bool = False) -> tuple[Tensor, Tensor]:
    """The result of the filtered variant, and its workspace."""
    forced = planned_set(Variant.FILTERED, x.dtype, len(x), len(test), invert=invert)
    ws = x.new_empty(forced.words, dtype=forced.word)
    return run_in(ws, forced, x, test), ws


def listed(ws: Tensor, x: Tensor, test: Tensor) -> int:
    """How many candidates there were."""
    at = CandidateSet.of(_table(x, test), len(x)).counts
    return sum(ws[at : at + table.SEGMENTS].tolist())


def flag(ws: Tensor) -> int:
    """0, DIRECT if the sample found too many elements, or LATE if the list of candidates is full."""
    return int(ws[hash_set.OVERFLOW.value].item())


def _table(x: Tensor, test: Tensor) -> Table:
    return Table.of(DTYPES[x.dtype], len(test))


def _spread(count: int, dtype: torch.dtype, device: str) -> Tensor:
    """Different values whose range fits into no bitmap of so few of them."""
    step = 900_001 if dtype.itemsize == 4 else (1 << 40) + 12_345_677
    return torch.arange(-count // 2, count - count // 2, device=device).mul(step).to(dtype)


@pytest.mark.thinned(together=1)
@pytest.mark.parametrize("invert", [False, True])
@pytest.mark.parametrize("dtype", TYPES)
def test_test_elements_decide_about_what_the_filter_does_not_reject(
    dtype: torch.dtype, invert: bool, device: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(table, "BLOOM_BYTES", 1)  # so few bits that many others pass
    monkeypatch.setattr(table, "MOST_HITS", table.JUDGED)
    values = _spread(1800, dtype, device)
    test, x = values[::2].contiguous(), torch.cat([values[600:900], values[:1].expand(300)])

    out, ws = filtered(x, test, invert=invert)

    assert torch.equal(out, by_comparison(x, test) ^ invert)
    assert flag(ws) == 0
    assert listed(ws, x, test) > 450  # 450 are members


@pytest.mark.thinned(together=1)
@pytest.mark.parametrize("invert", [False, True])
@pytest.mark.parametrize("dtype", TYPES)
def test_too_many_candidates_are_looked_up_in_a_set_of_all_test_elements(
    dtype: torch.dtype, invert: bool, device: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(table, "LEAST_ROOM", 1)
    monkeypatch.setattr(table, "SEGMENTS", 4)
    monkeypatch.setattr(table, "MOST_HITS", table.JUDGED)  # the sample decides nothing
    values = _spread(1800, dtype, device)
    test, x = values[::2].contiguous(), values[:1501]

    out, ws = filtered(x, test, invert=invert)

    assert torch.equal(out, by_comparison(x, test) ^ invert)
    assert flag(ws) == bloom.LATE.value


@pytest.mark.thinned(together=1)
@pytest.mark.parametrize("invert", [False, True])
@pytest.mark.parametrize("dtype", TYPES)
def test_if_the_set_of_test_elements_is_full_candidates_are_compared_with_all(
    dtype: torch.dtype, invert: bool, device: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(table, "MOST_HITS", table.JUDGED)
    values = _spread(600, dtype, device)
    test, x = values[::2].contiguous(), values[:201]
    for slots, full in ((table.KEPT_SLOTS, 0), (0, 1)):  # 0 leaves MIN_SLOTS, fewer than members
        monkeypatch.setattr(table, "KEPT_SLOTS", slots)

        out, ws = filtered(x, test, invert=invert)

        assert torch.equal(out, by_comparison(x, test) ^ invert)
        assert ws[hash_set.FULL.value].item() == full
        assert flag(ws) == 0


@pytest.mark.parametrize("dtype", TYPES)
def test_few_test_elements_are_kept(
    dtype: torch.dtype, device: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Those that equal a candidate, and few others."""
    monkeypatch.setattr(table, "MOST_HITS", table.JUDGED)
    values = _spread(8000, dtype, device)
    test, x = values[::2].contiguous(), values[:1001]

    out, ws = filtered(x, test)

    kept = CandidateSet.of(_table(x, test), len(x))
    slots = ws[hash_set.HEADER : hash_set.HEADER + kept.slots].to(torch.int64)
    assert torch.equal(out, torch.isin(x, test))
    assert 500 <= int((slots != 0).sum()) <= 550


@pytest.mark.thinned(together=1)
@pytest.mark.parametrize("invert", [False, True])
@pytest.mark.parametrize("dtype", [torch.int32, torch.int64])
def test_the_first_and_the_last_block_do_not_speak_for_the_others(
    dtype: torch.dtype, invert: bool, device: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A bitmap that holds these may hold no others."""
    monkeypatch.setattr(plan, "SAMPLED_MEMBERS", 0)
    for outlier in (torch.iinfo(dtype).min, torch.iinfo(dtype).max, 4000):
        test = torch.arange(0, 8000, 2, device=device, dtype=dtype)
        test[2000] = outlier
        x = torch.cat([torch.arange(-500, 9000, device=device, dtype=dtype), test[2000:2001]])

        out, _ws = filtered(x, test, invert=invert)

        assert torch.equal(out, torch.isin(x, test, invert=invert))


@pytest.mark.parametrize("dtype", TYPES)
def test_programs_that_run_while_the_list_overflows_do_not_depend_on_it(
    dtype: torch.dtype, device: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Warps of a program that read the flag of their own launch once took different branches."""
    if device == "cpu":
        pytest.skip("Triton's interpreter runs one program after the other")
    monkeypatch.setattr(table, "MOST_HITS", table.JUDGED)
    values = _spread(1 << 20, dtype, device)
    test, x = values[::2].contiguous(), values.repeat(16)

    out, ws = filtered(x, test)

    assert torch.equal(out, torch.isin(x, test))
    assert flag(ws) == bloom.LATE.value


@pytest.mark.thinned(together=1)
@pytest.mark.parametrize("invert", [False, True])
@pytest.mark.parametrize("dtype", TYPES)
def test_a_sample_of_the_elements_decides_that_all_are_looked_up_in_a_set(
    dtype: torch.dtype, invert: bool, device: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    values = _spread(20_000, dtype, device)
    test = values[::2].contiguous()
    for x, expected in ((values[:9001], bloom.DIRECT.value), (values[1::2], 0)):
        out, ws = filtered(x.contiguous(), test, invert=invert)

        assert torch.equal(out, torch.isin(x, test, invert=invert))
        assert flag(ws) == expected


@pytest.mark.parametrize("dtype", [torch.int32, torch.float64])
@pytest.mark.parametrize(
    ("hits", "expected"),
    [(table.MOST_HITS // 2, 0), (JUDGING, bloom.DIRECT.value)],
)
def test_programs_add_up_how_many_elements_of_the_sample_they_found(
    hits: int, expected: int, dtype: torch.dtype, device: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(filtered_plan, "JUDGING", JUDGING)
    values = _spread(2 * table.JUDGED, dtype, device)
    test = values[::2][: filtered_plan.FILL_BLOCK * table.FIRST_SHARE].contiguous()
    x = values[1::2].contiguous()  # all are sampled, and the filter lets hardly any of them pass
    each = table.JUDGED // filtered_plan.JUDGING  # elements of a program, of which one is found
    x[: hits * each : each] = test[:hits]

    out, ws = filtered(x, test)

    assert int(out.sum()) == hits
    assert flag(ws) == expected


@pytest.mark.parametrize("dtype", TYPES)
def test_a_sample_of_the_test_elements_decides_whether_the_filter_is_read_before(
    dtype: torch.dtype, device: str
) -> None:
    values = _spread(20_000, dtype, device)
    some, many = values[::2].contiguous(), values[::2].clone()
    many[::3] = many[0]
    for test, equal in ((some, 0), (many, 1)):
        out, ws = filtered(values[1::2].contiguous(), test)

        assert not bool(out.any())
        assert ws[hash_set.EQUAL.value].item() == equal


@pytest.mark.parametrize("dtype", [torch.int32, torch.int64])
def test_a_small_range_of_integers_is_a_bitmap(dtype: torch.dtype, device: str) -> None:
    test = torch.arange(-700, 700, 3, device=device, dtype=dtype)
    x = torch.arange(-1500, 1500, device=device, dtype=dtype)

    out, ws = filtered(x, test)

    assert torch.equal(out, by_comparison(x, test))
    assert listed(ws, x, test) == 0


@pytest.mark.thinned
@pytest.mark.parametrize("hits", [table.MOST_HITS, table.JUDGED])
@pytest.mark.parametrize("room", [1, 1024])
@pytest.mark.parametrize("dtype", TYPES)
def test_equal_and_extreme_values(
    dtype: torch.dtype, room: int, hits: int, device: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(table, "LEAST_ROOM", room)
    monkeypatch.setattr(table, "MOST_HITS", hits)
    if dtype.is_floating_point:
        odd = torch.tensor([float("nan"), -0.0, float("inf")], dtype=dtype, device=device)
    else:
        limits = torch.iinfo(dtype)
        odd = torch.tensor([limits.min, limits.max, 0], dtype=dtype, device=device)
    values = _spread(300, dtype, device)
    for test in (odd.repeat(200), torch.cat([values[::3], odd[1:2]]), values[:1].expand(500)):
        x = torch.cat([odd, -odd, values, values[:1].expand(200), odd.repeat(20)])

        out, _ws = filtered(x, test.contiguous())

        assert torch.equal(out, by_comparison(x, test))


@pytest.mark.parametrize("invert", [False, True])
def test_isin_takes_it_for_many_of_both(
    invert: bool,
    device: str,
    launched: list[Launch],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(rule, "SCANNED_PAIRS", 0)  # SCAN would take calls of this size
    monkeypatch.setattr(rule, "REVERSED_MAX_M", 699)
    monkeypatch.setattr(rule, "NARROW", rule.NARROW._replace(unfiltered=3999))
    plan.plan.cache_clear()
    values = _spread(9000, torch.int32, device)
    test, x = values[::2].contiguous(), values[:700]

    out = isin(x, test, invert=invert)
    plan.plan.cache_clear()

    assert [launch.kernel.fn.__name__ for launch in launched] == [
        *("prepare_kernel", "begin_kernel", "judge_kernel", "fill_kernel", "sift_kernel"),
        *("add_candidates_kernel", "keep_tests_kernel", "settle_kernel"),
    ]
    assert torch.equal(out, by_comparison(x, test) ^ invert)


def test_where_the_rule_takes_it() -> None:
    many, more = 1 << 24, 1 << 26

    assert choose(tl.int32, more, many) is Variant.FILTERED
    assert choose(tl.int64, more, many) is Variant.FILTERED
    assert choose(tl.int32, (1 << 20) + 1, 1 << 22) is Variant.FILTERED
    assert choose(tl.int32, 1 << 22, (1 << 21) + 1) is Variant.FILTERED
    assert choose(tl.int32, 1 << 22, 1 << 21) is Variant.LARGE
    assert choose(tl.int32, 1 << 20, 1 << 22) is Variant.REVERSED
    assert choose(tl.int64, 1 << 22, (1 << 20) + 1) is Variant.FILTERED
    assert choose(tl.int64, 1 << 22, 1 << 20) is Variant.LARGE
    assert choose(tl.int64, 1 << 25, 1 << 21) is Variant.FILTERED
    assert choose(tl.float32, more, many) is Variant.LARGE
    assert choose(tl.float64, more, many) is Variant.FILTERED
    assert choose(tl.int32, more, rule.FULL_BITMAP_N) is Variant.LARGE
    assert choose(tl.int32, rule.FILTERED_RATIO * many + 1, many) is Variant.LARGE
    assert choose(tl.int64, 1 << 31, 1 << 30) is Variant.LARGE
    assert choose(tl.int64, 1 << 30, 1 << 31) is Variant.LARGE


@given(
    m=st.integers(1, (1 << 31) - 1),
    n=st.integers(1, (1 << 31) - 1),
    dtype=st.sampled_from(TYPES),
)
@settings(deadline=None)
def test_the_workspace_is_laid_out_without_overlap_and_no_larger_than_the_limits_say(
    m: int, n: int, dtype: torch.dtype
) -> None:
    n = n if dtype.itemsize == 8 else min(n, rule.FULL_BITMAP_N - 1)
    whole = Table.of(DTYPES[dtype], n)

    kept = CandidateSet.of(whole, m)

    word = whole.itemsize
    assert kept.second >= hash_set.HEADER + kept.slots
    assert (kept.bloom - kept.second) * word >= kept.second_bytes
    assert kept.second * word % 8 == kept.bloom * word % 8 == 0  # the words of both filters
    assert (kept.counts - kept.bloom) * word >= max(kept.bloom_bytes, 4 * kept.filter_words)
    assert kept.members * word % 16 == 0  # so many bytes of slots are read at once
    assert kept.slots >= 2 * table.SEGMENTS * kept.room  # so that it hardly ever is FULL
    assert m > rule.FILTERED_RATIO * n or table.SEGMENTS * kept.room >= m // 32
    room = table.SEGMENTS * table.LEAST_ROOM  # of few
    assert kept.words * word <= 13.5 * n * dtype.itemsize + (5 * room + 2000) * word


@pytest.mark.parametrize("dtype", TYPES)
def test_of_a_full_set_the_list_says_so(
    dtype: torch.dtype, device: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A list that is exactly full is no overflow."""
    monkeypatch.setattr(table, "LEAST_ROOM", 1)
    monkeypatch.setattr(table, "SEGMENTS", 1)
    monkeypatch.setattr(table, "LEAST_LISTED", 1)
    monkeypatch.setattr(table, "MOST_LISTED", 1)
    monkeypatch.setattr(table, "MOST_HITS", table.JUDGED)
    values = _spread(1024, dtype, device)

    out, ws = filtered(values, values.clone())

    assert bool(out.all())
    assert listed(ws, values, values) == 1024
    assert flag(ws) == 0
