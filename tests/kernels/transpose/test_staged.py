"""The staged variant of permute: tiles of any sizes, cut anywhere."""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING

import pytest
import torch

from tests.kernels.suite import assert_bits_equal, drawn
from warpcall_kernels import permute as permuting
from warpcall_kernels._transpose import constants, staged_tiles
from warpcall_kernels._transpose import strides as strides_module
from warpcall_kernels._transpose.constants import Staged
from warpcall_kernels.permute import permute

if TYPE_CHECKING:
    from warpcall_kernels.op.launch import Launch

pytestmark = pytest.mark.slow

SHAPES = dict.fromkeys((1, 2, 4, 8), Staged(4096, 4))
ACCESSES = [(1, 1), (2, 1), (1, 4), (2, 2)]  # elements of a unit, units of an access
WORDS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


@pytest.fixture(autouse=True)
def _small_tensors_take_this_variant(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(constants, "STAGED_MIN_TILES", 1)
    monkeypatch.setattr(constants, "STAGED_GAIN", 0)
    monkeypatch.setattr(constants, "STAGED_FAR_BYTES", 0)
    monkeypatch.setattr(constants, "STAGED_RUN_BYTES", 32)
    monkeypatch.setattr(constants, "STAGED_ROW_BYTES", 1000)
    for name in ("STAGED_TILES", "STAGED_ROWS"):
        monkeypatch.setattr(constants, name, SHAPES)
    monkeypatch.setattr(constants, "UNALIGNED_MIN_SIDE", 10_000)
    permuting._plan.cache_clear()


@pytest.fixture(params=ACCESSES, ids=str)
def accesses(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> tuple[int, int]:
    per, units = request.param
    shapes = {word: Staged(4096, 4, per if word < 8 else 1, units) for word in SHAPES}
    for name in ("STAGED_TILES", "STAGED_ROWS"):
        monkeypatch.setattr(constants, name, shapes)
    permuting._plan.cache_clear()
    return per, units


def assert_accesses(launch: Launch, word: int, per: int, units: int) -> None:
    """That a tile has accesses of this kind, or of single elements."""
    wanted = (per if word < 8 else 1, units)
    assert (launch.arguments["PER"], launch.arguments["UNITS"]) in (wanted, (1, 1))


def assert_moved(x: torch.Tensor, dims: tuple[int, ...], launched: list[Launch]) -> Launch:
    word = WORDS[x.dtype.itemsize]

    out = permute(x, dims)

    assert_bits_equal(out.view(word), x.view(word).permute(dims).contiguous())
    assert launched[-1].variant == "staged"
    return launched[-1]


@pytest.mark.thinned
@pytest.mark.parametrize(
    "dtype", [torch.uint8, torch.bfloat16, torch.float32, torch.float64], ids=str
)
@pytest.mark.parametrize(
    ("shape", "dims"),
    [
        ((3, 37, 5, 43, 7), (4, 2, 0, 3, 1)),
        ((61, 41), (1, 0)),
        ((2, 301, 47, 5), (0, 2, 1, 3)),
        ((301, 47, 3), (1, 0, 2)),
        ((19, 3, 27, 13), (3, 1, 0, 2)),
        ((5, 7, 3, 11, 3, 5), (5, 3, 1, 4, 2, 0)),
    ],
)
def test_dims_of_any_size(
    shape: tuple[int, ...],
    dims: tuple[int, ...],
    dtype: torch.dtype,
    accesses: tuple[int, int],
    device: str,
    launched: list[Launch],
) -> None:
    launch = assert_moved(drawn(shape, dtype, device, 1), dims, launched)

    assert launch.arguments["runs"] * launch.arguments["length"] <= 4096
    assert_accesses(launch, dtype.itemsize, *accesses)


@pytest.mark.parametrize("wide", [False, True])
def test_layouts_that_are_not_contiguous(
    wide: bool,
    accesses: tuple[int, int],
    device: str,
    launched: list[Launch],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    if wide:
        monkeypatch.setattr(strides_module, "INT32_REACH", 1)
    whole = drawn((9, 61, 53, 5), torch.float16, device)

    for x in (whole[:, 3:50], whole[::2, :, 1:40], whole[:1].expand(4, 61, 53, 5)):
        launch = assert_moved(x, (0, 3, 2, 1), launched)
        assert launch.arguments["WIDE"] == wide


@pytest.mark.parametrize(
    "sizes", [(37, 43, 7), (1, 5, 300), (257, 3, 1), (64, 64, 64), (13, 1021, 2)]
)
@pytest.mark.parametrize("word", WORDS)
def test_tiles_cover_every_element_and_keep_runs_long(sizes: tuple[int, ...], word: int) -> None:
    for order in itertools.permutations(range(3)):
        x = torch.empty(sizes, device="meta").permute(order)
        out = torch.empty(x.shape, device="meta")
        dims = strides_module.merge(x.shape, x.stride(), out.stride())

        tile = staged_tiles.plan_tile(dims, word, SHAPES)

        if tile is None:
            continue
        assert tile.elements <= 4096
        assert tile.programs * tile.elements >= x.numel()
        for cut in tile.cuts:
            assert (cut.parts - 1) * cut.extent < cut.dim.size <= cut.parts * cut.extent


def test_rows_are_padded_so_that_lanes_reach_different_banks() -> None:
    x = torch.empty((16637, 137, 5), device="meta")
    out = torch.empty((137, 16637, 5), device="meta")
    dims = strides_module.merge(out.shape, x.permute(1, 0, 2).stride(), out.stride())

    tile = staged_tiles.plan_tile(dims, 4, {4: Staged(4096, 8)})

    assert tile is not None
    assert tile.accesses > tile.least_accesses
    assert tile.conflicts(tile.accesses) == 1
    assert tile.conflicts(80) > 3


def test_pairs_are_stored_together_and_loaded_by_wide_accesses(
    device: str, launched: list[Launch], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(constants, "STAGED_TILES", {2: Staged(8192, 4, 2, 2)})
    permuting._plan.cache_clear()

    for offset in (0, 1):
        x = drawn((3, 37, 5, 43, 7), torch.float16, device, offset)
        launch = assert_moved(x, (4, 2, 0, 3, 1), launched)

        assert (launch.arguments["PER"], launch.arguments["UNITS"]) == (2, 2)
        assert launch.arguments["SKEWED"] == (offset == 1)


def test_a_run_that_has_several_rows_takes_single_elements() -> None:
    # The runs are the rows of x themselves, so that each run begins elsewhere in an access.
    dims = [strides_module.Dim(5, (1000, 70)), strides_module.Dim(70, (1, 1))]

    tile = staged_tiles._tile(dims, [0, 1], {0: 5}, 2, Staged(4096, 4, 2, 2))

    assert tile.inner == 2
    assert tile.unit == (2, 2)
    apart = [strides_module.Dim(5, (1000, 100)), dims[1]]
    tile = staged_tiles._tile(apart, [0, 1], {0: 5}, 2, Staged(4096, 4, 2, 2))
    assert tile.unit == (1, 1)


def test_a_tile_that_reaches_too_far_is_not_taken() -> None:
    dims = [strides_module.Dim(7, (1, 500)), strides_module.Dim(500, (1 << 24, 1))]

    assert staged_tiles.plan_tile(dims, 2, SHAPES) is None
    assert (
        staged_tiles.plan_tile([dims[0], strides_module.Dim(500, (1 << 14, 1))], 2, SHAPES)
        is not None
    )
