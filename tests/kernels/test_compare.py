"""The comparison of results with the reference, and what it says."""

from __future__ import annotations

import pytest
import torch

from warpcall_kernels.op.compare import same_bits, shown


@pytest.mark.parametrize(
    ("got", "wanted", "texts"),
    [
        (-0.7916862964630127, 0.0844389796257019, ("-0.7917", "0.08444")),
        (0.7916862964630127, 0.7916862368583679, ("0.7916863", "0.79168624")),
        (1.0, 1.0000000000000002, ("1.0", "1.0000000000000002")),
        (float("nan"), 1.5, ("nan", "1.5")),
        (3, 4, ("3", "4")),
    ],
)
def test_a_wrong_value_has_as_few_digits_as_tell_it_apart(
    got: float, wanted: float, texts: tuple[str, str]
) -> None:
    assert shown(got, wanted) == texts


@pytest.mark.parametrize(
    "dtype",
    [torch.bool, torch.float8_e4m3fn, torch.bfloat16, torch.int32, torch.float64, torch.complex128],
)
def test_elements_are_the_same_only_if_all_of_their_bytes_are(dtype: torch.dtype) -> None:
    size = dtype.itemsize
    wanted = torch.ones(size * (1 + size), dtype=torch.uint8).view(dtype)
    got = wanted.clone()
    for byte in range(size):  # each element but the last differs in another byte
        got.view(torch.uint8)[byte * size + byte] = 0

    assert same_bits(got, wanted).tolist() == [False] * size + [True]


def test_every_nan_is_the_same_but_zeros_of_another_sign_are_not() -> None:
    nan = float("nan")
    wanted = torch.tensor([nan, 0.0, 1.0], dtype=torch.bfloat16)
    got = torch.tensor([-nan, -0.0, 1.0], dtype=torch.bfloat16)

    assert same_bits(got, wanted).tolist() == [True, False, True]
