"""Which rows of a convolution are skewed, how each part of them is read and written, and that it is
right.
"""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from tests.kernels.suite import assert_right
from warpcall_kernels._conv import backward_kernels, forward_kernels
from warpcall_kernels._conv.backward import FMA_MAX_TAPS_SKEWED
from warpcall_kernels._conv.tiling import Alignment, Tiling
from warpcall_kernels.conv import OP as FORWARD
from warpcall_kernels.conv import conv, conv_reference
from warpcall_kernels.conv_backward import OP as BACKWARD
from warpcall_kernels.conv_backward import conv_backward
from warpcall_kernels.op.launch import Launch, layout_key

pytestmark = pytest.mark.slow

FMA, DOT, BLOCKS, BANDS = "_fma_kernel", "_dot_kernel", "_blocks_kernel", "_bands_kernel"
INTEGERS = (-3, 4)  # sums of such products are exact


def drawn(shape: tuple[int, ...], dtype: torch.dtype, device: str) -> Tensor:
    return torch.randint(*INTEGERS, shape).to(device, dtype)


def check(x: Tensor, g: Tensor, weight: Tensor, **how: Any) -> None:
    """Both passes are as their references say."""
    out = conv(x, weight, **how)
    grads = conv_backward(g, x, weight, **how)

    assert_right(FORWARD, {"x": x, "weight": weight}, how, out)
    assert_right(BACKWARD, {"grad_output": g, "x": x, "weight": weight}, how, grads)


@pytest.fixture
def interior(device: str, monkeypatch: pytest.MonkeyPatch) -> dict[str, set[bool]]:
    """Of tiles that may be away from the ends of their rows, by pass, whether they were; CPU only."""
    if device != "cpu":
        pytest.skip("what runs on a GPU cannot be listened to")
    seen: dict[str, set[bool]] = {"forward": set(), "backward": set()}
    modules = {"forward": forward_kernels, "backward": backward_kernels}
    for name, module in modules.items():
        is_interior = module.is_interior

        def note(*arguments: Any, name: str = name, is_interior: Any = is_interior) -> Any:
            answer = is_interior(*arguments)
            seen[name].add(bool(answer))
            return answer

        monkeypatch.setattr(module, "is_interior", note)
    return seen


@pytest.mark.thinned(together=1)
@pytest.mark.parametrize(
    ("dtype", "taps", "softmax", "kernels"),
    [
        (torch.bfloat16, 1, False, (FMA, FMA)),
        (torch.bfloat16, 7, True, (FMA, FMA)),
        (torch.float16, FMA_MAX_TAPS_SKEWED, False, (FMA, FMA)),
        (torch.float16, FMA_MAX_TAPS_SKEWED + 1, False, (FMA, DOT)),
        (torch.bfloat16, 31, True, (DOT, DOT)),
        (torch.float32, 3, False, (FMA, FMA)),
        (torch.float32, 33, False, (FMA, FMA)),
        (torch.float64, 17, False, (FMA, FMA)),
    ],
)
@pytest.mark.parametrize("batches", [8, 9])  # the last group of 9 crosses the tensor's end
def test_each_part_of_skewed_rows_is_right(
    dtype: torch.dtype,
    taps: int,
    softmax: bool,
    kernels: tuple[str, str],
    batches: int,
    interior: dict[str, set[bool]],
    launched: list[Launch],
) -> None:
    shape = (batches, 3, 1101)
    x, g = drawn(shape, dtype, "cpu"), drawn(shape, dtype, "cpu")
    weight = torch.randn(1, taps).to(dtype)

    check(x, g, weight, padding_l=taps // 2, softmax_weight=softmax)

    passes = launched[0], launched[-2]  # the last one adds up the sums
    assert tuple(launch.kernel.fn.__name__ for launch in passes) == kernels
    assert all(launch.arguments["SKEW"] > 0 for launch in passes)
    assert [launch.arguments["TAIL"] for launch in passes] == [batches == 9] * 2
    assert interior == {"forward": {True, False}, "backward": {True, False}}


@pytest.mark.parametrize(
    ("dtype", "taps", "padding"),
    [
        (torch.bfloat16, 15, 14),
        (torch.bfloat16, 7, 0),
        (torch.float32, 31, 15),
        (torch.float32, 40, 39),
    ],
)
def test_aligned_rows_do_without_masks_away_from_their_ends(
    dtype: torch.dtype,
    taps: int,
    padding: int,
    interior: dict[str, set[bool]],
    launched: list[Launch],
) -> None:
    shape = (2, 1, 12288 // dtype.itemsize)
    x, g = drawn(shape, dtype, "cpu"), drawn(shape, dtype, "cpu")

    check(x, g, torch.randn(1, taps).to(dtype), padding_l=padding)

    assert launched[0].kernel.fn.__name__ == FMA
    assert interior == {"forward": {True, False}, "backward": set()}


@pytest.mark.parametrize(
    ("length", "taps", "kernel"),
    [(520, 16, BLOCKS), (41, 12, DOT), (42, 12, BLOCKS), (15, 8, BLOCKS)],
    ids=["aligned", "skewed", "skewed by 4 bytes", "by elements"],
)
def test_how_rows_are_read_says_how_many_taps_of_gradients_are_for_tensor_cores(
    length: int, taps: int, kernel: str, device: str, launched: list[Launch]
) -> None:
    x = drawn((1, 2, length), torch.bfloat16, device)

    for count in (taps, taps + 1):
        conv_backward(x, x, torch.ones(1, count, dtype=x.dtype, device=device))

    names = [launch.kernel.fn.__name__ for launch in launched]
    assert names == [FMA, "_reduce_kernel", kernel, "_reduce_kernel"]


@pytest.mark.parametrize(
    ("taps", "kernel", "skew"), [(33, DOT, 8), (34, BANDS, None), (400, DOT, 0)]
)
def test_rows_are_not_skewed_for_filters_of_several_bands(
    taps: int, kernel: str, skew: int | None, device: str, launched: list[Launch]
) -> None:
    x = drawn((2, 3, 61), torch.bfloat16, device)
    weight = drawn((1, taps), torch.bfloat16, device)

    out = conv(x, weight, padding_l=32)

    assert torch.equal(out, conv_reference(x, weight, padding_l=32))
    assert launched[0].kernel.fn.__name__ == kernel
    assert launched[0].arguments.get("SKEW") == skew


@pytest.mark.thinned(together=1)
@pytest.mark.parametrize("length", [*range(16, 33), 63, 65])
@pytest.mark.parametrize("taps", [2, 31])
def test_rows_of_any_length_that_begin_anywhere(length: int, taps: int, device: str) -> None:
    shape = (2, 3, length)
    x, g = (drawn(shape, torch.bfloat16, device) for _ in "xg")

    check(x, g, torch.randn(3, taps).to(device, torch.bfloat16))


@pytest.mark.parametrize("taps", [3, 20])
def test_rows_that_begin_as_those_of_the_result_are_skewed(
    taps: int, device: str, launched: list[Launch]
) -> None:
    whole = drawn((4, 16, 41), torch.bfloat16, device)
    x, g = whole[:, :8], whole[::2].repeat(2, 1, 1)[:, 8:]  # as a gated unit halves its channels

    check(x, g, torch.randn(2, taps).to(device, torch.bfloat16))

    assert [launch.arguments["SKEW"] for launch in launched[:2]] == [8, 8]


@pytest.mark.parametrize("taps", [3, 20])
@pytest.mark.parametrize("where", ["offset", "wider", "turned", "odd", "odd end"])
def test_rows_that_begin_elsewhere_than_those_of_the_result_are_not(
    where: str, taps: int, device: str, launched: list[Launch]
) -> None:
    dtype = torch.bfloat16
    if where == "offset":
        x = drawn((1 + 2 * 4 * 41,), dtype, device)[1:].view(2, 4, 41)
    elif where == "wider":
        x = drawn((2, 4, 44), dtype, device)[..., :41]
    elif where == "turned":
        x = drawn((2, 41, 4), dtype, device).mT
    elif where == "odd":
        x = drawn((2, 5, 41), dtype, device)[:, :4]
    else:  # rows are where they should be, but the last group of the last is not all the tensor's
        x = drawn((2, 11, 41), dtype, device)[:, :3]
    plain = drawn(tuple(x.shape), dtype, device)

    check(x, plain, torch.randn(1, taps).to(device, dtype))

    assert [launch.arguments["SKEW"] for launch in launched[:2]] == [0, 0]


@pytest.mark.parametrize(
    ("shape", "dtype", "group"),
    [
        ((2, 4, 40), torch.bfloat16, 0),  # aligned as they are
        ((2, 4, 36), torch.bfloat16, 8),
        ((2, 4, 17), torch.float16, 8),
        ((2, 4, 15), torch.bfloat16, 0),  # hardly a whole group
        ((2, 4, 9), torch.float32, 4),
        ((2, 4, 7), torch.float32, 0),
        ((2, 4, 5), torch.float64, 2),
    ],
)
def test_short_and_aligned_rows_are_not_skewed(
    shape: tuple[int, ...], dtype: torch.dtype, group: int, device: str
) -> None:
    assert Alignment.of(layout_key(torch.empty(shape, dtype=dtype, device=device))).skew == group


@pytest.mark.thinned(together=1)
@pytest.mark.parametrize("taps", [3, 15, 31])
@pytest.mark.parametrize("at", [0, 20, 44])
def test_neighbouring_rows_do_not_leak(taps: int, at: int, device: str) -> None:
    dtype = torch.bfloat16
    x, g = drawn((3, 3, 45), dtype, device), drawn((3, 3, 45), dtype, device)
    x[1, 1, at] = float("nan")
    x[0, 2, at] = float("inf")
    g[1, 2, at] = float("nan")

    check(x, g, torch.ones(3, taps, dtype=dtype, device=device), padding_l=taps // 2)


def test_a_few_pieces_in_a_row_make_a_tile_of_whole_rows() -> None:
    assert Tiling.of(1000, 40, 8, 128, True)[:3] == (5, 1, 40)  # 25 rows of 5 pieces, and 3 idle
    assert Tiling.of(1000, 40, 8, 128, False)[:3] == (1, 5, 40)
    assert Tiling.of(1000, 64, 8, 128, True)[:3] == (8, 1, 63)
    assert Tiling.of(10, 4106, 8, 128, True)[:3] == (64, 9, 45)


def test_long_rows_are_counted_in_64_bits() -> None:
    assert Tiling.of(1, 2**31, 8, 128, True).big
    assert not Tiling.of(1, 2**30, 8, 128, True).big


@pytest.mark.parametrize(
    ("dtype", "taps", "copied"),
    [(torch.float32, 17, True), (torch.float32, 16, False), (torch.bfloat16, 17, False)],
)
def test_large_operands_of_many_taps_are_copied_to_where_rows_are_read_whole(
    dtype: torch.dtype,
    taps: int,
    copied: bool,
    device: str,
    launched: list[Launch],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("warpcall_kernels.conv_backward.COPIED_BYTES", 4 * 64 * dtype.itemsize)
    x, g = (drawn((1 + 4 * 64,), dtype, device)[1:].view(2, 2, 64) for _ in range(2))
    few = drawn((1 + 2 * 64,), dtype, device)[1:].view(1, 2, 64)
    weight = drawn((1, taps), dtype, device)

    check(x, g, weight, padding_l=3)
    assert [launch.arguments["UNIT"] > 1 for launch in launched[1::3]] == [copied]
    launched.clear()
    check(few, few, weight, padding_l=3)
    assert [launch.arguments["UNIT"] for launch in launched[1::3]] == [1]
