"""Traps of permute: what merges, what widens, which variant is taken, and how far indices reach."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.kernels.suite import assert_bits_equal
from warpcall_kernels import InvalidInput
from warpcall_kernels._transpose.plan import plan_permute
from warpcall_kernels._transpose.strides import division_arguments
from warpcall_kernels.permute import DTYPES, permute

quiet = settings(
    max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)


def variant(x: torch.Tensor, dims: tuple[int, ...]) -> str:
    """What a launch of this layout runs."""
    chosen = plan_permute(tuple(x.shape), x.stride(), dims, x.dtype.itemsize, x.data_ptr() % 16)
    return "copy" if chosen is None else chosen.variant


@st.composite
def layouts(draw: st.DrawFn) -> tuple[torch.Tensor, tuple[int, ...]]:
    """A tensor of random shape, dtype, strides and offset, and dims."""
    rank = draw(st.integers(0, 5))
    sizes = draw(st.lists(st.integers(1, 7), min_size=rank, max_size=rank))
    dtype = draw(st.sampled_from(DTYPES))
    offset = draw(st.integers(0, 3))
    steps = draw(st.lists(st.integers(1, 2), min_size=rank, max_size=rank))
    order = draw(st.permutations(range(rank)))
    stored = [sizes[d] * steps[d] for d in order]
    count = math.prod(stored) + offset
    words = torch.randint(-(2**62), 2**62, (count * 2,), generator=torch.Generator().manual_seed(1))
    if dtype == torch.bool:
        words &= 0x0101010101010101
    flat = words.view(torch.uint8)[: count * dtype.itemsize].view(dtype)
    x = flat[offset:].view(stored).permute([order.index(d) for d in range(rank)])
    x = x[tuple(slice(None, None, step) for step in steps)]
    return x, tuple(draw(st.permutations(range(rank))))


@given(layouts())
@quiet
def test_any_layout_is_permuted_bit_by_bit(
    device: str, layout: tuple[torch.Tensor, tuple[int, ...]]
) -> None:
    x, dims = layout

    out = permute(x.to(device), dims)

    assert out.is_contiguous()
    words = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
    expected = x.permute(dims).contiguous()
    if x.dtype == torch.complex128:
        out, expected = torch.view_as_real(out), torch.view_as_real(expected)
    word = words[out.dtype.itemsize]
    assert torch.equal(out.cpu().view(word), expected.view(word))


@pytest.mark.parametrize(
    ("shape", "dims", "taken"),
    [
        ((4, 5), (0, 1), "copy"),
        ((1, 4, 1, 5), (1, 3, 0, 2), "copy"),
        ((3, 4, 16), (1, 0, 2), "rows"),
        ((2, 3, 4, 16), (1, 2, 0, 3), "rows"),
        ((4, 5), (1, 0), "tiles"),
        ((4, 5, 2, 3), (2, 3, 0, 1), "tiles"),
        ((132, 2, 4), (0, 2, 1), "chunks"),
        ((131, 2, 4), (0, 2, 1), "tiles"),
        ((132, 3, 4), (0, 2, 1), "flat"),
        ((9, 4, 20, 2, 4), (1, 2, 0, 4, 3), "chunks"),
    ],
)
def test_each_layout_takes_its_variant(
    shape: tuple[int, ...], dims: tuple[int, ...], taken: str, device: str
) -> None:
    x = torch.arange(math.prod(shape), dtype=torch.float64, device=device).view(shape)

    assert variant(x, dims) == taken
    assert_bits_equal(permute(x, dims), x.permute(dims).contiguous())


def test_several_dims_a_side_fill_a_tile_and_keep_what_divides_their_strides(device: str) -> None:
    shape, dims = (10, 3, 6, 5, 8), (4, 3, 0, 2, 1)
    x = torch.arange(math.prod(shape), dtype=torch.int16, device=device).view(shape)

    chosen = plan_permute(shape, x.stride(), dims, 2, 0)

    assert chosen is not None
    assert len(chosen.arguments["i_sizes"]) + len(chosen.arguments["j_sizes"]) > 2
    assert chosen.arguments["ALIGN_X"] == 8
    assert_bits_equal(permute(x, dims), x.permute(dims).contiguous())


@pytest.mark.parametrize(
    ("shape", "dims", "near"),
    [
        ((256, 3, 5, 384), (3, 2, 1, 0), 15),  # all other dims are nearer in the output than i
        ((3, 256, 384), (0, 2, 1), 1),  # none is
        ((3, 256, 5, 384), (0, 3, 2, 1), 5),  # the last one is
    ],
)
def test_programs_walk_the_tiles_in_the_order_of_the_output(
    shape: tuple[int, ...], dims: tuple[int, ...], near: int, device: str
) -> None:
    x = torch.arange(math.prod(shape), dtype=torch.int32, device=device).view(shape)

    chosen = plan_permute(shape, x.stride(), dims, 4, 0)

    assert chosen is not None
    assert chosen.variant == "tiles"
    assert chosen.arguments["near"] == near
    assert chosen.arguments["tiles_i"] > 1
    assert chosen.arguments["KEPT"] == (near > 1)
    assert_bits_equal(permute(x, dims), x.permute(dims).contiguous())


def test_neighbours_that_stay_together_are_moved_as_one_word() -> None:
    x = torch.arange(64, dtype=torch.uint8).view(4, 8, 2)

    chosen = plan_permute(tuple(x.shape), x.stride(), (1, 0, 2), 1, 0)
    off_by_one = plan_permute(tuple(x.shape), x.stride(), (1, 0, 2), 1, 1)

    assert chosen is not None
    assert off_by_one is not None
    assert str(chosen.element_types[0]) == "int16"
    assert str(off_by_one.element_types[0]) == "int8"


def test_the_strides_of_a_gradient_that_is_expanded_do_not_matter(device: str) -> None:
    x = torch.randn(3, 4, dtype=torch.float64, device=device, requires_grad=True)

    torch.autograd.backward(permute(x, (1, 0)).sum())

    assert x.grad is not None
    assert torch.equal(x.grad, torch.ones_like(x))


def test_what_torch_has_not_yet_conjugated_or_negated_is(device: str) -> None:
    z = torch.randn(3, 4, dtype=torch.complex64, device=device)
    conjugated, negated = z.conj(), z.conj().imag
    assert conjugated.is_conj()
    assert negated.is_neg()

    assert_bits_equal(permute(conjugated, (1, 0)), conjugated.T.resolve_conj().contiguous())
    assert_bits_equal(permute(negated, (1, 0)), negated.T.resolve_neg().contiguous())


def test_a_captured_graph_reads_what_its_input_holds_when_replayed(device: str) -> None:
    if device != "cuda":
        pytest.skip("graphs are captured on a GPU")
    x = torch.randn(65, 33, device=device)
    permute(x, (1, 0))  # compiled before the capture
    graph = torch.cuda.CUDAGraph()

    with torch.cuda.graph(graph):
        out = permute(x, (1, 0))
    x.copy_(torch.randn(65, 33, device=device))
    graph.replay()

    assert torch.equal(out, x.T)


def test_the_current_stream_is_the_one_that_runs_it(device: str) -> None:
    if device != "cuda":
        pytest.skip("streams are a GPU's")
    x = torch.zeros(65, 33, device=device)
    permute(x, (1, 0))
    torch.cuda.synchronize()
    stream = torch.cuda.Stream()  # type: ignore[no-untyped-call]  # torch's own is untyped

    with torch.cuda.stream(stream):
        # On another stream x would be read before it is filled.
        torch.cuda._sleep(100_000_000)  # type: ignore[no-untyped-call]
        x.fill_(1)
        out = permute(x, (1, 0))
    stream.synchronize()

    assert torch.equal(out, torch.ones_like(out))


@pytest.mark.parametrize(
    ("shape", "dims"),
    [((2, 3), (0, 0)), ((2, 3), (0, 2)), ((2, 3), (0,)), ((2, 3), (-3, 0)), ((), (0,)), ((1,) * 65, range(65))],
)  # fmt: skip
def test_dims_that_are_no_permutation_are_refused(shape: tuple[int, ...], dims: Any) -> None:
    with pytest.raises(InvalidInput) as refused:
        permute(torch.zeros(shape), tuple(dims))

    assert refused.value.argument in ("dims", "x")


@pytest.mark.parametrize(
    ("shape", "dims"),
    [
        ((46_349, 46_348), (1, 0)),  # just over 2^31 elements, odd
        ((2, 1 << 15, 1 << 15), (2, 1, 0)),  # 2^31 exactly
        ((3, 5, 150_000_001), (1, 0, 2)),  # rows that begin at any word
        ((3, 5, 150_000_016), (1, 0, 2)),  # rows beyond 32 bits
        ((2, (1 << 31) + 16), (1, 0)),  # one dim beyond 32 bits
        (((1 << 31) + 16, 2), (1, 0)),
        ((1 << 28, 3, 3), (0, 2, 1)),  # as many tiny matrices
    ],
)
def test_more_than_2_to_the_31_elements(
    shape: tuple[int, ...], dims: tuple[int, ...], device: str
) -> None:
    if device != "cuda":
        pytest.skip("needs the memory of a GPU")
    x = torch.randint(0, 256, shape, dtype=torch.uint8, device=device)

    out = permute(x, dims)

    assert torch.equal(out, x.permute(dims))


def test_a_small_part_of_a_tensor_of_more_than_2_to_the_31_elements(device: str) -> None:
    if device != "cuda":
        pytest.skip("needs the memory of a GPU")
    whole = torch.randint(0, 256, (70_000, 70_000), dtype=torch.uint8, device=device)
    x = whole[::1000, ::1000]

    assert torch.equal(permute(x, (1, 0)), x.T)


def test_rows_of_more_than_2_to_the_31_elements_that_lie_apart(device: str) -> None:
    if device != "cuda":
        pytest.skip("needs the memory of a GPU")
    x = torch.randint(0, 256, (2, 2**31 + 11), dtype=torch.uint8, device=device)[:, ::2]

    assert variant(x, (0, 1)) == "rows"
    assert torch.equal(permute(x, (0, 1)), x)


@pytest.mark.parametrize("size", [2, 3, 5, 7, 8, 641, 46341, 2**20 + 7, 2**30 + 1, 2**31 - 1])
def test_divisions_of_indices_are_exact(size: int) -> None:
    walker = division_arguments((4, size), (size, 1))
    factor, shift = walker["factors"][1] % 2**32, walker["shifts"][1]

    for times in (0, 1, 2, 3, 1000, (2**31 - 1) // size):
        for index in (times * size - 1, times * size, times * size + 1, 2**31 - 1):
            if 0 <= index < 2**31:
                assert index * factor // 2**32 >> shift == index // size
