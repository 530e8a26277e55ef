"""The comparison of results with the reference, and what it says."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch import Tensor

from tests.kernels.problems.row_norm import problem
from warpcall_kernels import Op, Problem, Sample, ops
from warpcall_kernels.op import compare
from warpcall_kernels.op.compare import difference, same_bits, shown

nan, inf = math.nan, math.inf


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
    wanted = torch.tensor([nan, 0.0, 1.0], dtype=torch.bfloat16)
    got = torch.tensor([-nan, -0.0, 1.0], dtype=torch.bfloat16)

    assert same_bits(got, wanted).tolist() == [True, False, True]


def op_of(dtype: torch.dtype = torch.float32, **declared: Any) -> Op:
    """A problem whose output is its input."""
    return Problem(
        reference=lambda x: x.clone(),
        inputs=lambda dtype: {"x": Sample((8,), dtype)},
        dtypes=(dtype,),
        **declared,
    ).op("same")


def differs(op: Op, ours: Tensor, theirs: Tensor) -> str | None:
    """How an output of `op_of` differs from the reference."""
    return difference(op, "out", ours, theirs, {"x": theirs}, {})


def test_wrong_elements_are_counted_and_the_first_one_is_shown() -> None:
    wanted = torch.ones(3, 20, dtype=torch.float64)
    got = wanted.float()
    got[1, 2], got[2, 0] = 2, nan

    assert differs(op_of(), got, wanted) == (
        "out differs from the reference in 2 of 60 elements, first at 22 (in C order): 2 instead of "
        "1; the farthest is off by 2e+04 times the expected error"
    )


def test_a_result_that_is_wrong_only_as_a_whole_has_a_sentence_of_its_own() -> None:
    wanted = torch.ones(3, 20, dtype=torch.float64)

    assert differs(op_of(), (wanted * (1 + 0.7e-4)).float(), wanted) == (
        "out differs from the reference as a whole: the norm of the difference is 7e-05 of that of "
        "the results, at most 5e-05 is allowed"
    )


@pytest.mark.parametrize(
    ("wanted", "got", "right"),
    [
        (nan, nan, True),
        (inf, inf, True),
        (-inf, inf, False),
        (inf, nan, False),
        (nan, 1.0, False),
        (1.0, nan, False),
        (1.0, inf, False),
        (inf, 65504.0, False),
        (1e30, inf, True),  # it is infinite in fp16
        (-1e30, inf, False),
        (65519.0, 65504.0, True),
    ],
)
def test_numbers_that_are_not_finite_agree_in_place_and_sign(
    wanted: float, got: float, right: bool
) -> None:
    theirs = torch.tensor([wanted, 1.0], dtype=torch.float64)

    found = differs(op_of(torch.float16), torch.tensor([got, 1.0]).half(), theirs)

    assert (found is None) == right


@pytest.mark.parametrize("size", [1e-30, 1e-6, 1.0, 1e20])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32, torch.float64, torch.complex64])
def test_the_size_of_results_does_not_matter(size: float, dtype: torch.dtype) -> None:
    op = op_of(dtype, tolerance={dtype: 0.5})
    wide = torch.complex128 if dtype.is_complex else torch.float64
    wanted = torch.randn(4, 50, dtype=wide) * size

    assert differs(op, wanted.to(dtype), wanted) is None
    assert differs(op, (wanted * 1.2).to(dtype), wanted) is None
    assert differs(op, (wanted * 1.6).to(dtype), wanted) is not None
    assert differs(op, torch.zeros(4, 50, dtype=dtype), wanted) is not None


def test_zeros_are_wrong_under_every_tolerance_below_1() -> None:
    op = op_of(tolerance={torch.float32: 0.999})

    for shape in ((1,), (4, 1), (3, 5), (2, 300)):
        assert differs(op, torch.zeros(shape), torch.randn(shape).double()) is not None


def test_a_small_element_is_judged_by_its_row_and_not_by_the_tensor() -> None:
    wanted = torch.ones(2, 32, dtype=torch.float64)
    wanted[1] = 1e-6
    wanted[0, 5] = 1e-6

    assert (
        differs(op_of(), (wanted + torch.eye(32)[5] * 4e-5 * wanted[:, :1]).float(), wanted) is None
    )
    assert differs(op_of(), (wanted + torch.eye(32)[5] * 4e-5).float(), wanted) is not None


def test_rows_of_few_elements_are_judged_together() -> None:
    wanted = torch.randn(1000, 1, dtype=torch.float64)
    wanted[7] = 0  # a sum whose terms cancel

    assert differs(op_of(), (wanted + 1e-5).float(), wanted) is None


def test_integers_are_compared_exactly_unless_a_tolerance_is_given() -> None:
    wanted = torch.tensor([10, 20, 30, 40])
    near = torch.tensor([10, 20, 31, 40])

    assert differs(op_of(torch.int64), near, wanted) is not None
    assert differs(op_of(torch.int64), wanted.clone(), wanted) is None
    for dtype in (torch.int64, torch.int8, torch.uint16, torch.uint64):
        op = op_of(dtype, tolerance={dtype: 0.1})
        assert differs(op, near.to(dtype), wanted.to(dtype)) is None
        assert differs(op, (near // 2).to(dtype), wanted.to(dtype)) is not None


def test_subnormal_results_of_fp16_may_be_rounded_and_no_more() -> None:
    wanted = torch.full((2, 500), 2.4e-7, dtype=torch.float64)  # four steps of 2^-24
    step = 2.0**-24
    op = ops()["masked-softmax"]

    def found(got: float) -> str | None:
        x = torch.zeros(2, 500, dtype=torch.float16)
        return difference(op, "out", torch.full_like(x, got), wanted, {"x": x}, op.check_params({}))

    assert found(4 * step) is None
    assert found(5 * step) is not None
    assert found(0) is not None


def test_terms_may_be_beyond_the_range_of_the_output() -> None:
    op = ops()["conv"]
    inputs = {"x": torch.randn(8, 16, 100) * 300, "weight": torch.randn(1, 8) * 300}
    inputs = {name: t.half() for name, t in inputs.items()}
    wanted = op.reference(**{name: t.double() for name, t in inputs.items()})
    in_fp32 = op.reference(**{name: t.float() for name, t in inputs.items()})

    assert not wanted.half().isfinite().all()
    assert wanted.half().isfinite().any()
    found = difference(op, "out", in_fp32.half(), wanted, inputs, op.check_params({}))
    assert found is None


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32, torch.float64])
def test_zeros_are_wrong_for_scores_of_any_size(dtype: torch.dtype) -> None:
    op, x = ops()["masked-softmax"], torch.randn(3, 40).to(dtype) * 1e30

    wanted = op.reference(x.double())

    assert difference(op, "out", wanted.to(dtype), wanted, {"x": x}, op.check_params({})) is None
    zeros = torch.zeros_like(x)
    assert difference(op, "out", zeros, wanted, {"x": x}, op.check_params({})) is not None


@pytest.mark.parametrize("chunk", [1, 7, 40, 1000])
@pytest.mark.parametrize("name", ["masked-softmax", "conv-backward", "row-norm", "permute"])
def test_chunks_of_any_size_find_the_same(
    chunk: int, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    op = problem().op(name) if name == "row-norm" else ops()[name]
    case = op.cases[0]
    inputs, params = case.tensors(), op.check_params(case.params)
    result = op.reference(**inputs, **params)
    right = (result[0] if isinstance(result, tuple) else result).contiguous()
    wrong, slightly = right.clone(), right * (1 + 3e-5)
    wrong.view(-1)[[3, -1]] += 1
    output = op.outputs[0].name

    def found(ours: Tensor) -> str | None:
        return difference(op, output, ours, right, inputs, params)

    before = found(right), found(wrong), found(slightly)
    monkeypatch.setattr(compare, "CHUNK", chunk)

    assert (found(right), found(wrong), found(slightly)) == before
    assert before[0] is None
    assert before[1] is not None


@pytest.mark.parametrize("shape", [(), (0,), (3, 0), (1,)])
def test_tensors_of_few_elements_are_compared(shape: tuple[int, ...]) -> None:
    wanted = torch.ones(shape, dtype=torch.float64)

    assert differs(op_of(), wanted.float(), wanted) is None
    assert (differs(op_of(), wanted.float() * 2, wanted) is None) == (wanted.numel() == 0)
