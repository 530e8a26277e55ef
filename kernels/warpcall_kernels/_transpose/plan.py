"""How a permutation is launched: its variant, and the arguments of its kernel.

The variants of permute and, where the table does not say otherwise, of transpose-add (add_plan.py):

| variant | taken when | why | measured on an H200 | file |
| --- | --- | --- | --- | --- |
| COPY | no dim moves once dims are merged (permute only) | torch copies at full speed | | none |
| ROWS | the inner dim of x stays the inner dim of the output (permute only) | rows are contiguous on both sides and need no transposition | | kernels.py |
| UNALIGNED | one dim on each side, rows that do not begin at words of 8 bytes, at least UNALIGNED_MIN_TILES tiles | threads assemble aligned words, so no access is narrower than 8 bytes | 8 to 12 % less time than TILES, 15 to 41 % less with an addition | unaligned.py |
| COMPLEX | the sum is complex (transpose-add only) | as TILES, with pairs of a real and an imaginary part | | complex_add.py |
| CHANNELS | x has 2 to 6 interleaved channels of 1 or 2 bytes, and the output planes of at least CHANNELS_MIN_PIXELS pixels; not if an even number of channels of 2 bytes have aligned planes (permute only) | tiles would move single elements, and have few lanes for odd numbers of channels | 10 to 48 % less time than TILES; for 4 aligned channels of 1 byte as much | channels.py |
| STAGED | the tiles of 2-byte words that begin at any word leave so many lanes idle that they need STAGED_GAIN times as many as a staged tile; or short rows of 4-byte words that are neighbours in x lie far apart in the output (permute only) | tiles of any size are gathered from shared memory | 39 % less time than TILES, 17 % less than ROWS | staged.py, staged_tiles.py |
| CHUNKS | tiles would have fewer than FLAT_TILE_BYTES, and the inner dims, all powers of two, are one piece of memory on both sides (permute only) | a program loads and stores whole pieces, and moves words between its threads | 36 us where tiles take 724, for [1048576, 4, 4] fp32 | flat.py |
| FLAT | tiles would have fewer than FLAT_TILE_BYTES, and there are no such pieces; or there are many tiles with idle lanes, of at most FLAT_TILE_WORDS words or whose words of up to FLAT_NARROW bytes are stored one by one, and a block of the output comes from whole sectors of x; or rows that stay rows begin at any word | a program stores words in their order and gathers each; the words that are beside them in memory come from the L1 | 72 us where tiles take 381, for [16, 64, 2, 2, 128, 128] bf16 | flat.py |
| TILES | everything else | a tile is loaded along the rows of x and stored along the rows of the output, so that both are coalesced; programs walk the output in its order | the order: 2 to 3 % less time for (2, 1, 0), and 2 % less if x is kept in the L2 | kernels.py |

The constants are in constants.py. Before a variant is chosen, dims are merged and elements are
widened to words, as far as the layout and the alignment allow.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from enum import StrEnum
from typing import Any, NamedTuple

import triton

from warpcall_kernels._transpose import channels, constants, flat, staged_tiles, unaligned
from warpcall_kernels._transpose.kernels import rows_kernel, tiles_kernel
from warpcall_kernels._transpose.staged import staged_kernel
from warpcall_kernels._transpose.strides import (
    WORDS,
    Dim,
    alignment,
    contiguous_strides,
    division_arguments,
    merge,
    needs_int64,
    reach,
    reciprocal,
)
from warpcall_kernels.op.launch import VECTOR_BYTES, Launch

X, OUT = 0, 1  # the operands of a permutation, as `Dim.strides` has them


class Variant(StrEnum):
    """The variants of the table above."""

    COPY = "copy"
    ROWS = "rows"
    TILES = "tiles"
    UNALIGNED = "unaligned"
    COMPLEX = "complex"
    CHANNELS = "channels"
    STAGED = "staged"
    FLAT = "flat"
    CHUNKS = "chunks"


class Permutation(NamedTuple):
    """A permutation, once its dims are merged and its elements widened.

    Args:
        dims: in the order of the output, with their strides in x and in the output, in words.
        word: bytes of a word.
        begin: words from an address that 16 bytes divide to x.
    """

    dims: list[Dim]
    word: int
    begin: int

    @property
    def inner(self) -> int:
        """Which dim is the inner one of x: that of the least stride, other than 0."""
        strides = [dim.strides[X] or math.inf for dim in self.dims]
        return min(range(len(strides)), key=lambda d: (strides[d], -d))


class Sides(NamedTuple):
    """The dims of a permutation that is cut into tiles, the outermost first.

    Args:
        i: the dims of a tile along which x is contiguous, or nearly so.
        j: the dims of a tile along which the output is contiguous.
        rest: all others.
    """

    i: list[Dim]
    j: list[Dim]
    rest: list[Dim]


class Program(NamedTuple):
    """A kernel, how many programs it needs, and its arguments but for the tensors."""

    kernel: Any
    programs: int
    arguments: dict[str, Any]


def plan_permute(
    sizes: Sequence[int],
    strides: Sequence[int],
    dims: Sequence[int],
    itemsize: int,
    address: int,
) -> Launch | None:
    """Choose the launch of a permutation; None means a plain copy.

    Args:
        sizes: the sizes of x, none of them zero.
        strides: the strides of x, in elements.
        dims: for each dim of the output the dim of x, normalised.
        itemsize: bytes of an element.
        address: the address of the first element of x, modulo 16.
    """
    shape = [sizes[d] for d in dims]
    merged = merge(shape, [strides[d] for d in dims], contiguous_strides(shape))
    merged, word = widen(merged, itemsize, address)
    permutation = Permutation(merged, word, address // word)
    variant = choose(permutation)
    if variant is Variant.COPY:
        return None
    arrange = {
        Variant.ROWS: _rows,
        Variant.TILES: _tiles,
        Variant.UNALIGNED: _unaligned,
        Variant.CHANNELS: _channels,
        Variant.STAGED: _staged,
        Variant.FLAT: _flat,
        Variant.CHUNKS: _chunks,
    }
    program = arrange[variant](permutation)
    lengths = [dim.size for dim in merged]
    spans = [reach(lengths, [dim.strides[operand] for dim in merged]) for operand in (X, OUT)]
    return Launch(
        program.kernel,
        (program.programs,),
        {**program.arguments, "WIDE": needs_int64(spans)},
        (WORDS[word], WORDS[word]),
        variant,
    )


def choose(permutation: Permutation) -> Variant:
    """The variant that is fastest for this permutation; the table of variants says why."""
    dims = permutation.dims
    if len(dims) <= 1:
        return Variant.COPY
    if permutation.inner == len(dims) - 1:
        if _rows_are_scattered(permutation):
            return Variant.STAGED
        return Variant.FLAT if _rows_begin_at_any_word(permutation) else Variant.ROWS
    if _images(permutation).applies():
        return Variant.CHANNELS
    sides = split_sides(permutation)
    if len(sides.i) == len(sides.j) == 1 and _matrices(permutation, sides).applies():
        return Variant.UNALIGNED
    tiles = _tiles(permutation)
    if _gathers_whole_sectors(permutation, tiles):
        return Variant.FLAT
    if _fills_tiles_badly(permutation, tiles):
        return Variant.STAGED
    small = constants.TILES_SMALL[permutation.word]
    words = tiles.arguments["BLOCK_I"] * tiles.arguments["BLOCK_J"]
    if are_small(tiles, words, permutation.word, small.i * small.j):
        return Variant.CHUNKS if flat.chunk_of(permutation.dims, permutation.word) else Variant.FLAT
    return Variant.TILES


def widen(merged: list[Dim], itemsize: int, address: int) -> tuple[list[Dim], int]:
    """Dims in words, and the bytes of a word: up to 8, as long as pairs of elements stay
    neighbours.
    """
    if itemsize == 16:  # two words of 8 bytes, as a further inner dim that does not move
        doubled = [Dim(n, (sx * 2, so * 2)) for n, (sx, so) in merged]
        merged = [*doubled, Dim(2, (1, 1))]
        return merge([n for n, _ in merged], *zip(*(s for _, s in merged), strict=True)), 8
    word = itemsize
    while word < 8 and merged and address % (2 * word) == 0:
        *outer, (n, inner) = merged
        if inner != (1, 1) or n % 2 or any(step % 2 for _, steps in outer for step in steps):
            break
        halved = [Dim(size, (sx // 2, so // 2)) for size, (sx, so) in outer]
        merged = [*halved, Dim(n // 2, (1, 1))] if n > 2 else halved
        word *= 2
    return merged, word


def split_sides(permutation: Permutation) -> Sides:
    """The dims of each side of a tile: as many as it takes to write and read runs of RUN_BYTES."""
    dims, word, _ = permutation
    rest = list(dims)
    j = [rest.pop()]
    i = [rest.pop(permutation.inner)]
    stride_xi = i[0].strides[X]
    size_i, size_j = i[0].size, j[0].size
    run = constants.RUN_BYTES
    while rest and min(size_i, size_j) * word < run:
        # The dim that goes on where a side ends, as one longer run in memory.
        next_i = next((d for d, (_, (xs, _)) in enumerate(rest) if xs == size_i * stride_xi), -1)
        next_j = next((d for d, (_, (_, os)) in enumerate(rest) if os == size_j), -1)
        wants_i = next_i >= 0 and size_i * word < run
        wants_j = next_j >= 0 and size_j * word < run
        if wants_i and (not wants_j or size_i <= size_j):
            i.insert(0, rest.pop(next_i))
            size_i *= i[0].size
        elif wants_j:
            j.insert(0, rest.pop(next_j))
            size_j *= j[0].size
        else:
            break
    return Sides(i, j, rest or [Dim(1, (0, 0))])


def _matrices(permutation: Permutation, sides: Sides) -> unaligned.Matrices:
    return unaligned.Matrices(
        sides.i[0], sides.j[0], sides.rest, permutation.word, permutation.begin
    )


def _unaligned(permutation: Permutation) -> Program:
    matrices = _matrices(permutation, split_sides(permutation))
    return Program(unaligned.unaligned_kernel, matrices.programs, matrices.arguments())


def _images(permutation: Permutation) -> channels.Images:
    dims, word, begin = permutation
    *rest, pixel = dims
    channel = rest.pop(permutation.inner)
    return channels.Images(channel, pixel, rest or [Dim(1, (0, 0))], word, begin)


def _channels(permutation: Permutation) -> Program:
    images = _images(permutation)
    return Program(channels.split_kernel, images.programs, images.arguments())


def _rows_are_scattered(permutation: Permutation) -> bool:
    """Whether short rows that are neighbours in x lie far apart in the output."""
    *outer, (columns, (step, _)) = permutation.dims
    word = permutation.word
    if step != 1 or columns * word >= constants.STAGED_ROW_BYTES:
        return False
    beside = [dim for dim in outer if dim.strides[X] == columns]
    if not beside or beside[0].strides[OUT] * word < constants.STAGED_FAR_BYTES:
        return False
    tile = staged_tiles.plan_tile(permutation.dims, word, constants.STAGED_ROWS)
    return tile is not None and tile.programs >= constants.STAGED_MIN_TILES


def _lanes(permutation: Permutation, tiles: Program) -> tuple[int, float]:
    """The lanes of the tiles of this permutation, and how many times its words these are."""
    lanes = tiles.programs * tiles.arguments["BLOCK_I"] * tiles.arguments["BLOCK_J"]
    return lanes, lanes / math.prod(dim.size for dim in permutation.dims)


def _gathers_whole_sectors(permutation: Permutation, tiles: Program) -> bool:
    """Whether there are many tiles with many idle lanes, which have few words or store narrow ones
    one by one, and a program of the flat variant reads little else than what it moves.
    """
    lanes, times = _lanes(permutation, tiles)
    if times < constants.FLAT_GAIN or tiles.programs < constants.FLAT_MIN_TILES:
        return False
    have_few = lanes / times <= constants.FLAT_TILE_WORDS * tiles.programs
    one_by_one = permutation.word <= constants.FLAT_NARROW and tiles.arguments["ALIGN_OUT"] == 1
    if not (have_few or one_by_one):
        return False
    return flat.read_for_each_byte(*permutation) <= constants.FLAT_READ


def _rows_begin_at_any_word(permutation: Permutation) -> bool:
    """Whether rows that stay rows are moved word by word, and the flat variant does that faster."""
    *outer, (columns, (step, _)) = permutation.dims
    if step != 1 or columns < constants.NARROW_WORDS or _alignment_of_rows(permutation) > 1:
        return False
    # Each byte takes a division for each dim. Whether that is worth it depends on the idle lanes.
    fills = triton.next_power_of_2(columns) < constants.FLAT_GAIN * columns
    return permutation.word > 1 or len(outer) < constants.FLAT_BYTE_DIMS or not fills


def _fills_tiles_badly(permutation: Permutation, tiles: Program) -> bool:
    """Whether the tiles of this permutation leave many lanes idle, and a staged tile does not."""
    lanes, times = _lanes(permutation, tiles)
    if tiles.arguments["ALIGN_OUT"] > 1 or times < constants.STAGED_GAIN:
        return False
    tile = staged_tiles.plan_tile(permutation.dims, permutation.word, constants.STAGED_TILES)
    if tile is None or tile.programs < constants.STAGED_MIN_TILES:
        return False
    return bool(lanes > constants.STAGED_GAIN * tile.lanes / 2)


def are_small(tiles: Program, elements: int, itemsize: int, least: int) -> bool:
    """Whether there are many tiles, which are small because the dims on both sides are.

    Args:
        elements: of a tile.
        itemsize: bytes of an element.
        least: elements of the tiles of small tensors.
    """
    few = elements * itemsize < constants.FLAT_TILE_BYTES and 2 * elements <= least
    return few and tiles.programs >= constants.MIN_TILES


def _flat(permutation: Permutation) -> Program:
    return Program(flat.flat_kernel, *flat.words(permutation.dims, permutation.word))


def _chunks(permutation: Permutation) -> Program:
    return Program(flat.chunks_kernel, *flat.chunks(*permutation))


def _staged(permutation: Permutation) -> Program:
    rows = permutation.inner == len(permutation.dims) - 1
    shapes = constants.STAGED_ROWS if rows else constants.STAGED_TILES
    tile = staged_tiles.plan_tile(permutation.dims, permutation.word, shapes)
    assert tile is not None  # else another variant was chosen
    dims = permutation.dims
    end = reach([dim.size for dim in dims], [dim.strides[X] for dim in dims])
    return Program(staged_kernel, tile.programs, tile.arguments(permutation.begin, end))


def _alignment_of_rows(permutation: Permutation) -> int:
    """The words that an access may move if the last dim is the inner one on both sides."""
    *outer, (columns, (step, _)) = permutation.dims
    numbers = [permutation.begin, columns, *(s[X] for _, s in outer)]
    return alignment(permutation.word, numbers) if step == 1 else 1


def _rows(permutation: Permutation) -> Program:
    """Gather rows along the last dim."""
    dims, word, _ = permutation
    *outer, (columns, (step, _)) = dims
    outer = outer or [Dim(1, (0, 0))]
    align = _alignment_of_rows(permutation)
    # Idle lanes of a short row cost more than one more division for each word.
    if step == align == 1 and columns < constants.NARROW_WORDS:
        outer, columns = dims, 1
    cols = min(triton.next_power_of_2(columns), constants.ROWS_BYTES // word // 4)
    rows = math.prod(n for n, _ in outer)
    block = constants.ROWS_BYTES // word // cols
    col_tiles = triton.cdiv(columns, cols)
    return Program(
        rows_kernel,
        triton.cdiv(rows, block) * col_tiles,
        {
            "rows": rows,
            "col_tiles": col_tiles,
            "col_tiles_reciprocal": reciprocal(col_tiles),
            "units": columns // align,
            "stride_xc": step,
            **division_arguments(tuple(n for n, _ in outer), tuple(s[X] for _, s in outer)),
            "NDIM": len(outer),
            "EVEN": step == 1,
            "ALIGN": align,
            "ROWS": block,
            "COLS": cols,
            "num_warps": constants.ROWS_WARPS,
        },
    )


def _tiles(permutation: Permutation) -> Program:
    """Transpose the inner dims of x with those of the output."""
    dims, word, begin = permutation
    side_i, side_j, rest = split_sides(permutation)
    stride_xi = side_i[-1].strides[X]  # the dims before it were added to it
    size_i, size_j = math.prod(n for n, _ in side_i), math.prod(n for n, _ in side_j)
    i_strides, j_strides = tuple(s[OUT] for _, s in side_i), tuple(s[X] for _, s in side_j)
    align_out = alignment(word, [size_j, *i_strides, *(s[OUT] for _, s in rest)])
    if align_out * word == VECTOR_BYTES:
        tile = constants.TILES[word]
    else:
        table = constants.TILES_ONE_WORD if align_out == 1 else constants.TILES_FEW_WORDS
        tile = table[word]
    if math.prod(n for n, _ in dims) < constants.MIN_TILES * tile.i * tile.j:
        tile = constants.TILES_SMALL[word]
    block_i, block_j = fit_tile(size_i, size_j, tile.i, tile.j)
    align_x = alignment(word, [begin, size_i, *j_strides, *(s[X] for _, s in rest)])
    align_x = align_x if stride_xi == 1 else 1
    tiles_i, tiles_j = triton.cdiv(size_i, block_i), triton.cdiv(size_j, block_j)
    # Programs walk the output in its order. Nothing is gained where several dims are one side.
    near = 1
    if len(side_i) == 1:
        near = math.prod(n for n, s in rest if s[OUT] < i_strides[0])
    return Program(
        tiles_kernel,
        tiles_i * tiles_j * math.prod(n for n, _ in rest),
        {
            "units_i": size_i // align_x,
            "units_j": size_j // align_out,
            "tiles_i": tiles_i,
            "tiles_i_reciprocal": reciprocal(tiles_i),
            "tiles_j": tiles_j,
            "tiles_j_reciprocal": reciprocal(tiles_j),
            "near": near,
            "near_reciprocal": reciprocal(near),
            "stride_xi": stride_xi,
            **division_arguments(tuple(n for n, _ in side_i), i_strides, "i_"),
            **division_arguments(tuple(n for n, _ in side_j), j_strides, "j_"),
            "sizes": tuple(n for n, _ in rest),
            "x_strides": tuple(s[X] for _, s in rest),
            "out_strides": tuple(s[OUT] for _, s in rest),
            "NDIM_I": len(side_i),
            "NDIM_J": len(side_j),
            "NDIM": len(rest),
            "EVEN": stride_xi == 1,
            # A row of x is read by several programs, which are far apart then.
            "KEPT": near > 1 and tiles_i > 1,
            "ALIGN_X": align_x,
            "ALIGN_OUT": align_out,
            "BLOCK_I": block_i,
            "BLOCK_J": block_j,
            "num_warps": tile.warps,
        },
    )


def fit_tile(size_i: int, size_j: int, tile_i: int, tile_j: int) -> tuple[int, int]:
    """Sides of a tile as large as tile_i x tile_j: where one dim is short, the other side grows."""
    block_i = min(triton.next_power_of_2(size_i), tile_i)
    block_j = min(triton.next_power_of_2(size_j), tile_i * tile_j // block_i)
    if block_j < tile_j:
        block_i = min(triton.next_power_of_2(size_i), tile_i * tile_j // block_j)
    return block_i, block_j
