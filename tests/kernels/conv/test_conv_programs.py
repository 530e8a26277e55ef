"""How conv-backward chooses its variant, and into how many programs the convolutions are cut."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from tests.kernels.conv.gradients import check_gradients, drawn
from warpcall_kernels._conv import backward, fma_work, forward
from warpcall_kernels._conv.fma_work import Work, programs_of
from warpcall_kernels._conv.forward import Variant
from warpcall_kernels.compile.architectures import ARCHITECTURES, occupancy
from warpcall_kernels.op.launch import Launch, LayoutKey, multiprocessors

WORKS = {
    work
    for works in (
        *fma_work.WHOLE.values(),
        *fma_work.SKEWED.values(),
        *fma_work.UNALIGNED.values(),
        fma_work.SKEWED_TAIL,
        (fma_work.MANY_TILES, fma_work.MANY_TILES_CENTRED),
    )
    for work in works
}


def key(shape: tuple[int, ...], dtype: torch.dtype) -> LayoutKey:
    strides = torch.empty(shape, device="meta").stride()
    return shape, strides, dtype, 0


def plan(
    shape: tuple[int, int, int], heads: int, taps: int, padding: int, dtype: torch.dtype
) -> Launch:
    rows = key(shape, dtype)
    return backward.plan(rows, rows, key((heads, taps), dtype), padding, False).main


@pytest.mark.parametrize(
    "compiles_for", [one.capability for one in ARCHITECTURES.values()], indirect=True
)
def test_all_programs_run_at_once_or_a_whole_part_of_them(compiles_for: int) -> None:
    target = ARCHITECTURES[f"sm_{compiles_for}"]
    assert multiprocessors() == target.multiprocessors
    for work in WORKS:
        at_once = occupancy(target, work.registers, 0, work.warps).blocks * target.multiprocessors

        assert work.programs == work.times * at_once


@pytest.mark.parametrize("compiles_for", [80, 87, 90], indirect=True)
@pytest.mark.parametrize(
    ("shape", "taps", "dtype", "variant", "each"),
    [
        ((32, 512, 512), 3, torch.float32, Variant.FMA, 12),
        ((64, 512, 512), 31, torch.bfloat16, Variant.BLOCKS, 2),
        ((256, 512, 32), 31, torch.bfloat16, Variant.BLOCKS, 4),
        ((16, 256, 4099), 31, torch.bfloat16, Variant.DOT, 6),
        ((16, 256, 4096), 400, torch.bfloat16, Variant.DOT, 8),
        ((16, 512, 4096), 257, torch.bfloat16, Variant.BANDS, 2),
    ],
)
def test_programs_of_conv_backward_are_counted_by_multiprocessors(
    shape: tuple[int, int, int],
    taps: int,
    dtype: torch.dtype,
    variant: Variant,
    each: int,
    compiles_for: int,
) -> None:
    main = plan(shape, 8, taps, taps - 1, dtype)

    assert main.variant == variant
    programs = each * ARCHITECTURES[f"sm_{compiles_for}"].multiprocessors
    bands = main.arguments.get("bands", 1)
    assert main.grid[0] == 8 * bands * main.arguments["parts"]
    assert programs - 8 * bands < main.grid[0] <= programs


@pytest.mark.usefixtures("fresh_plans")
@pytest.mark.parametrize("compiles_for", [80, 87, 90], indirect=True)
@pytest.mark.parametrize(
    ("taps", "variant", "each"), [(31, Variant.DOT, 8), (35, Variant.BANDS, 4)]
)
def test_programs_of_conv_are_counted_by_multiprocessors(
    taps: int, variant: Variant, each: int, compiles_for: int
) -> None:
    launch = forward.plan(
        key((32, 512, 4096), torch.float16), key((8, taps), torch.float16), None, None, False
    )

    assert launch.variant == variant
    assert launch.grid[0] == each * ARCHITECTURES[f"sm_{compiles_for}"].multiprocessors


@pytest.mark.parametrize(
    ("shape", "taps", "padding", "variant"),
    [
        ((32, 512, 512), 7, 6, Variant.FMA),
        ((32, 512, 512), 7, 0, Variant.FMA),
        ((32, 512, 512), 6, 3, Variant.FMA),
        ((32, 512, 512), 7, 3, Variant.BLOCKS),
        ((32, 512, 512), 8, 7, Variant.BLOCKS),
        ((8, 512, 256), 7, 3, Variant.FMA),
        ((8, 512, 256), 16, 15, Variant.FMA),
        ((8, 512, 256), 17, 16, Variant.BLOCKS),
        ((64, 512, 32), 8, 4, Variant.FMA),
        ((64, 512, 32), 9, 4, Variant.BLOCKS),  # short rows
        ((8, 512, 260), 12, 6, Variant.FMA),  # skewed
        ((8, 512, 260), 13, 6, Variant.BLOCKS),  # rows begin at 8 bytes
        ((8, 512, 261), 12, 6, Variant.FMA),
        ((8, 512, 261), 13, 6, Variant.DOT),  # rows begin anywhere
        ((8, 512, 261), 26, 6, Variant.DOT),
        ((8, 512, 261), 40, 20, Variant.BLOCKS),  # not one product
        ((8, 512, 261), 40, 39, Variant.BLOCKS),
        ((8, 512, 261), 40, 6, Variant.BANDS),  # wide halos
        ((8, 512, 31), 13, 4, Variant.BLOCKS),  # short rows
    ],
)
def test_size_padding_and_taps_choose_the_variant(
    shape: tuple[int, int, int], taps: int, padding: int, variant: Variant
) -> None:
    assert plan(shape, 8, taps, padding, torch.bfloat16).variant == variant


@pytest.mark.usefixtures("compiles_for")
@pytest.mark.parametrize("compiles_for", [90], indirect=True)
@pytest.mark.parametrize(
    ("shape", "taps", "padding", "pieces"),
    [
        ((32, 512, 512), 7, 6, 256),
        ((32, 512, 512), 6, 3, 256),
        ((8, 512, 256), 7, 6, 128),  # fewer tiles than programs
        ((9, 512, 512), 7, 3, 128),  # more registers than tiles of 256 pieces leave
        ((9, 512, 512), 7, 6, 256),
    ],
)
def test_large_tensors_are_cut_into_large_tiles(
    shape: tuple[int, int, int], taps: int, padding: int, pieces: int
) -> None:
    assert plan(shape, 1, taps, padding, torch.float16).arguments["PIECES"] == pieces


@given(
    programs=st.integers(1, 2000),
    heads=st.integers(1, 64),
    tiles=st.integers(1, 10_000),
)
def test_no_program_is_without_a_tile_or_takes_longer_than_needed(
    programs: int, heads: int, tiles: int
) -> None:
    most = max(1, programs // heads)

    shared = programs_of(programs, heads, tiles)

    assert shared % heads == 0
    parts = shared // heads
    assert 1 <= parts <= min(most, tiles)
    assert -(-tiles // parts) == -(-tiles // min(most, tiles))
    if most < tiles < 2 * most:
        assert tiles // parts in (1, 2)
        assert 2 * parts - tiles in (0, 1)  # all have two tiles, but for one of an odd number


@pytest.mark.thinned
@pytest.mark.parametrize("taps", [8, 9, 12, 13, 14, 16])
@pytest.mark.parametrize("padding", ["causal", "centred"])
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
@pytest.mark.parametrize("softmax", [False, True])
def test_up_to_16_taps_of_few_positions_go_to_fma(
    taps: int,
    padding: str,
    dtype: torch.dtype,
    softmax: bool,
    device: str,
    launched: list[Launch],
) -> None:
    x, g = drawn((3, 4, 40), dtype, device), drawn((3, 4, 40), dtype, device)
    weight = torch.randn(2, taps, device=device).to(dtype)

    check_gradients(
        *(g, x, weight),
        padding_l=taps - 1 if padding == "causal" else taps // 2,
        softmax_weight=softmax,
    )

    assert [launch.variant for launch in launched] == [Variant.FMA, "_reduce_kernel"]


@pytest.mark.thinned
@pytest.mark.usefixtures("fresh_plans")
@pytest.mark.parametrize(("taps", "padding"), [(7, 3), (8, 7), (8, 1), (9, 4), (16, 8)])
@pytest.mark.parametrize("length", [24, 200])
@pytest.mark.parametrize("softmax", [False, True])
def test_the_same_filters_are_right_on_tensor_cores(
    taps: int,
    padding: int,
    length: int,
    softmax: bool,
    device: str,
    launched: list[Launch],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(backward, "FMA_FEW", 0)
    monkeypatch.setattr(backward, "FMA_FEW_SHORT", 0)
    shape = (3, 4, length)
    x, g = drawn(shape, torch.bfloat16, device), drawn(shape, torch.bfloat16, device)
    weight = torch.randn(2, taps, device=device).bfloat16()

    check_gradients(g, x, weight, padding_l=padding, softmax_weight=softmax)

    assert launched[0].variant == Variant.BLOCKS


@pytest.mark.usefixtures("fresh_plans")
@pytest.mark.parametrize("programs", [1, 5, 8, 1000])
@pytest.mark.parametrize("dtype", [torch.float16, torch.float32])
def test_programs_share_the_tiles_of_a_head(
    programs: int,
    dtype: torch.dtype,
    device: str,
    launched: list[Launch],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    works = (Work(16, 1024, 16, 2, limited=False),)  # one program on each multiprocessor
    monkeypatch.setattr(fma_work, "WHOLE", {2: works, 4: works})
    monkeypatch.setattr(fma_work, "multiprocessors", lambda: programs)
    x, g = drawn((7, 2, 96), dtype, device), drawn((7, 2, 96), dtype, device)

    check_gradients(g, x, torch.randn(1, 5, device=device).to(dtype), padding_l=2)

    main = launched[0].arguments
    assert main["parts"] == programs_of(programs, 1, main["tiles"])
    assert main["parts"] < main["tiles"] or programs == 1000


@pytest.mark.parametrize("taps", [3, 7, 15, 31])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32, torch.float64])
def test_rows_that_lie_apart_by_any_number_of_elements(
    taps: int, dtype: torch.dtype, device: str
) -> None:
    x, g = drawn((2, 6, 65), dtype, device)[..., 1:], drawn((2, 6, 65), dtype, device)[..., 1:]

    check_gradients(g, x, torch.randn(3, taps, device=device).to(dtype), padding_l=taps // 2)
