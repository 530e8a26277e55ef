"""The channels variant of a permutation: pixels of few channels are split into planes.

A thread owns four groups of pixels: one group has as many pixels as a word of 4 bytes has elements.
In x a group is as many words as there are channels, and in a plane it is one word. A thread loads
its words, puts them together anew in registers, and stores 16 bytes of each plane. Planes that do
not begin at multiples of 16 bytes are shifted into place: the thread also loads the groups of the
next thread.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import triton
import triton.language as tl

from warpcall_kernels._transpose import constants
from warpcall_kernels._transpose.packed_words import funnel
from warpcall_kernels._transpose.strides import Dim, offset, reach
from warpcall_kernels.op.launch import VECTOR_BYTES

X, OUT = 0, 1  # the operands, as `Dim.strides` has them
WORD_BYTES = 4
GROUPS = VECTOR_BYTES // WORD_BYTES  # of a thread
# Arguments that Triton does not compile variants for.
UNSPECIALIZED = ("end", "pixels", "stride_plane", "tiles")


@triton.jit
def _columns(words: tl.tensor, ROWS: tl.constexpr, N: tl.constexpr) -> tl.tensor:
    """[ROWS, N] -> N tensors [ROWS], as a tuple."""
    if N == 1:
        return (tl.reshape(words, (ROWS,)),)
    else:  # noqa: RET505  # Triton needs the else: what follows a static return is compiled too
        evens, odds = tl.split(tl.reshape(words, (ROWS, N // 2, 2)))
        even_columns = _columns(evens, ROWS, N // 2)
        odd_columns = _columns(odds, ROWS, N // 2)
        columns = ()
        for k in tl.static_range(N // 2):
            columns = columns + (even_columns[k], odd_columns[k])  # type: ignore[assignment]  # noqa: RUF005  # Triton has no starred tuples
        return columns


@triton.jit
def _beside(columns: tl.tensor, ROWS: tl.constexpr, N: tl.constexpr) -> tl.tensor:
    """N tensors [ROWS] -> [ROWS, N]."""
    if N == 1:
        return tl.reshape(columns[0], (ROWS, 1))
    else:  # noqa: RET505
        evens = _beside(columns[0::2], ROWS, N // 2)
        odds = _beside(columns[1::2], ROWS, N // 2)
        return tl.reshape(tl.join(evens, odds), (ROWS, N))


@triton.jit
def _element(
    words: tl.tensor, nth: tl.constexpr, FROM: tl.constexpr, TO: tl.constexpr, BITS: tl.constexpr
) -> tl.tensor:
    """Element FROM of a word, as element TO of a word that is 0 elsewhere."""
    word = words[nth]
    if FROM > TO:
        word = word >> ((FROM - TO) * BITS)
    elif FROM < TO:
        word = word << ((TO - FROM) * BITS)
    return word & (((1 << BITS) - 1) << (TO * BITS))


@triton.jit
def _plane_word(
    words: tl.tensor,
    group: tl.constexpr,
    channel: tl.constexpr,
    CHANNELS: tl.constexpr,
    BITS: tl.constexpr,
) -> tl.tensor:
    """The word of a channel of a group, whose words are interleaved."""
    PER: tl.constexpr = 32 // BITS
    plane = _element(words, group * CHANNELS + channel // PER, channel % PER, 0, BITS)
    for e in tl.static_range(1, PER):
        plane |= _element(
            words,
            group * CHANNELS + (e * CHANNELS + channel) // PER,
            (e * CHANNELS + channel) % PER,
            e,
            BITS,
        )
    return plane


@triton.jit
def _skip(words: tl.tensor, elements: tl.tensor, N: tl.constexpr, BITS: tl.constexpr) -> tl.tensor:
    """The N words that begin some elements, fewer than N words, into 2 * N words."""
    PER: tl.constexpr = 32 // BITS
    if N >= 4:
        far = elements // PER & 2
        moved = ()
        for k in tl.static_range(N + 2):
            moved = moved + (tl.where(far > 0, words[k + 2], words[k]),)  # type: ignore[assignment]  # noqa: RUF005
        words = moved
    if N >= 2:
        far = elements // PER & 1
        moved = ()
        for k in tl.static_range(N + 1):
            moved = moved + (tl.where(far > 0, words[k + 1], words[k]),)  # type: ignore[assignment]  # noqa: RUF005
        words = moved
    return _shift(words, elements, N, BITS)


@triton.jit
def _shift(words: tl.tensor, elements: tl.tensor, N: tl.constexpr, BITS: tl.constexpr) -> tl.tensor:
    """The N words that begin some elements, fewer than a word has, into N + 1 words."""
    bits = (elements % (32 // BITS) * BITS).to(tl.uint32)
    moved = ()
    for k in tl.static_range(N):
        moved = moved + (funnel(words[k], words[k + 1], bits),)  # type: ignore[assignment]  # noqa: RUF005
    return moved


@triton.jit
def _load(
    words_ptr: tl.tensor,
    first: tl.constexpr,
    limit: tl.tensor,
    STRIDE: tl.constexpr,
    WHOLE: tl.constexpr,
    THREADS: tl.constexpr,
    N: tl.constexpr,
    COUNT: tl.constexpr,
) -> tl.tensor:
    """COUNT words for each thread, from word `first` of its STRIDE words on, N at a time."""
    begin = tl.multiple_of(tl.arange(0, THREADS) * STRIDE, N)
    words = ()
    for k in tl.static_range(COUNT // N):
        at = begin[:, None] + (first + k * N + tl.arange(0, N))[None, :]
        # A mask that N words share keeps their load as one access.
        exists = (begin + (first + k * N + N) <= limit)[:, None] if WHOLE else at < limit
        words = words + _columns(tl.load(words_ptr + at, mask=exists, other=0), THREADS, N)
    return words


@triton.jit(do_not_specialize=UNSPECIALIZED)
def split_kernel(
    x_ptr: tl.tensor,
    out_ptr: tl.tensor,
    end: tl.tensor,
    pixels: tl.tensor,
    stride_plane: tl.tensor,
    tiles: tl.tensor,
    sizes: tl.tensor,
    x_strides: tl.tensor,
    out_strides: tl.tensor,
    NDIM: tl.constexpr,
    CHANNELS: tl.constexpr,
    SKEW_X: tl.constexpr,
    SKEW_OUT: tl.constexpr,
    ALIGNED: tl.constexpr,
    WIDE: tl.constexpr,
    GROUPS: tl.constexpr,
    THREADS: tl.constexpr,
) -> None:
    """Split interleaved pixels into planes.

    Args:
        x_ptr, out_ptr: pointers to integers as wide as an element; 4 bytes divide the addresses.
        end: elements from x to its end.
        pixels: of a plane.
        stride_plane: elements of the output from a plane to the next.
        sizes, x_strides, out_strides: of all other dims.
        SKEW_X: whether pixels of some planes begin inside a word.
        SKEW_OUT: whether planes begin inside the words of a thread.
        ALIGNED: whether pixels of all planes begin at multiples of 16 bytes.
    """
    BITS: tl.constexpr = x_ptr.dtype.element_ty.primitive_bitwidth
    PER: tl.constexpr = 32 // BITS
    STEP: tl.constexpr = GROUPS * PER  # pixels of a thread
    STRIDE: tl.constexpr = GROUPS * CHANNELS  # words of x of a thread
    LOADED: tl.constexpr = 2 * STRIDE if SKEW_OUT else STRIDE
    pid = tl.program_id(0)
    if WIDE:
        pid = pid.to(tl.int64)
        stride_plane = stride_plane.to(tl.int64)
    tile = pid % tiles
    rest = pid // tiles
    x_begin = offset(rest, sizes, x_strides, NDIM, 1 if SKEW_X else PER)
    out_begin = offset(rest, sizes, out_strides, NDIM, 1)

    first = x_begin // PER + tile * (THREADS * STRIDE)
    if ALIGNED:
        first = tl.multiple_of(first, GROUPS)
    # The words that x ends in, of which some elements do not exist, are not loaded. They have fewer
    # elements than STEP pixels, and the last STEP pixels of a plane are moved one by one below.
    limit = end // PER - first
    words_ptr = x_ptr.to(tl.pointer_type(tl.uint32)) + first
    words = _load(words_ptr, 0, limit, STRIDE, ALIGNED, THREADS, GROUPS, LOADED)
    if SKEW_X:
        words = words + _load(words_ptr, LOADED, limit, STRIDE, False, THREADS, 1, 1)
        words = _shift(words, x_begin, LOADED, BITS)

    nth = tile * THREADS + tl.arange(0, THREADS)
    out_words = out_ptr.to(tl.pointer_type(tl.uint32))
    for c in tl.static_range(CHANNELS):
        begin = out_begin + c * stride_plane
        down = -begin & (STEP - 1)
        plane = ()
        for g in tl.static_range(LOADED // CHANNELS):
            plane = plane + (_plane_word(words, g, c, CHANNELS, BITS),)  # type: ignore[assignment]  # noqa: RUF005
        if SKEW_OUT:
            plane = _skip(plane, down, GROUPS, BITS)
        at = tl.multiple_of((begin + down) // PER, GROUPS)
        at = at + (nth * GROUPS)[:, None] + tl.arange(0, GROUPS)[None, :]
        whole = (down + (nth + 1) * STEP <= pixels - STEP)[:, None]
        tl.store(out_words + at, _beside(plane, THREADS, GROUPS), mask=whole)
    # The pixels before the first word of a plane, and from its last words on.
    if (tile == 0) | (tile == tiles - 1):
        for c in tl.static_range(CHANNELS):
            begin = out_begin + c * stride_plane
            down = -begin & (STEP - 1)
            pixel = tl.arange(0, STEP)
            here = (pixel < tl.minimum(down, pixels)) & (tile == 0)
            value = tl.load(x_ptr + x_begin + pixel * CHANNELS + c, here)
            tl.store(out_ptr + begin + pixel, value, here)
            behind = down + tl.maximum(pixels - STEP - down, 0) // STEP * STEP
            pixel = behind + tl.arange(0, 2 * STEP)
            here = (pixel < pixels) & (tile == tiles - 1)
            value = tl.load(x_ptr + x_begin + pixel * CHANNELS + c, here)
            tl.store(out_ptr + begin + pixel, value, here)


class Images(NamedTuple):
    """Images whose interleaved pixels are split into planes.

    Args:
        channel: the inner dim of x, with its strides in x and in the output.
        pixel: the inner dim of the output.
        rest: all other dims.
        itemsize: bytes of an element.
        begin: elements from an address that 16 bytes divide to x.
    """

    channel: Dim
    pixel: Dim
    rest: list[Dim]
    itemsize: int
    begin: int

    @property
    def per(self) -> int:
        """Elements of a word."""
        return WORD_BYTES // self.itemsize

    @property
    def tiles(self) -> int:
        """Tiles of a plane."""
        tile = constants.CHANNELS_THREADS * GROUPS * self.per
        tiles: int = triton.cdiv(self.pixel.size, tile)
        return tiles

    @property
    def programs(self) -> int:
        return self.tiles * math.prod(dim.size for dim in self.rest)

    @property
    def skewed(self) -> bool:
        """Whether planes begin inside the words that a thread stores."""
        steps = self.channel.strides[OUT], *(dim.strides[OUT] for dim in self.rest)
        return any(step % (GROUPS * self.per) for step in steps)

    def applies(self) -> bool:
        """Whether this variant can split these images, and is faster than tiles."""
        channel, pixel = self.channel, self.pixel
        if self.itemsize > 2 or not 2 <= channel.size <= constants.CHANNELS_MOST:
            return False
        if channel.strides[X] != 1 or pixel.strides != (channel.size, 1):
            return False
        if self.begin * self.itemsize % WORD_BYTES:
            return False
        if self.itemsize == 2 and channel.size % 2 == 0 and not self.skewed:
            return False
        elements = pixel.size * channel.size * math.prod(dim.size for dim in self.rest)
        few = constants.CHANNELS_MIN_BYTES // self.itemsize
        return pixel.size >= constants.CHANNELS_MIN_PIXELS and elements >= few

    def arguments(self) -> dict[str, Any]:
        """The arguments of `split_kernel`."""
        dims = (self.channel, self.pixel, *self.rest)
        vector = VECTOR_BYTES // self.itemsize
        x_steps = [dim.strides[X] for dim in self.rest]
        return {
            "end": reach([dim.size for dim in dims], [dim.strides[X] for dim in dims]),
            "pixels": self.pixel.size,
            "stride_plane": self.channel.strides[OUT],
            "tiles": self.tiles,
            "sizes": tuple(dim.size for dim in self.rest),
            "x_strides": tuple(x_steps),
            "out_strides": tuple(dim.strides[OUT] for dim in self.rest),
            "NDIM": len(self.rest),
            "CHANNELS": self.channel.size,
            "SKEW_X": any(step % self.per for step in x_steps),
            "SKEW_OUT": self.skewed,
            "ALIGNED": not any(step % vector for step in (self.begin, *x_steps)),
            "GROUPS": GROUPS,
            "THREADS": constants.CHANNELS_THREADS,
            "num_warps": constants.CHANNELS_THREADS // 32,
        }
