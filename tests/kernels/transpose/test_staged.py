"""The staged variant of permute: tiles of any sizes, cut anywhere."""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING

import pytest
import torch

from tests.kernels.suite import assert_bits_equal, drawn
from warpcall_kernels import permute as permuting
from warpcall_kernels._transpose import constants, staged
from warpcall_kernels._transpose import strides as strides_module
from warpcall_kernels._transpose.constants import Staged
from warpcall_kernels.permute import permute

if TYPE_CHECKING:
    from warpcall_kernels.op.launch import Launch

SHAPES = dict.fromkeys((1, 2, 4, 8), Staged(4096, 4))
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


def assert_moved(x: torch.Tensor, dims: tuple[int, ...], launched: list[Launch]) -> Launch:
    word = WORDS[x.dtype.itemsize]

    out = permute(x, dims)

    assert_bits_equal(out.view(word), x.view(word).permute(dims).contiguous())
    assert launched[-1].variant == "staged"
    return launched[-1]


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
    device: str,
    launched: list[Launch],
) -> None:
    launch = assert_moved(drawn(shape, dtype, device, 1), dims, launched)

    assert launch.arguments["count"] <= 4096


@pytest.mark.parametrize("wide", [False, True])
def test_layouts_that_are_not_contiguous(
    wide: bool, device: str, launched: list[Launch], monkeypatch: pytest.MonkeyPatch
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

        tile = staged.plan_tile(dims, word, SHAPES)

        if tile is None:
            continue
        assert tile.elements <= 4096
        assert tile.programs * tile.elements >= x.numel()
        for cut in tile.cuts:
            assert (cut.parts - 1) * cut.extent < cut.dim.size <= cut.parts * cut.extent


def test_a_tile_that_reaches_too_far_is_not_taken() -> None:
    dims = [strides_module.Dim(7, (1, 500)), strides_module.Dim(500, (1 << 24, 1))]

    assert staged.plan_tile(dims, 2, SHAPES) is None
    assert staged.plan_tile([dims[0], strides_module.Dim(500, (1 << 14, 1))], 2, SHAPES) is not None
