"""The staged variant of a permutation: a tile of any sizes, gathered from shared memory.

The sides of the other variants' tiles are powers of two, so that dims such as 7 and 37 leave many
lanes idle. Here a program loads the elements of a tile one after another, as they follow each
other in x, into shared memory. It then gathers them from there along runs of the output. A run is
the part of a tile that is contiguous in the output.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import triton
import triton.language as tl

from warpcall_kernels._transpose import constants
from warpcall_kernels._transpose.kernels import linear_to_offset
from warpcall_kernels._transpose.strides import Dim, division_arguments, merge, offset, reach

X, OUT = 0, 1  # the operands, as `Dim.strides` has them
LARGEST_REACH = 2**31 - 2**16  # elements that the offsets inside of a tile reach
MOST_TRIED = 64  # ways to cut a dim
# Arguments that Triton does not compile variants for.
UNSPECIALIZED = (
    *("count", "runs", "length"),
    *("parts", "extents", "lasts", "x_moves", "out_moves"),
    *("x_sizes", "x_factors", "x_shifts", "x_steps"),
    *("along_sizes", "along_factors", "along_shifts", "along_steps"),
    *("run_sizes", "run_factors", "run_shifts", "run_steps", "out_steps"),
)


@triton.jit(do_not_specialize=UNSPECIALIZED)
def staged_kernel(
    x_ptr: tl.tensor,
    out_ptr: tl.tensor,
    count: tl.tensor,
    runs: tl.tensor,
    length: tl.tensor,
    parts: tl.tensor,
    extents: tl.tensor,
    lasts: tl.tensor,
    x_moves: tl.tensor,
    out_moves: tl.tensor,
    x_sizes: tl.tensor,
    x_factors: tl.tensor,
    x_shifts: tl.tensor,
    x_steps: tl.tensor,
    along_sizes: tl.tensor,
    along_factors: tl.tensor,
    along_shifts: tl.tensor,
    along_steps: tl.tensor,
    run_sizes: tl.tensor,
    run_factors: tl.tensor,
    run_shifts: tl.tensor,
    run_steps: tl.tensor,
    out_steps: tl.tensor,
    sizes: tl.tensor,
    x_strides: tl.tensor,
    out_strides: tl.tensor,
    NDIM_X: tl.constexpr,
    NDIM_ALONG: tl.constexpr,
    NDIM_RUN: tl.constexpr,
    NDIM: tl.constexpr,
    WIDE: tl.constexpr,
    HELD: tl.constexpr,
    RUNS: tl.constexpr,
    LENGTH: tl.constexpr,
) -> None:
    """Move a tile of `count` elements, which are `runs` runs of `length` in the output.

    Args:
        parts: tiles along each of the two dims that may be cut.
        extents: elements of a tile along them; the last tile overlaps the one before.
        lasts: where the last tile along them begins.
        x_moves, out_moves: the strides of these dims.
        x_*: of the elements of a tile, in the order of x.
        along_*: of the positions in a run, and their places in shared memory.
        run_*: of the runs, and their places in shared memory; `out_steps` in the output.
        sizes: of the dims that are not in the tile.
    """
    pid = tl.program_id(0)
    if WIDE:
        pid = pid.to(tl.int64)
    first = tl.minimum(pid % parts[0] * extents[0], lasts[0])
    pid = pid // parts[0]
    second = tl.minimum(pid % parts[1] * extents[1], lasts[1])
    rest = pid // parts[1]
    x_ptr += offset(rest, sizes, x_strides, NDIM, 1) + first * x_moves[0] + second * x_moves[1]
    out_ptr += offset(rest, sizes, out_strides, NDIM, 1)
    out_ptr += first * out_moves[0] + second * out_moves[1]

    n = tl.arange(0, HELD)
    at = linear_to_offset(n, x_sizes, x_factors, x_shifts, x_steps, NDIM_X, 1, False)
    held = tl.load(x_ptr + at, mask=n < count)

    run, along = tl.arange(0, RUNS), tl.arange(0, LENGTH)
    # Lanes past the end look at the last run and position, so that they stay inside of the tile.
    from_run = linear_to_offset(
        tl.minimum(run, runs - 1), run_sizes, run_factors, run_shifts, run_steps, NDIM_RUN, 1, False
    )
    to_run = linear_to_offset(
        run, run_sizes, run_factors, run_shifts, out_steps, NDIM_RUN, 1, False
    )
    from_along = linear_to_offset(
        *(tl.minimum(along, length - 1), along_sizes, along_factors, along_shifts, along_steps),
        *(NDIM_ALONG, 1, False),
    )
    places = tl.reshape(from_run[:, None] + from_along[None, :], (RUNS * LENGTH,))
    moved = tl.reshape(tl.gather(held, places, 0), (RUNS, LENGTH))
    inside = (run < runs)[:, None] & (along < length)[None, :]
    tl.store(out_ptr + (to_run[:, None] + along[None, :]), moved, mask=inside)


class Cut(NamedTuple):
    """A dim that is cut into tiles."""

    dim: Dim
    parts: int
    extent: int


class Tile(NamedTuple):
    """Tiles of a permutation.

    Args:
        dims: the dims of a tile, in the order of the output, with the sizes that they have in it.
        cuts: two dims that are cut, of which both may have one part.
        rest: the dims of which a tile has one element.
        warps: of a program.
    """

    dims: list[Dim]
    cuts: tuple[Cut, Cut]
    rest: list[Dim]
    warps: int

    @property
    def elements(self) -> int:
        """Elements of a tile."""
        return math.prod(dim.size for dim in self.dims)

    @property
    def inner(self) -> int:
        """How many of the last dims are contiguous in the output: a run."""
        length = 1
        for n, dim in enumerate(reversed(self.dims)):
            if dim.strides[OUT] != length:
                return n
            length *= dim.size
        return len(self.dims)

    @property
    def length(self) -> int:
        """Elements of a run."""
        return math.prod(dim.size for dim in self.dims[len(self.dims) - self.inner :])

    @property
    def programs(self) -> int:
        return math.prod((*(cut.parts for cut in self.cuts), *(dim.size for dim in self.rest)))

    @property
    def lanes(self) -> int:
        """Lanes that load and lanes that store, in all programs; some of them are idle."""
        length = self.length
        stored = triton.next_power_of_2(length) * triton.next_power_of_2(self.elements // length)
        lanes: int = self.programs * (triton.next_power_of_2(self.elements) + stored)
        return lanes

    def arguments(self) -> dict[str, Any]:
        """The arguments of `staged_kernel`."""
        in_x = sorted(self.dims, key=lambda dim: -dim.strides[X])
        place, places = 1, {}
        for dim in reversed(in_x):
            places[dim] = place
            place *= dim.size
        split = len(self.dims) - self.inner
        outer, inner = self.dims[:split], self.dims[split:]
        held = _merged([(dim.size, dim.strides[X]) for dim in in_x], 1)
        along = _merged([(dim.size, places[dim]) for dim in inner], 1)
        run = _merged([(dim.size, places[dim], dim.strides[OUT]) for dim in outer], 2)
        one, other = self.cuts
        rest = self.rest or [Dim(1, (0, 0))]
        return {
            "count": self.elements,
            "runs": self.elements // self.length,
            "length": self.length,
            "parts": (one.parts, other.parts),
            "extents": (one.extent, other.extent),
            "lasts": (one.dim.size - one.extent, other.dim.size - other.extent),
            "x_moves": (one.dim.strides[X], other.dim.strides[X]),
            "out_moves": (one.dim.strides[OUT], other.dim.strides[OUT]),
            **_walk(held, 0, "x_"),
            **_walk(along, 0, "along_"),
            **_walk(run, 0, "run_"),
            "out_steps": _walk(run, 1, "")["steps"],
            "sizes": tuple(dim.size for dim in rest),
            "x_strides": tuple(dim.strides[X] for dim in rest),
            "out_strides": tuple(dim.strides[OUT] for dim in rest),
            "NDIM_X": len(held),
            "NDIM_ALONG": len(along),
            "NDIM_RUN": len(run),
            "NDIM": len(rest),
            "HELD": triton.next_power_of_2(self.elements),
            "RUNS": triton.next_power_of_2(self.elements // self.length),
            "LENGTH": triton.next_power_of_2(self.length),
            "num_warps": self.warps,
        }


def plan_tile(
    dims: Sequence[Dim], word: int, shapes: Mapping[int, constants.Staged]
) -> Tile | None:
    """The tile that leaves the fewest lanes idle, or None if none is suitable.

    Args:
        dims: in the order of the output, with their strides in x and in the output, in words.
        word: bytes of a word.
        shapes: STAGED_TILES or STAGED_ROWS.
    """
    shape = shapes.get(word)
    chains = [_chain(dims, operand, word) for operand in (X, OUT)]
    if shape is None or not all(chains):
        return None
    cuts = sorted({chain[-1] for chain in chains})
    members = sorted({dim for chain in chains for dim in chain})
    fixed = math.prod(dims[d].size for d in members if d not in cuts)
    # Cut no dim so small that runs of x or of the output get shorter than STAGED_RUN_BYTES.
    least: dict[int, int] = {}
    for chain in chains:
        run = math.prod(dims[d].size for d in chain[:-1]) * word
        least[chain[-1]] = max(least.get(chain[-1], 1), -(-constants.STAGED_RUN_BYTES // run))
    first, *second = cuts
    most = shape.elements // fixed
    found = []
    for extent in _extents(dims[first].size, least[first], most):
        wanted = {first: extent, **{d: most // extent for d in second}}
        if all(wanted[d] >= min(least[d], dims[d].size) for d in cuts):
            found.append(_tile(dims, members, wanted, shape.warps))
    tile = min(found, key=lambda tile: (tile.lanes, tile.programs), default=None)
    if tile is None:
        return None
    sizes = [dim.size for dim in tile.dims]
    spans = [reach(sizes, [dim.strides[operand] for dim in tile.dims]) for operand in (X, OUT)]
    return tile if max(spans) < LARGEST_REACH else None


def _chain(dims: Sequence[Dim], operand: int, word: int) -> list[int]:
    """The dims, the innermost first, that are one run of RUN_BYTES in this operand."""
    chain: list[int] = []
    run = 1
    while run * word < constants.RUN_BYTES:
        onward = [d for d, dim in enumerate(dims) if dim.strides[operand] == run and d not in chain]
        if not onward:
            break
        chain.append(onward[0])
        run *= dims[onward[0]].size
    return chain


def _extents(size: int, least: int, most: int) -> list[int]:
    """What a tile may have of a dim of this size, from least to most, so that parts are alike."""
    least, most = min(least, size), min(most, size)
    if least > most:
        return []
    fewest = -(-size // most)
    parts = range(fewest, min(-(-size // least), fewest + MOST_TRIED) + 1)
    return sorted({-(-size // n) for n in parts})


def _tile(dims: Sequence[Dim], members: Sequence[int], wanted: dict[int, int], warps: int) -> Tile:
    """A tile of these dims, of which those in `wanted` are cut to at most so many elements."""
    cuts = []
    for d, extent in wanted.items():
        parts = -(-dims[d].size // extent)
        cuts.append(Cut(dims[d], parts, -(-dims[d].size // parts)))
    extents = {d: cut.extent for d, cut in zip(wanted, cuts, strict=True)}
    kept = [Dim(extents.get(d, dims[d].size), dims[d].strides) for d in members]
    rest = [dim for d, dim in enumerate(dims) if d not in members]
    one, *others = cuts
    return Tile(kept, (one, others[0] if others else Cut(Dim(1, (0, 0)), 1, 1)), rest, warps)


def _merged(dims: Sequence[tuple[int, ...]], operands: int) -> list[Dim]:
    """`merge` of (size, stride of each operand), with one dim at least."""
    sizes, *strides = zip(*dims, strict=True) if dims else [()] * (operands + 1)
    return merge(sizes, *strides) or [Dim(1, (0,) * operands)]


def _walk(dims: Sequence[Dim], operand: int, side: str) -> dict[str, Any]:
    """`division_arguments` of the dims of one operand."""
    sizes = tuple(dim.size for dim in dims)
    return division_arguments(sizes, tuple(dim.strides[operand] for dim in dims), side)
