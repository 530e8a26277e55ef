"""The kernels in examples/, which readers copy, compute what their ops do."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from types import ModuleType

import pytest
import torch

from tests.kernels.suite import assert_bits_equal
from warpcall_kernels.masked_softmax import masked_softmax_reference
from warpcall_kernels.permute import DTYPES

EXAMPLES = Path(__file__).parents[3] / "examples"


@pytest.fixture(scope="module")
def example() -> ModuleType:
    return imported("my_permute")


def imported(name: str) -> ModuleType:
    """One of the examples."""
    spec = importlib.util.spec_from_file_location(name, EXAMPLES / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def drawn(shape: tuple[int, ...], dtype: torch.dtype, device: str) -> torch.Tensor:
    """A tensor of random bytes; booleans are 0 or 1."""
    top = 2 if dtype == torch.bool else 256
    data = torch.randint(top, (*shape, dtype.itemsize), dtype=torch.uint8)
    return data.view(dtype).view(shape).to(device)


@pytest.mark.thinned(together=1)
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("shape", [(1, 1), (0, 3), (3, 0), (31, 65), (128, 64)])
def test_the_example_transposes(
    shape: tuple[int, int], dtype: torch.dtype, example: ModuleType, device: str
) -> None:
    x = drawn(shape, dtype, device)

    for strided in (x, x.T, x[::2, 1:]):
        out = example.permute(strided, dims=(1, 0))

        assert out.is_contiguous()
        assert_bits_equal(out, strided.permute(1, 0).contiguous())


@pytest.mark.parametrize(
    ("shape", "dims"), [((2, 3), (0, 1)), ((2, 3), (-1, 0)), ((2, 3, 4), (2, 0, 1)), ((), ())]
)
def test_the_example_leaves_the_rest_to_torch(
    shape: tuple[int, ...], dims: tuple[int, ...], example: ModuleType, device: str
) -> None:
    x = drawn(shape, torch.float32, device)

    assert_bits_equal(example.permute(x, dims=dims), x.permute(dims).contiguous())


@pytest.mark.thinned(together=1)
@pytest.mark.parametrize("dtype", [d for d in DTYPES if d.itemsize <= 8], ids=str)
@pytest.mark.parametrize("shape", [(1, 1, 1), (0, 3, 2), (5, 31, 65), (66, 2, 67)])
def test_the_verified_example_reverses_three_dims(
    shape: tuple[int, int, int], dtype: torch.dtype, device: str
) -> None:
    permute = imported("verified_permute").permute
    x = drawn(shape, dtype, device)

    for strided in (x, x.transpose(0, 2), x[:, ::2, 1:]):
        out = permute(strided, dims=(2, 1, 0))

        assert out.is_contiguous()
        assert_bits_equal(out, strided.permute(2, 1, 0).contiguous())
    with pytest.raises(ValueError, match="only dims 2,1,0"):
        permute(x, dims=(0, 1, 2))


@pytest.mark.thinned
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32], ids=str)
@pytest.mark.parametrize("scale", [1.0, -0.5, 0.0])
@pytest.mark.parametrize("shape", [(1, 1), (3, 1000), (2, 5, 33), (0, 4), (3000, 2)])
def test_the_verified_example_of_a_softmax_is_right(
    shape: tuple[int, ...], scale: float, dtype: torch.dtype, device: str
) -> None:
    softmax = imported("verified_softmax").masked_softmax
    x = (4 * torch.randn(shape)).to(dtype).to(device)

    out = softmax(x, scale=scale)

    expected = masked_softmax_reference(x.double(), scale=scale)
    unit = max(torch.finfo(dtype).eps, 2e-6)
    assert ((out.double() - expected).abs() <= unit * expected.abs() + 1e-7).all()
    with pytest.raises(ValueError, match="neither a mask nor lengths"):
        softmax(x, causal=True)
