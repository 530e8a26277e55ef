"""The unaligned variant of transpositions: words that lie only partly in a tensor, or in a row."""

from __future__ import annotations

import mmap
from typing import TYPE_CHECKING

import pytest
import torch

from tests.kernels.suite import assert_bits_equal, drawn
from warpcall_kernels import permute as permuting
from warpcall_kernels import transpose_add as adding
from warpcall_kernels._transpose import constants, unaligned
from warpcall_kernels._transpose import strides as strides_module
from warpcall_kernels.permute import permute
from warpcall_kernels.transpose_add import transpose_add

if TYPE_CHECKING:
    from warpcall_kernels.op.launch import Launch

DTYPES = (torch.uint8, torch.float8_e5m2, torch.bfloat16, torch.float32)
SUMMED = (
    *(torch.bool, torch.uint8, torch.int8, torch.int16, torch.int32),
    *(torch.float16, torch.bfloat16, torch.float32),
)


@pytest.fixture(autouse=True)
def _small_tensors_take_this_variant(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(constants, "UNALIGNED_MIN_SIDE", 32)
    monkeypatch.setattr(constants, "UNALIGNED_MIN_TILES", 0)
    forget_plans()


def forget_plans() -> None:
    permuting._plan.cache_clear()
    adding._plan.cache_clear()


def equal_as_bits(actual: torch.Tensor, expected: torch.Tensor) -> bool:
    words = {1: torch.uint8, 2: torch.int16, 4: torch.int32}[actual.dtype.itemsize]
    return torch.equal(actual.view(words).cpu(), expected.contiguous().view(words).cpu())


def flags(launched: list[Launch]) -> tuple[bool, bool, bool]:
    """Whether x begins inside a word, and rows of x and of the output do, in the last launch."""
    assert launched[-1].variant == "unaligned"
    arguments = launched[-1].arguments
    return arguments["HEAD"], arguments["SKEW_X"], arguments["SKEW_OUT"]


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("offset", range(4))
@pytest.mark.parametrize("shape", [(67, 141), (131, 70), (33, 32), (40, 35)])
def test_any_bits_at_any_pitch_and_offset_are_moved(
    shape: tuple[int, int], offset: int, dtype: torch.dtype, device: str, launched: list[Launch]
) -> None:
    x = drawn(shape, dtype, device, offset)

    out = permute(x, (1, 0))

    assert equal_as_bits(out, x.T)
    assert flags(launched)[0] == (x.data_ptr() % unaligned.WORD_BYTES > 0)


@pytest.mark.parametrize(
    ("shape", "pitch", "offset", "wanted"),
    [
        ((101, 203), 0, 0, (False, True, True)),
        ((101, 203), 0, 1, (True, True, True)),
        ((101, 203), 208, 0, (False, False, True)),
        ((104, 203), 0, 0, (False, True, False)),
        ((104, 208), 0, 1, (True, True, False)),
        ((101, 203), 205, 0, (False, True, True)),
    ],
)
def test_each_side_is_shifted_where_it_must_be(
    shape: tuple[int, int],
    pitch: int,
    offset: int,
    wanted: tuple[bool, bool, bool],
    device: str,
    launched: list[Launch],
) -> None:
    x = drawn(shape, torch.bfloat16, device, offset, pitch)

    out = permute(x, (1, 0))

    assert equal_as_bits(out, x.T)
    assert flags(launched) == wanted


@pytest.mark.parametrize("wide", [False, True])
@pytest.mark.parametrize(
    ("shape", "dims"),
    [((3, 67, 81), (0, 2, 1)), ((2, 2, 37, 43), (1, 0, 3, 2)), ((131, 2, 133), (2, 1, 0))],
)
def test_batches(
    shape: tuple[int, ...],
    dims: tuple[int, ...],
    wide: bool,
    device: str,
    launched: list[Launch],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    if wide:
        monkeypatch.setattr(strides_module, "INT32_REACH", 1)
    x = drawn(shape, torch.float16, device)

    out = permute(x, dims)

    assert equal_as_bits(out, x.permute(dims))
    assert launched[-1].variant == "unaligned"
    assert launched[-1].arguments["WIDE"] == wide


def test_rows_that_lie_far_apart(device: str, launched: list[Launch]) -> None:
    """The last words of columns are put together from rows beyond what 32 bits reach."""
    rows, columns, pitch = 70, 45, (1 << 25) + 1
    size = (rows - 1) * pitch + columns
    if device == "cuda":
        memory = torch.empty(size, dtype=torch.uint8, device=device)
    else:  # of which only the pages that are written to are taken
        memory = torch.frombuffer(mmap.mmap(-1, size), dtype=torch.uint8)
    x = memory.as_strided((rows, columns), (pitch, 1))
    x.copy_(torch.randint(0, 256, (rows, columns), dtype=torch.uint8))
    b = drawn((columns, rows), torch.uint8, device)

    assert equal_as_bits(permute(x, (1, 0)), x.T)
    assert equal_as_bits(transpose_add(x, b), x.T + b)

    assert [launch.arguments["WIDE"] for launch in launched] == [True, True]


@pytest.mark.parametrize("dtype", SUMMED, ids=str)
@pytest.mark.parametrize(("shape", "offset"), [((67, 141), 0), ((2, 45, 70), 3)])
def test_sums_round_as_in_torch(
    shape: tuple[int, ...], offset: int, dtype: torch.dtype, device: str, launched: list[Launch]
) -> None:
    a = drawn(shape, dtype, device, offset)
    b = drawn((*shape[:-2], shape[-1], shape[-2]), dtype, device)

    out = transpose_add(a, b)

    assert_bits_equal(out, a.mT + b)
    assert flags(launched)[0] == (offset > 0)


def test_other_variants_are_taken_where_this_one_does_not_apply(
    device: str, launched: list[Launch], monkeypatch: pytest.MonkeyPatch
) -> None:
    x = drawn((67, 141), torch.float32, device)
    y = drawn((141, 67), torch.float32, device, 1)
    short = drawn((31, 141), torch.float32, device)
    overlapping = drawn((1, 240), torch.int16, device).as_strided((67, 41), (3, 1))
    several = drawn((11, 37, 2, 13, 7), torch.float16, device)
    far = drawn((67, 282), torch.float32, device)[:, ::2]

    assert_bits_equal(transpose_add(x, y), x.T + y)  # b lies otherwise than the output
    assert_bits_equal(transpose_add(x, y.half()), x.T + y.half())
    assert_bits_equal(
        transpose_add(x[None], y[None].expand(2, 141, 67)), x.T + y.expand(2, 141, 67)
    )
    assert_bits_equal(permute(overlapping, (1, 0)), overlapping.T.contiguous())
    assert_bits_equal(permute(far, (1, 0)), far.T.contiguous())
    assert_bits_equal(permute(x.double(), (1, 0)), x.T.double().contiguous())
    assert_bits_equal(permute(short, (1, 0)), short.T.contiguous())
    assert_bits_equal(
        permute(several, (4, 2, 0, 3, 1)), several.permute(4, 2, 0, 3, 1).contiguous()
    )
    monkeypatch.setattr(constants, "UNALIGNED_MIN_TILES", 3)
    forget_plans()
    assert_bits_equal(permute(x, (1, 0)), x.T.contiguous())

    assert all(launch.variant != "unaligned" for launch in launched)
