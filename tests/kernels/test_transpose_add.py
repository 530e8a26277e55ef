"""Traps of transpose-add: promotion as torch promotes, batches that broadcast, any strides."""

from __future__ import annotations

import itertools
import math
from typing import TYPE_CHECKING

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.kernels.suite import assert_bits_equal
from warpcall_kernels import InvalidInput
from warpcall_kernels import transpose_add as adding
from warpcall_kernels._transpose import strides as strides_module
from warpcall_kernels.transpose_add import COMPLEX, DTYPES, FLOATS, transpose_add

if TYPE_CHECKING:
    from warpcall_kernels.op.launch import Launch

quiet = settings(
    max_examples=50, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)


def values(shape: tuple[int, ...], dtype: torch.dtype, seed: int) -> torch.Tensor:
    drawn = torch.randint(-5, 100, shape, generator=torch.Generator().manual_seed(seed))
    return drawn.to(dtype) if dtype != torch.bool else drawn % 2 == 0


@pytest.mark.parametrize(
    ("one", "other"),
    list(itertools.combinations_with_replacement(DTYPES, 2)),
    ids=lambda dtype: str(dtype).removeprefix("torch."),
)
def test_dtypes_promote_and_round_as_in_torch(
    one: torch.dtype, other: torch.dtype, device: str
) -> None:
    a, b = values((3, 5), one, 1).to(device), values((5, 3), other, 2).to(device)

    assert_bits_equal(transpose_add(a, b), a.mT + b)


def test_large_integers_round_to_bf16_by_way_of_fp32_as_in_torch(device: str) -> None:
    a = torch.tensor([[2**24 + 1, -(2**31) + 129, 2**40 + 2**32 + 1]], device=device)
    b = torch.zeros(3, 1, dtype=torch.bfloat16, device=device)

    assert_bits_equal(transpose_add(a, b), a.mT + b)


@pytest.mark.parametrize(
    ("one", "other"),
    list(itertools.product(FLOATS, repeat=2)),
    ids=lambda dtype: str(dtype).removeprefix("torch."),
)
def test_the_sign_of_zero_outlives_promotion(
    one: torch.dtype, other: torch.dtype, device: str
) -> None:
    zeros = torch.tensor([[0.0, 0.0, -0.0, -0.0]], device=device)
    a, b = zeros.to(one), zeros.roll(1).mT.to(other)

    assert_bits_equal(transpose_add(a, b), a.mT + b)


def test_what_torch_has_not_yet_negated_is(device: str) -> None:
    a = torch.randn(3, 4, dtype=torch.complex64, device=device).conj().imag
    b = torch.randn(4, 3, device=device)
    assert a.is_neg()

    assert_bits_equal(transpose_add(a, b), a.mT + b)
    assert_bits_equal(transpose_add(b, a), b.mT + a)


SPECIAL = (math.nan, math.inf, -math.inf, 0.0, -0.0, 1.5, -2.5e38)


@pytest.mark.parametrize("dtype", COMPLEX, ids=str)
def test_complex_numbers_with_infinite_parts_add_up_as_in_torch(
    dtype: torch.dtype, device: str
) -> None:
    pairs = torch.tensor(list(itertools.product(SPECIAL, SPECIAL)), dtype=torch.float64)
    numbers = torch.view_as_complex(pairs).to(device, dtype)
    reals = torch.tensor(SPECIAL, device=device)
    few, many = len(reals), len(numbers)
    a, b = numbers.expand(many, many).mT.contiguous(), numbers.expand(many, many).contiguous()
    real = reals.expand(many, few).contiguous()

    assert_bits_equal(transpose_add(a, b.mT), a.mT + b.mT)
    assert_bits_equal(transpose_add(real, b[:few]), real.mT + b[:few])
    assert_bits_equal(transpose_add(b[:few], real), b[:few].mT + real)


def test_what_torch_has_not_yet_conjugated_is(device: str) -> None:
    a = torch.randn(3, 4, dtype=torch.complex64, device=device).conj()
    b = torch.randn(4, 3, dtype=torch.complex64, device=device)
    assert a.is_conj()

    assert_bits_equal(transpose_add(a, b), (a.mT + b).resolve_conj())
    assert_bits_equal(transpose_add(b, a), (b.mT + a).resolve_conj())


@pytest.mark.parametrize("wide", [False, True])
@pytest.mark.parametrize(
    ("one", "other"), list(itertools.product((*COMPLEX, torch.bfloat16), COMPLEX)), ids=str
)
@pytest.mark.parametrize("shape", [(2, 40, 70), (67, 33), (1, 5)])
def test_tiles_of_complex_numbers(
    shape: tuple[int, ...],
    one: torch.dtype,
    other: torch.dtype,
    wide: bool,
    device: str,
    launched: list[Launch],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    if wide:
        monkeypatch.setattr(strides_module, "INT32_REACH", 1)
    adding._plan.cache_clear()
    a = torch.randn(shape, device=device, dtype=one)
    b = torch.randn((*shape[:-2], *shape[:-3:-1]), device=device, dtype=other)

    assert_bits_equal(transpose_add(a, b), a.mT + b)
    assert_bits_equal(transpose_add(b, a), b.mT + a)
    assert_bits_equal(transpose_add(a.mT.contiguous().mT, b), a.mT + b)

    assert {launch.variant for launch in launched} == {"complex"}
    assert {launch.arguments["WIDE"] for launch in launched} == {wide}


def test_a_captured_graph_reads_what_its_inputs_hold_when_replayed(device: str) -> None:
    if device != "cuda":
        pytest.skip("graphs are captured on a GPU")
    a, b = torch.randn(65, 33, device=device), torch.randn(33, 65, device=device)
    transpose_add(a, b)  # compiled before the capture
    graph = torch.cuda.CUDAGraph()

    with torch.cuda.graph(graph):
        out = transpose_add(a, b)
    a.copy_(torch.randn(65, 33, device=device))
    b.copy_(torch.randn(33, 65, device=device))
    graph.replay()

    assert torch.equal(out, a.mT + b)


@given(
    batch=st.lists(st.sampled_from([1, 2, 3]), max_size=3),
    ones=st.lists(st.booleans(), min_size=6, max_size=6),
    h=st.integers(1, 40),
    w=st.integers(1, 40),
    turned=st.tuples(st.booleans(), st.booleans()),
    steps=st.tuples(st.integers(1, 2), st.integers(1, 2)),
    dtypes=st.tuples(*[st.sampled_from((torch.float32, *COMPLEX))] * 2),
)
@quiet
def test_any_shapes_that_broadcast_and_any_strides(
    batch: list[int],
    ones: list[bool],
    h: int,
    w: int,
    turned: tuple[bool, bool],
    steps: tuple[int, int],
    dtypes: tuple[torch.dtype, torch.dtype],
    device: str,
) -> None:
    pairs = []
    for k, (rows, columns) in enumerate(((h, w), (w, h))):
        sizes = [1 if ones[3 * k + i] else n for i, n in enumerate(batch)]
        stored = (columns, rows * steps[k]) if turned[k] else (rows * steps[k], columns)
        t = values((*sizes, *stored), dtypes[k], k).to(device)
        t = t.mT if turned[k] else t
        pairs.append(t[..., :: steps[k], :])
    a, b = pairs

    assert_bits_equal(transpose_add(a, b), (a.mT + b).contiguous())


def test_gradients_are_summed_over_what_was_broadcast(device: str) -> None:
    a = torch.randn(3, 4, dtype=torch.float64, device=device, requires_grad=True)
    b = torch.randn(2, 1, 4, 3, dtype=torch.float64, device=device, requires_grad=True)

    torch.autograd.backward(transpose_add(a, b).sum())

    assert a.grad is not None
    assert b.grad is not None
    assert torch.equal(a.grad, torch.full_like(a, 2))
    assert torch.equal(b.grad, torch.ones_like(b))


def test_the_gradient_of_a_real_term_is_real(device: str) -> None:
    a = torch.randn(3, 4, dtype=torch.float64, device=device, requires_grad=True)
    b = torch.randn(2, 4, 3, dtype=torch.complex128, device=device, requires_grad=True)
    factor = torch.randn(2, 4, 3, dtype=torch.complex128, device=device)

    ours = torch.autograd.grad((transpose_add(a, b) * factor).abs().sum(), (a, b))
    theirs = torch.autograd.grad(((a.mT + b) * factor).abs().sum(), (a, b))

    for one, other in zip(ours, theirs, strict=True):
        torch.testing.assert_close(one, other)


@pytest.mark.parametrize(
    ("a", "b", "argument", "says"),
    [
        ((2, 3), (2, 3), "b", "b must have shape (3, 2), the transpose of a"),
        ((2, 2, 3), (3, 3, 2), "b", "b must have shape (2, 3, 2)"),
        ((3,), (3, 1), "a", "2 to 64 dims"),
        ((1, 3), (3,), "b", "2 to 64 dims"),
    ],
)
def test_shapes_that_do_not_fit_are_refused(
    a: tuple[int, ...], b: tuple[int, ...], argument: str, says: str
) -> None:
    with pytest.raises(InvalidInput) as refused:
        transpose_add(torch.zeros(a), torch.zeros(b))

    assert refused.value.argument == argument
    assert says in str(refused.value)


def test_dtypes_that_torch_does_not_add_are_refused() -> None:
    with pytest.raises(InvalidInput, match=r"a must be one of .* got float8_e5m2"):
        transpose_add(torch.zeros(2, 2, dtype=torch.float8_e5m2), torch.zeros(2, 2))


@pytest.mark.parametrize(
    "shape",
    [
        (46_349, 46_348),
        (3, 30_000, 30_000),
        (2, (1 << 31) + 16),
        ((1 << 31) + 16, 2),
        (1 << 28, 3, 3),
    ],
)
def test_more_than_2_to_the_31_elements(shape: tuple[int, ...], device: str) -> None:
    if device != "cuda":
        pytest.skip("needs the memory of a GPU")
    a = torch.randint(0, 256, shape, dtype=torch.uint8, device=device)
    b = torch.randint(0, 256, (*shape[:-2], shape[-1], shape[-2]), dtype=torch.uint8, device=device)

    out = transpose_add(a, b)

    assert torch.equal(out, a.mT + b)


def test_more_than_2_to_the_31_parts_of_complex_numbers(device: str) -> None:
    if device != "cuda":
        pytest.skip("needs the memory of a GPU")
    a = torch.randn(1 << 15, (1 << 15) + 1, dtype=torch.complex64, device=device)
    b = torch.randn((1 << 15) + 1, 1 << 15, dtype=torch.complex64, device=device)

    assert torch.equal(transpose_add(a, b), b.add_(a.mT))  # of 8 GB each
