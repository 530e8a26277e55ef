"""The kernels in examples/, which readers copy, compute what their ops do."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from types import ModuleType

import pytest
import torch

from tests.kernels.suite import assert_bits_equal
from warpcall_kernels.permute import DTYPES

FILE = Path(__file__).parents[3] / "examples/my_permute.py"


@pytest.fixture(scope="module")
def example() -> ModuleType:
    spec = importlib.util.spec_from_file_location("my_permute", FILE)
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
