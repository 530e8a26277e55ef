"""The channels variant of permute: pixels and planes at any address, of any number and dtype."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
import torch

from tests.kernels.suite import assert_bits_equal, drawn
from warpcall_kernels import permute as permuting
from warpcall_kernels._transpose import constants
from warpcall_kernels._transpose import strides as strides_module
from warpcall_kernels.permute import permute

if TYPE_CHECKING:
    from warpcall_kernels.op.launch import Launch

pytestmark = pytest.mark.slow


@pytest.fixture(autouse=True)
def _small_tensors_take_this_variant(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(constants, "CHANNELS_MIN_BYTES", 0)
    monkeypatch.setattr(constants, "CHANNELS_MIN_PIXELS", 1)
    permuting._plan.cache_clear()


def assert_moved(x: torch.Tensor, dims: tuple[int, ...], launched: list[Launch]) -> Launch:
    words = {1: torch.uint8, 2: torch.int16}[x.dtype.itemsize]

    out = permute(x, dims)

    assert_bits_equal(out.view(words), x.view(words).permute(dims).contiguous())
    assert launched[-1].variant == "channels"
    return launched[-1]


@pytest.mark.thinned
@pytest.mark.parametrize("channels", range(2, constants.CHANNELS_MOST + 1))
@pytest.mark.parametrize("dtype", [torch.uint8, torch.float8_e5m2, torch.bfloat16], ids=str)
@pytest.mark.parametrize("pixels", [2, 3, 7, 16, 17, 31, 33, 64, 100, 2047, 2048, 2051, 4099])
def test_any_number_of_pixels(
    pixels: int, dtype: torch.dtype, channels: int, device: str, launched: list[Launch]
) -> None:
    if channels % 2 == 0 and dtype.itemsize == 2 and pixels % 8 == 0:
        pixels += 1  # tiles are faster where planes are aligned
    assert_moved(drawn((pixels, channels), dtype, device), (1, 0), launched)


@pytest.mark.parametrize("channels", range(2, constants.CHANNELS_MOST + 1))
def test_the_last_pixels_of_planes(channels: int, device: str, launched: list[Launch]) -> None:
    # In the interpreter each number occurs for one or two of the channels.
    first, step = (2 + channels % 3, 3) if device == "cpu" else (2, 1)
    for pixels in range(first, 70, step):
        x = drawn((1, pixels, channels), torch.uint8, device).expand(2, pixels, channels)
        assert_moved(x, (0, 2, 1), launched)


@pytest.mark.thinned(together=1)
@pytest.mark.parametrize("wide", [False, True])
@pytest.mark.parametrize(
    ("shape", "dims", "aligned", "skewed"),
    [
        ((3, 16, 17, 3), (0, 3, 1, 2), True, False),
        ((3, 4, 17, 3), (0, 3, 1, 2), False, False),
        ((3, 5, 17, 3), (0, 3, 1, 2), False, True),
        ((2, 3, 5, 19, 3), (1, 4, 0, 2, 3), False, True),  # planes of an image lie apart
        ((2, 70, 3, 67, 2), (2, 0, 4, 1, 3), False, True),
    ],
)
def test_images_and_planes_in_any_order(
    shape: tuple[int, ...],
    dims: tuple[int, ...],
    aligned: bool,
    skewed: bool,
    wide: bool,
    device: str,
    launched: list[Launch],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    if wide:
        monkeypatch.setattr(strides_module, "INT32_REACH", 1)
    x = drawn(shape, torch.uint8, device)

    launch = assert_moved(x, dims, launched)

    assert launch.arguments["ALIGNED"] == aligned
    assert launch.arguments["SKEW_X"] == skewed
    assert launch.arguments["WIDE"] == wide


def test_parts_of_images_that_lie_apart(device: str, launched: list[Launch]) -> None:
    whole = drawn((3, 70, 23, 3), torch.uint8, device)

    assert_moved(whole[:, 4:60], (0, 3, 1, 2), launched)
    assert_moved(whole.flatten(1, 2)[:1].expand(4, 70 * 23, 3), (0, 2, 1), launched)


@pytest.mark.parametrize(("dtype", "least"), [(torch.int8, 4), (torch.float16, 2)])
def test_any_address_that_words_have(
    dtype: torch.dtype, least: int, device: str, launched: list[Launch]
) -> None:
    for offset in range(least, 17, least):
        launch = assert_moved(drawn((301, 3), dtype, device, offset), (1, 0), launched)
        assert launch.arguments["ALIGNED"] == (offset * dtype.itemsize % 16 == 0)


def test_other_variants_are_taken_where_this_one_does_not_apply(
    device: str, launched: list[Launch], monkeypatch: pytest.MonkeyPatch
) -> None:
    image = drawn((301, 3), torch.uint8, device, 1)  # at an odd address
    far = drawn((301, 4), torch.uint8, device)[:, :3]
    wide = drawn((301, 3), torch.int32, device)
    many = drawn((301, constants.CHANNELS_MOST + 1), torch.uint8, device)

    even = drawn((304, 4), torch.float16, device)
    for x in (image, far, wide, many, even):
        assert_bits_equal(permute(x, (1, 0)), x.T.contiguous())
    monkeypatch.setattr(constants, "CHANNELS_MIN_PIXELS", 302)
    assert_bits_equal(permute(image[1:], (1, 0)), image[1:].T.contiguous())

    assert "channels" not in {launch.variant for launch in launched}
