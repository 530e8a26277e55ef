"""The variant of isin for fewer elements than test elements, and how launches of isin overlap."""

from __future__ import annotations

import pytest
import torch
import triton
import triton.language as tl
from torch import Tensor

from tests.kernels.isin.forced import planned_set, run_in
from warpcall_kernels._isin import plan as module
from warpcall_kernels._isin.hash_set import FULL, load_members, words_contend
from warpcall_kernels._isin.plan import DTYPES
from warpcall_kernels._isin.rule import Variant
from warpcall_kernels._isin.table import SetPlan
from warpcall_kernels.isin import run_plan

pytestmark = pytest.mark.slow

NAN = float("nan")


def numbers(high: int, m: int, n: int) -> tuple[Tensor, Tensor]:
    """Elements and test elements. Every third element is a test element."""
    g = torch.Generator().manual_seed(m + n)
    x, test = (torch.randint(-high, high, (k,), generator=g) for k in (m, n))
    x[::3] = test[torch.randint(0, n, x[::3].shape, generator=g)]
    return x, test


def drawn(kind: str, dtype: torch.dtype, m: int, n: int) -> tuple[Tensor, Tensor]:
    """Elements and test elements of a kind."""
    if kind == "equal":
        return torch.full((m,), -5).to(dtype), (torch.arange(n) - n + 3).clamp(-6).to(dtype)
    if kind == "odd":
        whole = not dtype.is_floating_point
        least, most = (torch.iinfo(dtype).min, torch.iinfo(dtype).max) if whole else (-0.0, NAN)
        odd = torch.tensor([least, most, 0, -1], dtype=dtype)
        return odd[torch.arange(m) * 7 % 4], odd[torch.arange(n) * 5 % 3]
    x, test = numbers(4 * n if kind == "dense" else 1 << 31, m, n)
    return x.to(dtype), test.to(dtype)


@pytest.fixture(params=[False, True], ids=["one bitmap", "two bitmaps"])
def two(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> bool:
    """Whether dense elements of REVERSED have a bitmap beside that of the test elements."""
    has_two: bool = request.param
    monkeypatch.setattr(module, "TWO_BITMAPS", 0 if has_two else 1 << 40)
    return has_two


@pytest.mark.thinned(together=3)
@pytest.mark.parametrize("kind", ["dense", "sparse", "equal", "odd"])
@pytest.mark.parametrize("dtype", [torch.int32, torch.int64, torch.float32, torch.float64])
@pytest.mark.parametrize(
    "unread", [False, True], ids=["the filter is read", "the filter is not read"]
)
@pytest.mark.parametrize(("m", "n"), [(1, 9), (70, 1021), (1300, 3000)])
def test_the_results_are_those_of_torch(
    m: int,
    n: int,
    unread: bool,
    two: bool,
    dtype: torch.dtype,
    kind: str,
    device: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(module, "UNREAD", 1 << 40 if unread else 0)
    x, test = (t.to(device) for t in drawn(kind, dtype, m, n))
    invert = m == n % 2

    planned = planned_set(Variant.REVERSED, dtype, m, n, invert=invert)

    assert planned.launches[2][0].arguments["TWO_BITMAPS"] == (two and not dtype.is_floating_point)
    assert torch.equal(run_plan(planned, x, test), torch.isin(x, test, invert=invert))


def check_with_any_workspace(
    planned: SetPlan, dtype: torch.dtype, kind: str, device: str
) -> Tensor:
    """Check the result with a workspace that is full of ones, and return the workspace."""
    x, test = (t.to(device) for t in drawn(kind, dtype, 3000, 4000))
    ws = torch.full((planned.words * planned.word.itemsize,), 255, dtype=torch.uint8, device=device)
    ws = ws.view(planned.word)

    out = run_in(ws, planned, x, test)

    assert torch.equal(out, torch.isin(x, test))
    return ws


@pytest.mark.thinned
@pytest.mark.parametrize("kind", ["dense", "sparse"])
@pytest.mark.parametrize("dtype", [torch.int32, torch.int64, torch.float32])
@pytest.mark.parametrize("variant", [Variant.LARGE, Variant.FILTERED])
def test_the_workspace_may_hold_anything_before(
    variant: Variant, dtype: torch.dtype, kind: str, device: str
) -> None:
    check_with_any_workspace(planned_set(variant, dtype, 3000, 4000), dtype, kind, device)


@pytest.mark.thinned
@pytest.mark.parametrize("kind", ["dense", "sparse"])
@pytest.mark.parametrize("dtype", [torch.int32, torch.int64, torch.float32])
@pytest.mark.parametrize("first", [False, True], ids=["zeroed as needed", "zeroed first"])
def test_the_workspace_of_reversed_may_hold_anything_before(
    first: bool,
    two: bool,
    dtype: torch.dtype,
    kind: str,
    device: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(module, "ZEROED_FIRST", 1 << 40 if first else 0)
    planned = planned_set(Variant.REVERSED, dtype, 3000, 4000)

    ws = check_with_any_workspace(planned, dtype, kind, device)

    added = planned.launches[1][0].arguments
    assert added["ZEROED_FIRST"] == first
    assert added["TWO_BITMAPS"] == (two and not dtype.is_floating_point)
    # A table that is not zeroed seems full, and makes calls slow.
    assert ws[added["members"] + FULL.value].item() == 0


def test_so_many_programs_add_elements_that_each_zeroes_few_words() -> None:
    programs = {}
    for m, n in ((101, 1 << 22), (1 << 12, 1 << 16), (1 << 16, 1 << 20), (1 << 20, 1 << 20)):
        planned = planned_set(Variant.REVERSED, torch.int32, m, n)
        programs[m, n] = planned.launches[1][0].grid

    assert programs == {
        (101, 1 << 22): ((1 << 16) // 2048, 1, 1),
        (1 << 12, 1 << 16): ((1 << 16) // 2048, 1, 1),
        (1 << 16, 1 << 20): ((1 << 16) // 64, 1, 1),
        (1 << 20, 1 << 20): ((1 << 22) // 2048, 1, 1),
    }


@pytest.mark.parametrize("variant", [Variant.LARGE, Variant.REVERSED])
@pytest.mark.parametrize("dtype", [torch.int32, torch.int64])
def test_many_members_whose_first_and_last_blocks_are_no_sample_of_the_others(
    dtype: torch.dtype, variant: Variant, device: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A bitmap that holds these blocks may hold no others."""
    monkeypatch.setattr(module, "SAMPLED_MEMBERS", 0)
    limits = torch.iinfo(dtype)
    for outlier in (limits.min, limits.max, 9000):
        test = torch.arange(0, 16_000, 2, device=device, dtype=dtype)
        test[4500] = outlier
        x = torch.arange(3, 9003, 1, device=device, dtype=dtype)[:7000]
        x[3500] = outlier

        out = run_plan(planned_set(variant, dtype, len(x), len(test), invert=True), x, test)

        assert torch.equal(out, torch.isin(x, test, invert=True))


def test_the_bitmap_of_few_elements_holds_four_times_as_many_values_as_test_elements() -> None:
    expected = {
        (1, 100): 32,
        (1 << 11, 1 << 18): 1 << 15,
        (1 << 11, 1 << 20): 1 << 17,
        (1 << 12, 1 << 16): 1 << 16,
        (1 << 12, 1 << 22): 1 << 16,
        (101, 1 << 22): 1 << 16,
        (1 << 14, 1 << 22): 1 << 18,
        (1 << 16, 1 << 18): 1 << 18,
    }

    slots = {}
    for m, n in expected:
        planned = planned_set(Variant.REVERSED, torch.int32, m, n)
        slots[m, n] = planned.launches[1][0].arguments["slots"]

    assert slots == expected
    assert 32 * slots[1 << 11, 1 << 20] >= 4 * (1 << 20)


@pytest.mark.parametrize("compiles_for", [80, 90], indirect=True)
@pytest.mark.parametrize("variant", [Variant.LARGE, Variant.REVERSED])
@pytest.mark.parametrize("dtype", [torch.int16, torch.int32, torch.float64])
@pytest.mark.parametrize("few", [True, False])
def test_launches_overlap_from_capability_90_on_if_there_are_not_too_many_values(
    few: bool, dtype: torch.dtype, variant: Variant, compiles_for: int
) -> None:
    if variant is Variant.LARGE:
        m, n = 5000, (1 << 20 if dtype is torch.int16 else 1 << 18) + (not few)
    else:
        m, n = (1 << 17) + (not few), 1 << 20
    steps = [step for step, _ in planned_set(variant, dtype, m, n).launches]

    waits = compiles_for >= 90
    asks = [step.arguments.get("EARLY", False) for step in steps]
    assert asks == [waits and few] * 2 + [False] * (len(steps) - 2)
    assert [step.arguments["PDL"] for step in steps[1:]] == [waits] * (len(steps) - 1)
    assert ["launch_pdl" in step.arguments for step in steps] == [
        *(False, *[waits] * (len(steps) - 1))
    ]


@pytest.mark.parametrize("compiles_for", [90], indirect=True)
def test_the_launch_for_the_range_of_many_members_waits_too(
    compiles_for: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "FUSED_N", 4999)

    planned = planned_set(Variant.LARGE, torch.int32, 9, 5000)

    assert planned.launches[1][0].kernel.fn.__name__ == "range_kernel"
    assert all(step.arguments["PDL"] for step, _ in planned.launches[1:])


@pytest.mark.parametrize("compiles_for", [80, 90], indirect=True)
def test_launches_of_filtered_wait_for_the_one_before_themselves(compiles_for: int) -> None:
    planned = planned_set(Variant.FILTERED, torch.int32, 9000, 9000)

    first, *others = [step.arguments for step, _ in planned.launches]
    assert not first["EARLY"]
    assert all(step["PDL"] == (compiles_for >= 90) for step in others)
    assert all(("launch_pdl" in step) == (compiles_for >= 90) for step in others)


@pytest.mark.parametrize(
    ("dtype", "m", "n", "slots"),
    [
        (torch.int32, 9, 1 << 14, 1 << 18),
        (torch.int32, 9, 1 << 18, 1 << 21),
        (torch.int32, 9, 1 << 20, 1 << 22),
        (torch.int64, 9, 1 << 14, 1 << 18),
        (torch.int64, 9, 1 << 16, 1 << 19),
        (torch.int64, 9, 1 << 17, 1 << 20),
        (torch.int64, 9, (1 << 17) + 1, 1 << 20),
        (torch.int32, 1 << 21, 1 << 12, 1 << 16),
        (torch.int32, (1 << 21) + 1, 1 << 12, 1 << 15),
        (torch.int32, (1 << 21) + 1, 1 << 14, 1 << 16),
        (torch.int64, (1 << 21) + 1, 1 << 12, 1 << 15),
        (torch.int64, (1 << 21) + 1, 1 << 14, 1 << 17),
        (torch.int64, (1 << 21) + 1, 1 << 17, 1 << 19),
    ],
)
def test_few_test_elements_have_room_in_the_table_of_large(
    dtype: torch.dtype, m: int, n: int, slots: int
) -> None:
    planned = planned_set(Variant.LARGE, dtype, m, n)

    assert planned.launches[1][0].arguments["slots"] == slots


@pytest.mark.parametrize("variant", [Variant.LARGE, Variant.REVERSED])
def test_only_many_members_are_compared_before_their_atomics(variant: Variant) -> None:
    looks = []
    for members in (1 << 18, (1 << 18) + 1):
        m, n = (9, members) if variant is Variant.LARGE else (members, 1 << 20)
        planned = planned_set(variant, torch.int32, m, n)
        looks.append(planned.launches[1][0].arguments["LOOK"])

    assert looks == ["never", "equal"]


def test_test_elements_that_few_elements_keep_are_always_read_before_the_atomics() -> None:
    looks = {}
    for m, n in ((9, 1 << 18), (9, (1 << 18) + 1), (1 << 17, 1 << 20)):
        planned = planned_set(Variant.REVERSED, torch.int32, m, n)
        looks[m, n] = planned.launches[2][0].arguments["LOOK"]

    assert [*looks.values()] == ["never", "always", "equal"]


@triton.jit
def members_kernel(
    ptr: tl.tensor,
    added_ptr: tl.tensor,
    looks_ptr: tl.tensor,
    n: tl.tensor,
    LOOK: tl.constexpr,
    COMMON: tl.constexpr,
    KEY: tl.constexpr,
    BLOCK: tl.constexpr,
) -> None:
    start = tl.program_id(0) * BLOCK
    _key, added, looks = load_members(ptr, start, n, LOOK, COMMON, KEY, BLOCK)
    tl.store(added_ptr + start + tl.arange(0, BLOCK), added)
    tl.store(looks_ptr + tl.program_id(0), looks)


@pytest.mark.parametrize("look", ["always", "equal", "never"])
@pytest.mark.parametrize("dtype", [torch.int32, torch.float64])
def test_keys_that_equal_the_first_one_of_their_block_are_not_added(
    dtype: torch.dtype, look: str, device: str
) -> None:
    test = torch.arange(70, dtype=dtype)
    test[5] = 4  # block 0: two others
    test[[20, 31]] = 16  # block 1: the first and two others
    test[48] = 47  # the last one of block 2 and the first of block 3
    test[65:] = 64  # block 4, which is not full: all
    nan = dtype.is_floating_point
    if nan:
        test[[32, 33]] = NAN  # block 2
    added = torch.zeros(96, dtype=torch.bool, device=device)
    looks = torch.zeros(6, dtype=torch.bool, device=device)

    key = tl.uint64 if nan else tl.uint32
    arguments = (test.to(device), added, looks, len(test), look, DTYPES[dtype], key, 16)
    members_kernel[(6,)](*arguments)  # block 5 is past the end

    missing = {20, 31, *range(65, 70)} if look != "always" else set()
    missing |= {32, 33} if nan else set()
    assert added.tolist() == [i < 70 and i not in missing for i in range(96)]
    expected = {"always": [1] * 6, "equal": [0, 1, 0, 0, 1, 0], "never": [0] * 6}
    assert looks.int().tolist() == expected[look]


@triton.jit
def contend_kernel(spans_ptr: tl.tensor, out_ptr: tl.tensor, n: tl.tensor) -> None:
    at = tl.program_id(0)
    tl.store(out_ptr + at, words_contend(tl.load(spans_ptr + at), n))


@pytest.mark.parametrize("dtype", [torch.uint32, torch.uint64])
@pytest.mark.parametrize("n", [1, 1000])
def test_atomics_contend_if_a_bitmap_has_no_more_bits_than_keys(
    dtype: torch.dtype, n: int, device: str
) -> None:
    spans = torch.tensor([0, n - 1, n, (1 << 32) - 1], dtype=dtype, device=device)
    out = torch.zeros(4, dtype=torch.int32, device=device)

    contend_kernel[(4,)](spans, out, n)

    assert out.tolist() == [1, 1, 0, 0]


@pytest.mark.parametrize("look", [False, True])
@pytest.mark.parametrize("dtype", [torch.int32, torch.float64])
def test_equal_test_elements_are_members_however_they_are_inserted(
    look: bool, dtype: torch.dtype, device: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "UNREAD", 0 if look else 1 << 40)
    test = torch.cat((torch.full((3000,), 77), torch.arange(0, 9_000_000, 9001), torch.zeros(5)))
    x, test = torch.arange(-5, 9_010).to(device, dtype), test.to(device, dtype)

    planned = planned_set(Variant.LARGE, dtype, len(x), len(test))

    assert torch.equal(run_plan(planned, x, test), torch.isin(x, test))
