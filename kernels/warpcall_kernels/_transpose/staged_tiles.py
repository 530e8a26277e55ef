"""The tiles of the staged variant: which dims they have, how they are cut, and how they lie in shared
memory.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import triton

from warpcall_kernels._transpose import constants
from warpcall_kernels._transpose.strides import Dim, division_arguments, merge, reach

X, OUT = 0, 1  # the operands, as `Dim.strides` has them
LARGEST_REACH = 2**31 - 2**16  # elements that the offsets inside of a tile reach
MOST_TRIED = 64  # ways to cut a dim
BANKS = 32  # of shared memory
BANK_BYTES = 4
LANES = 32  # of a warp
MOST_PADDED = 12  # accesses that a row may be padded by
WARPS_TRIED = 2  # of which bank conflicts are counted
# A tile with fewer bank conflicts may have so many times the lanes of another. The lanes of a tile
# cost as much as OTHER_ACCESSES without conflicts.
MORE_LANES = 1.25
OTHER_ACCESSES = 3
ENDS_BYTES = 64  # a sector for each end of a row of x, and of a run of the output


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
        word: bytes of an element.
        shape: the accesses and warps of a program.
    """

    dims: list[Dim]
    cuts: tuple[Cut, Cut]
    rest: list[Dim]
    word: int
    shape: constants.Staged

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
    def row(self) -> list[Dim]:
        """The dims that are contiguous in x, the innermost first: a row."""
        row: list[Dim] = []
        for dim in sorted(self.dims, key=lambda dim: dim.strides[X]):
            if dim.strides[X] == math.prod(d.size for d in row):
                row.append(dim)
        return row

    @property
    def rows(self) -> list[Dim]:
        """The other dims, the outermost in x first."""
        row = self.row
        return sorted((d for d in self.dims if d not in row), key=lambda d: -d.strides[X])

    @property
    def unit(self) -> tuple[int, int]:
        """Elements of a unit, and units of an access."""
        outer = self.dims[: len(self.dims) - self.inner]
        # Where a row begins inside an access must depend on nothing but the position in a run.
        apart = any(dim in self.rows for dim in outer)
        return (1, 1) if apart else (self.shape.per, self.shape.units)

    @property
    def least_accesses(self) -> int:
        """Accesses that a row needs, wherever it begins."""
        access = math.prod(self.unit)
        return -(-(math.prod(dim.size for dim in self.row) + access - 1) // access)

    @property
    def lanes(self) -> int:
        """Elements that lanes load and that lanes store, in all programs; some do not exist."""
        per, units = self.unit
        rows = math.prod(dim.size for dim in self.rows)
        loaded = triton.next_power_of_2(self.least_accesses * rows) * per * units
        length = triton.next_power_of_2(-(-(self.length + per - 1) // per)) * per
        stored = length * triton.next_power_of_2(self.elements // self.length)
        lanes: int = self.programs * (loaded + stored)
        return lanes

    @property
    def cost(self) -> float:
        """The lanes of all programs, weighted by their accesses to shared memory and by how many
        sectors of memory they read and write in part.
        """
        row = math.prod(dim.size for dim in self.row) * self.word
        ends = (1 + ENDS_BYTES / row) * (1 + ENDS_BYTES / (self.length * self.word))
        return self.lanes * (OTHER_ACCESSES + self.conflicts(self.accesses)) * ends

    @property
    def accesses(self) -> int:
        """Accesses of a row, with those that it is padded by to have few bank conflicts."""
        least, rows = self.least_accesses, math.prod(dim.size for dim in self.rows)
        most = triton.next_power_of_2(least * rows) // rows
        tried = range(least, min(most, least + MOST_PADDED) + 1)
        return min(tried, key=lambda accesses: (self.conflicts(accesses), accesses))

    def conflicts(self, accesses: int) -> float:
        """How often a warp accesses shared memory to gather an element for each lane.

        Args:
            accesses: of a row.
        """
        inner = self.dims[len(self.dims) - self.inner :]
        places = self._places(accesses)
        step = self.unit[0]
        total = 0
        for warp in range(WARPS_TRIED):
            words = set()
            for lane in range(LANES):
                position, place = (warp * LANES + lane) * step, 0
                for dim in reversed(inner):
                    position, index = divmod(position, dim.size)
                    place += index * places[dim]
                words.add(place * self.word // BANK_BYTES)
            banks = [word % BANKS for word in words]
            total += max(banks.count(bank) for bank in set(banks))
        return total / WARPS_TRIED

    def _places(self, accesses: int) -> dict[Dim, int]:
        """The strides of the dims in shared memory, in elements."""
        places = {dim: dim.strides[X] for dim in self.row}
        step = accesses * math.prod(self.unit)
        for dim in reversed(self.rows):
            places[dim] = step
            step *= dim.size
        return places

    def arguments(self, skew: int, end: int) -> dict[str, Any]:
        """The arguments of `staged_kernel`.

        Args:
            skew: elements from an address that 16 bytes divide to x.
            end: elements of x from its first to its last, both included.
        """
        per, units = self.unit
        skew %= per * units
        accesses, rows = self.accesses, self.rows
        places = self._places(accesses)
        begins = {dim: dim.strides[X] if dim in rows else 0 for dim in self.dims}
        split = len(self.dims) - self.inner
        outer, inner = self.dims[:split], self.dims[split:]
        held = _merged([*((d.size, d.strides[X]) for d in rows), (accesses, per * units)], 1)
        along = _merged([(dim.size, places[dim], begins[dim]) for dim in inner], 2)
        run = _merged([(dim.size, places[dim], *dim.strides) for dim in outer], 3)
        one, other = self.cuts
        rest = self.rest or [Dim(1, (0, 0))]
        loads = accesses * math.prod(dim.size for dim in rows)
        return {
            "skew": skew,
            "end": skew + end,
            "span": reach([d.size for d in rows], [d.strides[X] for d in rows])
            + accesses * per * units,
            "accesses": loads,
            "runs": self.elements // self.length,
            "length": self.length,
            "last": sum((dim.size - 1) * dim.strides[X] for dim in inner),
            "parts": (one.parts, other.parts),
            "extents": (one.extent, other.extent),
            "lasts": (one.dim.size - one.extent, other.dim.size - other.extent),
            "x_moves": (one.dim.strides[X], other.dim.strides[X]),
            "out_moves": (one.dim.strides[OUT], other.dim.strides[OUT]),
            **_walk(held, 0, "x_"),
            **_walk(along, 0, "along_"),
            "along_row_steps": _walk(along, 1, "")["steps"],
            **_walk(run, 0, "run_"),
            "run_x_steps": _walk(run, 1, "")["steps"],
            "run_out_steps": _walk(run, 2, "")["steps"],
            "sizes": tuple(dim.size for dim in rest),
            "x_strides": tuple(dim.strides[X] for dim in rest),
            "out_strides": tuple(dim.strides[OUT] for dim in rest),
            "NDIM_X": len(held),
            "NDIM_ALONG": len(along),
            "NDIM_RUN": len(run),
            "NDIM": len(rest),
            "SKEWED": skew > 0,
            "PER": per,
            "UNITS": units,
            "HELD": triton.next_power_of_2(loads),
            "RUNS": triton.next_power_of_2(self.elements // self.length),
            "LENGTH": triton.next_power_of_2(-(-(self.length + per - 1) // per)),
            "num_warps": self.shape.warps,
        }


def plan_tile(
    dims: Sequence[Dim], word: int, shapes: Mapping[int, constants.Staged]
) -> Tile | None:
    """The tile of the least cost, or None if none is suitable.

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
        others: list[dict[int, int]] = [{}]
        if second:
            (d,) = second
            run = math.prod(dims[c].size for chain in chains if chain[-1] == d for c in chain[:-1])
            others = [{d: size} for size in _sizes(run, most // extent)]
        for other in others:
            wanted = {first: extent, **other}
            if all(wanted[d] >= min(least[d], dims[d].size) for d in cuts):
                found.append(_tile(dims, members, wanted, word, shape))
    fewest = min((tile.lanes for tile in found), default=0)
    close = [tile for tile in found if tile.lanes <= MORE_LANES * fewest]
    tile = min(close, key=lambda tile: (tile.cost, tile.programs), default=None)
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


def _sizes(run: int, most: int) -> list[int]:
    """What a tile may have of a dim: the most, or so many runs that they fill a power of two."""
    filled = (triton.next_power_of_2(run * most) // 2) // run
    return [most, filled] if 0 < filled < most else [most]


def _tile(
    dims: Sequence[Dim],
    members: Sequence[int],
    wanted: dict[int, int],
    word: int,
    shape: constants.Staged,
) -> Tile:
    """A tile of these dims, of which those in `wanted` are cut to at most so many elements."""
    cuts = []
    for d, extent in wanted.items():
        parts = -(-dims[d].size // extent)
        cuts.append(Cut(dims[d], parts, -(-dims[d].size // parts)))
    extents = {d: cut.extent for d, cut in zip(wanted, cuts, strict=True)}
    kept = [Dim(extents.get(d, dims[d].size), dims[d].strides) for d in members]
    rest = [dim for d, dim in enumerate(dims) if d not in members]
    one, *others = cuts
    second = others[0] if others else Cut(Dim(1, (0, 0)), 1, 1)
    return Tile(kept, (one, second), rest, word, shape)


def _merged(dims: Sequence[tuple[int, ...]], operands: int) -> list[Dim]:
    """`merge` of (size, stride of each operand), with one dim at least."""
    sizes, *strides = zip(*dims, strict=True) if dims else [()] * (operands + 1)
    return merge(sizes, *strides) or [Dim(1, (0,) * operands)]


def _walk(dims: Sequence[Dim], operand: int, side: str) -> dict[str, Any]:
    """`division_arguments` of the dims of one operand."""
    sizes = tuple(dim.size for dim in dims)
    return division_arguments(sizes, tuple(dim.strides[operand] for dim in dims), side)
