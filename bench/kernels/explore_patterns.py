"""What people write: named rearrangements, and shapes of softmax and of convolutions in models.

A rearrangement is written as in einops. An axis without sizes to choose from is free: the free axes
share the elements that a case has.
"""

from __future__ import annotations

import math
from typing import NamedTuple

from bench.kernels.explore_draw import Draw

FACTOR = (2, 2, 3, 4)
CHANNELS = (3, 16, 32, 48, 64, 96, 128, 192, 256)
HEADS = (4, 8, 12, 16, 32)
HEAD_DIM = (32, 64, 80, 96, 128)
HALF_HEAD = (16, 32, 40, 48, 64)
TINY = (2, 3, 4, 5, 6, 7, 8, 9, 12, 16)

Sizes = tuple[int, ...] | str  # to choose from, or the axis that has the same size


class Rearrangement(NamedTuple):
    """A permutation that has a name."""

    name: str
    axes: str
    sizes: dict[str, Sizes]


REARRANGEMENTS = (
    Rearrangement("matrix", "r c -> c r", {}),
    Rearrangement("matrices", "b r c -> b c r", {}),
    Rearrangement("tiny matrices", "n r c -> n c r", {"r": TINY, "c": TINY}),
    Rearrangement("tiny square matrices", "n r c -> n c r", {"r": TINY, "c": "r"}),
    Rearrangement("narrow matrix", "n c -> c n", {"c": TINY}),
    Rearrangement("depth to space", "b r s c h w -> b c h r w s", {"r": FACTOR, "s": "r", "c": CHANNELS}),
    Rearrangement("pixel shuffle", "b c r s h w -> b c h r w s", {"r": FACTOR, "s": "r", "c": CHANNELS}),
    Rearrangement(
        "depth to space, channels last", "b h w r s c -> b h r w s c", {"r": FACTOR, "s": "r", "c": CHANNELS}
    ),
    Rearrangement("space to depth", "b c h r w s -> b r s c h w", {"r": FACTOR, "s": "r", "c": CHANNELS}),
    Rearrangement("pixel unshuffle", "b c h r w s -> b c r s h w", {"r": FACTOR, "s": "r", "c": CHANNELS}),
    Rearrangement(
        "space to depth, channels last", "b h r w s c -> b h w r s c", {"r": FACTOR, "s": "r", "c": CHANNELS}
    ),
    Rearrangement("windows", "b h r w s c -> b h w r s c", {"r": (7, 8, 14), "s": "r", "c": CHANNELS}),
    Rearrangement("windows back", "b h w r s c -> b h r w s c", {"r": (7, 8, 14), "s": "r", "c": CHANNELS}),
    Rearrangement("patches", "b c h p w q -> b h w p q c", {"p": (4, 8, 14, 16), "q": "p", "c": (1, 3, 4)}),
    Rearrangement("patches, channels first", "b c h p w q -> b h w c p q", {"p": (2, 8, 14, 16), "q": "p", "c": (3, 4, 16)}),
    Rearrangement("patches back", "b h w p q c -> b c h p w q", {"p": (2, 8, 14, 16), "q": "p", "c": (3, 4, 16)}),
    Rearrangement(
        "tubelets",
        "b c t u h p w q -> b t h w u p q c",
        {"u": (2,), "p": (8, 16), "q": "p", "c": (3,), "t": (4, 8)},
    ),
    Rearrangement("columns of images", "b c h w k l -> b h w c k l", {"k": (3, 5), "l": "k", "c": CHANNELS}),
    Rearrangement("rotary pairs to halves", "b s h d p -> b s h p d", {"p": (2,), "d": HALF_HEAD, "h": HEADS}),
    Rearrangement("rotary halves to pairs", "b s h p d -> b s h d p", {"p": (2,), "d": HALF_HEAD, "h": HEADS}),
    Rearrangement("qkv split", "b s k h d -> k b h s d", {"k": (3,), "h": HEADS, "d": HEAD_DIM}),
    Rearrangement("qkv split by head", "b s h k d -> k b h s d", {"k": (3,), "h": HEADS, "d": HEAD_DIM}),
    Rearrangement("qkv split, innermost", "b s h d k -> k b h s d", {"k": (3,), "h": HEADS, "d": HEAD_DIM}),
    Rearrangement("heads", "b s h d -> b h s d", {"h": HEADS, "d": HEAD_DIM}),
    Rearrangement("keys transposed", "b h s d -> b h d s", {"h": HEADS, "d": HEAD_DIM}),
    Rearrangement("heads to keys transposed", "b s h d -> b h d s", {"h": HEADS, "d": HEAD_DIM}),
    Rearrangement("time first", "b t c -> t b c", {"c": CHANNELS}),
    Rearrangement("channel shuffle", "b g c h w -> b c g h w", {"g": (2, 3, 4, 8), "c": CHANNELS}),
    Rearrangement("channel shuffle, channels last", "b h w g c -> b h w c g", {"g": (2, 3, 4, 8), "c": CHANNELS}),
    Rearrangement("stereo to planes", "b n c -> b c n", {"c": (2,)}),
    Rearrangement("planes to stereo", "b c n -> b n c", {"c": (2,)}),
    Rearrangement("complex to planes", "n c -> c n", {"c": (2,)}),
    Rearrangement("complex planes to pairs", "b c h w -> b h w c", {"c": (2,)}),
    Rearrangement("pixels to planes", "b h w c -> b c h w", {"c": (3, 4)}),
    Rearrangement("planes to pixels", "b c h w -> b h w c", {"c": (3, 4)}),
    Rearrangement("channels last", "b c h w -> b h w c", {"c": CHANNELS}),
    Rearrangement("channels first", "b h w c -> b c h w", {"c": CHANNELS}),
    Rearrangement("grid of images", "r c h w -> r h c w", {"r": (2, 4, 8), "c": (2, 4, 8)}),
    Rearrangement("experts", "b s e c -> e b s c", {"e": (2, 8), "c": CHANNELS}),
    Rearrangement("reversed", "a b c d -> d c b a", {}),
    Rearrangement("reversed 3D", "a b c -> c b a", {}),
)  # fmt: skip


def rearrangement(
    draw: Draw, elements: int, which: Rearrangement | None = None
) -> tuple[str, tuple[int, ...], tuple[int, ...]]:
    """The name, the shape and the dims of a rearrangement of about so many elements."""
    found = which or draw.choice(REARRANGEMENTS)
    before, after = (side.split() for side in found.axes.split(" -> "))
    sizes: dict[str, int] = {}
    for axis, options in found.sizes.items():
        sizes[axis] = sizes[options] if isinstance(options, str) else draw.choice(options)
    free = [axis for axis in before if axis not in sizes]
    left = max(1, elements // math.prod(sizes.values()))
    sizes |= dict(zip(free, draw.shape(len(free), left), strict=True))
    shape = tuple(sizes[axis] for axis in before)
    return found.name, shape, tuple(before.index(axis) for axis in after)


class Attention(NamedTuple):
    """Scores of a model: [batch, heads, queries, keys].

    Args:
        queries, keys: to choose from; no queries means as many as keys.
        masks: the masks that such models have, as `explore_softmax` names them.
    """

    name: str
    keys: tuple[int, ...]
    masks: tuple[str, ...]
    queries: tuple[int, ...] = ()
    heads: tuple[int, ...] = HEADS


ATTENTIONS = (
    Attention("ViT", (197, 257, 577), ("none", "full"), heads=(3, 6, 12, 16)),
    Attention("Swin windows", (49, 64, 144), ("full", "queries", "none"), heads=(3, 4, 6, 12)),
    Attention("BERT", (128, 384, 512), ("key", "lengths")),
    Attention("GPT", (1024, 2048, 4096), ("causal", "queries")),
    Attention("Whisper", (1500,), ("none", "lengths"), heads=(6, 8, 20)),
    Attention("cross attention", (77, 1500), ("key", "none"), (64, 448, 1024)),
    Attention("decoding", (512, 4096, 8192, 32768), ("lengths", "key", "none"), (1,)),
    Attention("experts", (8, 16, 64, 128), ("none",), heads=(1,)),
    Attention("vocabulary", (32000, 50257, 128256, 151936), ("none", "key"), (1,), (1,)),
    Attention("few long rows", (50021, 91323, 121028), ("key", "lengths", "none"), (1, 2, 5), (1, 4)),
    Attention("classes", (2, 4, 8, 10, 26), ("none", "key", "queries", "full"), heads=(1, 4)),
)  # fmt: skip


class Filters(NamedTuple):
    """Convolutions of a model: rows of `channels` channels, with filters of `taps` taps.

    Args:
        heads: to choose from; none means one filter for each channel.
    """

    name: str
    channels: tuple[int, ...]
    taps: tuple[int, ...]
    positions: tuple[int, ...]
    heads: tuple[int, ...] = ()


FILTERS = (
    Filters("Conformer, depthwise", (144, 256, 512, 768), (15, 31, 63), (100, 250, 1000, 2439)),
    Filters("Mamba, depthwise", (768, 1536, 4096), (4,), (512, 2048, 8192)),
    Filters("Hyena, depthwise", (256, 768), (3,), (1024, 8192)),
    Filters("lightweight", (256, 512, 1024), (3, 7, 15, 31), (32, 128, 512), (4, 8, 16)),
    Filters("audio", (1, 2), (31, 64, 101, 257), (16000, 48000, 160000), (1,)),
    Filters("bank of audio filters", (8, 64), (15, 31, 128), (1000, 16000), (1, 8)),
    Filters("short rows", (64, 96, 512), (2, 3, 5, 7), (8, 16, 56), (4, 16, 32)),
)
