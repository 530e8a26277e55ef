"""The variants for small inner dims: flat and chunks.

Tiles of such dims are so small that a program takes longer to start than to move one. In the chunks
variant the inner dims are one piece of memory on both sides: a program loads and stores whole pieces,
and their words change places between its threads. Otherwise the flat variant stores words in their
order, and gathers each of them. Transpose-add has the flat variant only.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import triton
import triton.language as tl

from warpcall_kernels._transpose import constants
from warpcall_kernels._transpose.kernels import as_term, linear_to_offset, size_of
from warpcall_kernels._transpose.strides import Dim, alignment, division_arguments
from warpcall_kernels.op.launch import VECTOR_BYTES

MOST_CHUNK_DIMS = 4
SECTOR_BYTES = 32  # the least that is read from memory
X = 0  # the operand, as `Dim.strides` has it


@triton.jit
def _numbers(COUNT: tl.constexpr, WIDE: tl.constexpr) -> tl.tensor:
    """The numbers of what a program moves, COUNT of them."""
    pid = tl.program_id(0)
    if WIDE:
        pid = pid.to(tl.int64)
    return pid * COUNT + tl.arange(0, COUNT)


@triton.jit
def _store(
    out_ptr: tl.tensor,
    i: tl.tensor,
    words: tl.tensor,
    whole: tl.tensor,
    inside: tl.tensor,
    REST: tl.constexpr,
) -> None:
    """Store words i of the output where `inside`. Those of whole accesses are below `whole`; with
    REST there are a few more.
    """
    tl.store(out_ptr + i, words, mask=i < whole)
    if REST and tl.program_id(0) == tl.num_programs(0) - 1:
        tl.store(out_ptr + i, words, mask=(i >= whole) & inside)


@triton.jit(do_not_specialize=("units", "rest"))
def flat_kernel(
    x_ptr: tl.tensor,
    out_ptr: tl.tensor,
    units: tl.tensor,
    rest: tl.tensor,
    sizes: tl.tensor,
    factors: tl.tensor,
    shifts: tl.tensor,
    steps: tl.tensor,
    NDIM: tl.constexpr,
    ALIGN: tl.constexpr,
    REST: tl.constexpr,
    WIDE: tl.constexpr,
    BLOCK: tl.constexpr,
) -> None:
    """Gather single words in the order of the output: units * ALIGN of them, and with REST `rest` more."""
    i = _numbers(BLOCK, WIDE)
    whole = size_of(units, ALIGN, WIDE)
    inside = i < (whole + rest if REST else whole)
    at = linear_to_offset(i, sizes, factors, shifts, steps, NDIM, 1, WIDE)
    _store(out_ptr, i, tl.load(x_ptr + at, mask=inside), whole, inside, REST)


@triton.jit(do_not_specialize=("chunks",))
def chunks_kernel(
    x_ptr: tl.tensor,
    out_ptr: tl.tensor,
    chunks: tl.tensor,
    sizes: tl.tensor,
    factors: tl.tensor,
    shifts: tl.tensor,
    steps: tl.tensor,
    NDIM: tl.constexpr,
    ALIGN: tl.constexpr,
    WIDE: tl.constexpr,
    SHAPE: tl.constexpr,
    ORDER: tl.constexpr,
    COUNT: tl.constexpr,
    CHUNK: tl.constexpr,
) -> None:
    """Permute chunks of words that are contiguous on both sides, each inside of a program.

    Args:
        SHAPE: COUNT chunks, and the dims of a chunk as they lie in x.
        ORDER: of these dims in the output.
    """
    chunk = _numbers(COUNT, WIDE)
    word = tl.arange(0, CHUNK)[None, :]
    inside = (chunk < chunks)[:, None]
    begin = linear_to_offset(chunk, sizes, factors, shifts, steps, NDIM, ALIGN, WIDE)
    words = tl.load(x_ptr + (begin[:, None] + word), mask=inside)
    words = tl.reshape(words, SHAPE)
    # Triton takes no tuple of constants that it has not seen in the source.
    if len(ORDER) == 3:
        words = tl.permute(words, (ORDER[0], ORDER[1], ORDER[2]))
    elif len(ORDER) == 4:
        words = tl.permute(words, (ORDER[0], ORDER[1], ORDER[2], ORDER[3]))
    else:
        words = tl.permute(words, (ORDER[0], ORDER[1], ORDER[2], ORDER[3], ORDER[4]))
    words = tl.reshape(words, (COUNT, CHUNK))
    tl.store(out_ptr + (chunk[:, None] * CHUNK + word), words, mask=inside)


@triton.jit(do_not_specialize=("units", "rest"))
def flat_add_kernel(
    a_ptr: tl.tensor,
    out_ptr: tl.tensor,
    b_ptr: tl.tensor,
    units: tl.tensor,
    rest: tl.tensor,
    a_sizes: tl.tensor,
    a_factors: tl.tensor,
    a_shifts: tl.tensor,
    a_steps: tl.tensor,
    b_sizes: tl.tensor,
    b_factors: tl.tensor,
    b_shifts: tl.tensor,
    b_steps: tl.tensor,
    NDIM_A: tl.constexpr,
    NDIM_B: tl.constexpr,
    EVEN_B: tl.constexpr,
    ALIGN: tl.constexpr,
    REST: tl.constexpr,
    WIDE: tl.constexpr,
    ACC: tl.constexpr,
    FLOAT: tl.constexpr,
    LOGICAL: tl.constexpr,
    BLOCK: tl.constexpr,
) -> None:
    """Gather the elements of a and of b in the order of the output, and add them.

    Args:
        EVEN_B: whether b lies as the output does.
    """
    i = _numbers(BLOCK, WIDE)
    whole = size_of(units, ALIGN, WIDE)
    inside = i < (whole + rest if REST else whole)
    a_at = linear_to_offset(i, a_sizes, a_factors, a_shifts, a_steps, NDIM_A, 1, WIDE)
    b_at = i
    if not EVEN_B:
        b_at = linear_to_offset(i, b_sizes, b_factors, b_shifts, b_steps, NDIM_B, 1, WIDE)
    a = as_term(tl.load(a_ptr + a_at, mask=inside), out_ptr, ACC, FLOAT)
    b = as_term(tl.load(b_ptr + b_at, mask=inside), out_ptr, ACC, FLOAT)
    total = a | b if LOGICAL else a + b
    _store(out_ptr, i, total.to(out_ptr.dtype.element_ty), whole, inside, REST)


def whole_accesses(words: int, word: int) -> dict[str, int | bool]:
    """The arguments of both kernels that say how many accesses of 16 bytes the words are."""
    width = VECTOR_BYTES // word
    units, rest = divmod(words, width)
    return {"units": units, "rest": rest, "ALIGN": width, "REST": rest > 0}


def words(dims: Sequence[Dim], word: int) -> tuple[int, dict[str, Any]]:
    """The programs and the arguments of the flat variant.

    Args:
        dims: in the order of the output.
        word: bytes of a word.
    """
    total = math.prod(n for n, _ in dims)
    block = constants.FLAT_BYTES // word
    arguments = {
        **whole_accesses(total, word),
        **division_arguments(tuple(n for n, _ in dims), tuple(s[X] for _, s in dims)),
        "NDIM": len(dims),
        "BLOCK": block,
        "num_warps": constants.FLAT_WARPS,
    }
    return triton.cdiv(total, block), arguments


def read_for_each_byte(dims: Sequence[Dim], word: int, begin: int) -> float:
    """How many bytes of x the first program of the flat variant reads, as whole sectors, for each
    byte that it moves.

    Args:
        dims: in the order of the output.
        word: bytes of a word.
        begin: words from an address that 16 bytes divide to x.
    """
    block = constants.FLAT_BYTES // word
    at = [begin]
    for size, strides in reversed(dims):
        count = min(size, triton.cdiv(block, len(at)))
        at = [place + k * strides[X] for k in range(count) for place in at]
    at = at[:block]
    sectors = {place * word // SECTOR_BYTES for place in at}
    return len(sectors) * SECTOR_BYTES / (len(at) * word)


def chunk_of(dims: Sequence[Dim], word: int) -> list[Dim] | None:
    """The fewest inner dims of the output that are one piece of memory in x, too, in x's order.

    None if they are not powers of two, or more words or dims than a program takes.
    """
    for count in range(2, 1 + min(len(dims), MOST_CHUNK_DIMS)):
        inner, step = sorted(dims[-count:], key=lambda dim: dim.strides[X]), 1
        for size, strides in inner:
            if strides[X] != step or size & (size - 1):
                break
            step *= size
        else:
            return inner[::-1] if step * word <= constants.CHUNK_BYTES else None
    return None


def chunks(dims: Sequence[Dim], word: int, begin: int) -> tuple[int, dict[str, Any]]:
    """The programs and the arguments of the chunks variant, for dims that have a chunk.

    Args:
        begin: words from an address that 16 bytes divide to x.
    """
    inner = chunk_of(dims, word)
    assert inner is not None
    outer = list(dims[: -len(inner)]) or [Dim(1, (0, 0))]
    chunk, total = math.prod(n for n, _ in inner), math.prod(n for n, _ in outer)
    count = constants.CHUNK_BYTES // word // chunk
    arguments = {
        "chunks": total,
        **division_arguments(tuple(n for n, _ in outer), tuple(s[X] for _, s in outer)),
        "NDIM": len(outer),
        "ALIGN": alignment(word, [begin, *(s[X] for _, s in outer)]),
        "SHAPE": (count, *(n for n, _ in inner)),
        "ORDER": (0, *(inner.index(dim) + 1 for dim in dims[-len(inner) :])),
        "COUNT": count,
        "CHUNK": chunk,
        "num_warps": constants.CHUNK_WARPS,
    }
    return triton.cdiv(total, count), arguments
