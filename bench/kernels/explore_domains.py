"""The domain of each op: what a random case of it may be.

A domain draws the inputs and the parameters of a call that has about `draw.bytes` compulsory bytes.
An op without a domain has random shapes, from which its declaration derives its inputs, and the
parameters of its first case.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch

from bench.kernels.explore_draw import Draw, Range, fitted
from bench.kernels.explore_patterns import ATTENTIONS, FILTERS, rearrangement
from warpcall_kernels import Op
from warpcall_kernels.conv_backward import SMALL_INTEGERS
from warpcall_kernels.op.cases import SHORT_DTYPES, Case, Sample, Values
from warpcall_kernels.op.declaration import Meta, dtype_name
from warpcall_kernels.permute import DTYPES as PERMUTED

PATTERNS = 0.4  # probability that a case is of a named pattern
TRIES = 100  # draws for one case, until its bytes are as drawn
BIASED, SLOPED = 0.3, 0.1  # probabilities that scores have a bias, or slopes
NEAR = 1.5  # times the bytes that were drawn, or one part of it

HALVES = {torch.bfloat16: 4.0, torch.float16: 3.0}
FLOATS = {**HALVES, torch.float32: 3.0, torch.float64: 0.5}
PERMUTED_OFTEN = {**FLOATS, torch.uint8: 2.0, torch.int64: 0.5, torch.complex64: 0.5}
ADDED = {
    **FLOATS,
    **dict.fromkeys((torch.int64, torch.int32, torch.int16, torch.uint8, torch.bool), 0.4),
    **dict.fromkeys((torch.complex64, torch.complex128), 0.4),
}
ISIN = {
    torch.int64: 4.0,
    torch.int32: 3.0,
    torch.float32: 2.0,
    **dict.fromkeys((torch.float64, torch.float16, torch.bfloat16), 0.4),
    **dict.fromkeys((torch.int16, torch.uint8, torch.int8), 0.4),
}


@dataclass(frozen=True)
class Drawn:
    """What was drawn for a case.

    Args:
        inputs, params: of the call.
        pattern: the name of the pattern that it is of; empty if it is of none.
        remark: what the shapes and the parameters do not say.
    """

    inputs: Mapping[str, Sample]
    params: Mapping[str, Any] = field(default_factory=dict)
    pattern: str = ""
    remark: str = ""


Domain = Callable[[Draw], Drawn]


def _permute(draw: Draw) -> Drawn:
    often = draw.chance(0.8)
    dtype = draw.weighted(PERMUTED_OFTEN) if often else draw.choice(PERMUTED)
    elements = max(1, draw.bytes // (2 * dtype.itemsize))
    pattern = ""
    if draw.chance(PATTERNS):
        pattern, shape, dims = rearrangement(draw, elements)
    else:
        rank = draw.choice((2, 2, 3, 3, 3, 4, 4, 4, 5, 5, 6, 7, 8))
        sizes = [2 + draw.log(1, 15) - 1 if draw.chance(0.35) else 0 for _ in range(rank)]
        sizes[draw.order(rank)[0]] = 0
        free = sizes.count(0)
        rest = iter(draw.shape(free, max(1, elements // math.prod(s for s in sizes if s))))
        shape = tuple(size or next(rest) for size in sizes)
        dims = draw.order(rank)
        while dims == tuple(range(rank)):
            dims = draw.order(rank)
    x = Sample(shape, dtype, draw.values(dtype), layout=draw.layout(len(shape)))
    return Drawn({"x": x}, {"dims": dims}, pattern)


def _transpose_add(draw: Draw) -> Drawn:
    dtype = draw.weighted(ADDED)
    other = draw.weighted(ADDED) if draw.chance(0.3) else dtype
    each = dtype.itemsize + other.itemsize + torch.promote_types(dtype, other).itemsize
    elements = max(1, draw.bytes // each)
    kind = draw.weighted({"matrix": 4, "matrices": 3, "narrow": 2, "tiny matrices": 2})
    if kind == "tiny matrices":
        matrix = draw.log(2, 16), draw.log(2, 16)
    elif kind == "narrow":
        matrix = draw.log(1, 16), max(1, elements // draw.log(1, 64))
        matrix = matrix if draw.chance(0.5) else matrix[::-1]
    else:
        part = elements if kind == "matrix" else draw.log(1, elements)
        matrix = _pair(draw.shape(2, part))
    batches = 0 if kind == "matrix" else draw.choice((1, 1, 2, 3))
    whole = draw.shape(batches, max(1, elements // math.prod(matrix)))
    ours, theirs = whole, whole
    if whole and draw.chance(0.2):  # one of both broadcasts
        less = whole[1:] if draw.chance(0.5) else (1, *whole[1:])
        ours, theirs = (less, whole) if draw.chance(0.5) else (whole, less)
    shape, turned = (*ours, *matrix), (*theirs, *matrix[::-1])
    values = draw.values(dtype), draw.values(other)
    layouts = draw.layout(len(shape)), draw.layout(len(turned))
    return Drawn(
        {
            "a": Sample(shape, dtype, values[0], layout=layouts[0]),
            "b": Sample(turned, other, values[1], layout=layouts[1]),
        },
        pattern="" if kind == "matrix" else kind,
    )


def _pair(sizes: tuple[int, ...]) -> tuple[int, int]:
    first, second = sizes
    return first, second


def _scores(draw: Draw, each: float) -> tuple[str, tuple[int, ...], str]:
    """The name of a pattern, a shape of scores, and the mask that they have."""
    elements = max(1, int(draw.bytes / each))
    if draw.chance(PATTERNS):
        found = draw.choice(ATTENTIONS)
        keys = draw.choice(found.keys)
        queries = draw.choice(found.queries) if found.queries else keys
        shape = (1, draw.choice(found.heads), queries, keys)
        if found.name in ("classes", "experts"):
            shape = (1, shape[1], 1, keys)
            return found.name, fitted(shape, elements, 2), draw.choice(found.masks)
        return found.name, fitted(shape, elements, 0), draw.choice(found.masks)
    keys = draw.size(2, max(2, min(200_000, elements)))
    rank = draw.choice((1, 2, 2, 3, 4, 4, 4, 4))
    mask = draw.choice(("none", "none", "key", "batch", "queries", "full", "lengths", "causal"))
    return "", (*draw.shape(rank - 1, max(1, elements // keys)), keys), mask


def _masked_softmax(draw: Draw) -> Drawn:
    dtype = draw.weighted(FLOATS)
    pattern, shape, mask = _scores(draw, 2 * dtype.itemsize + 0.2)
    layout = draw.layout(len(shape))
    inputs = {"x": Sample(shape, dtype, draw.values(dtype), layout=layout)}
    masks = {
        "key": (*shape[:1], *(1,) * len(shape[1:-1]), shape[-1]) if len(shape) > 1 else shape,
        "batch": (*shape[:1], *(1,) * len(shape[1:-2]), *shape[-2:]) if len(shape) > 2 else shape,
        "queries": (*(1,) * len(shape[:-2]), *shape[-2:]),
        "full": shape,
    }
    if mask in masks:
        layout = draw.layout(len(masks[mask]))
        kind = draw.choice((torch.bool, torch.bool, torch.uint8))
        inputs["mask"] = Sample(masks[mask], kind, "mask", layout=layout)
    if mask == "lengths" or draw.chance(0.05):
        rows = shape[:-1] if draw.chance(0.3) else (*shape[:-1][:1], *(1,) * len(shape[1:-1]))
        counted = draw.choice((torch.int32, torch.int64))
        inputs["lengths"] = Sample(rows, counted, "integers", 0, shape[-1] + 1)
    causal = len(shape) > 1 and (mask == "causal" or draw.chance(0.05))
    params = {"scale": draw.choice((1.0, 0.125, 0.088388, -2.0)), "causal": causal}
    if draw.chance(BIASED):
        inputs["bias"] = _bias(draw, shape, dtype, draw.values(dtype))
    elif len(shape) > 2 and draw.chance(SLOPED):
        inputs["slopes"] = Sample(shape[-3:-2], torch.float32, "uniform", scale=0.5)
    return Drawn(inputs, params, pattern)


def _bias(draw: Draw, shape: tuple[int, ...], dtype: torch.dtype, values: Values) -> Sample:
    """What is added to scores of this shape: with all dims, or broadcast along some of them."""
    own = shape if draw.chance(0.3) else tuple(n if draw.chance(0.5) else 1 for n in shape)
    own = own[-len(shape[:-1]) :] if draw.chance(0.3) and len(shape) > 1 else own
    kinds = (dtype, dtype, torch.float32, torch.bfloat16)
    return Sample(own, draw.choice(kinds), values, layout=draw.layout(len(own)))


def _masked_softmax_backward(draw: Draw) -> Drawn:
    dtype = draw.weighted(FLOATS)
    pattern, shape, _mask = _scores(draw, 3 * dtype.itemsize)
    # Small integers, because sums of random values that are no softmax are long and cancel.
    both = [
        Sample(shape, dtype, "integers", -3, 4, layout=draw.layout(len(shape))) for _ in range(2)
    ]
    scale = draw.choice((1.0, 0.125, 0.088388))
    return Drawn({"grad_output": both[0], "output": both[1]}, {"scale": scale}, pattern)


def _masked_softmax_bias_backward(draw: Draw) -> Drawn:
    drawn = _masked_softmax_backward(draw)
    output = drawn.inputs["output"]
    bias = _bias(draw, output.shape, output.dtype, "normal")
    return Drawn({**drawn.inputs, "bias": bias}, drawn.params, drawn.pattern)


def _filters(draw: Draw, tensors: int) -> tuple[str, torch.dtype, tuple[int, ...], int, int]:
    """The name of a pattern, a dtype, a shape, and heads and taps of the filters."""
    dtype = draw.weighted({**FLOATS, torch.float64: 0.2})  # torch takes seconds for fp64
    elements = max(1, draw.bytes // (tensors * dtype.itemsize))
    if draw.chance(PATTERNS):
        found = draw.choice(FILTERS)
        channels = draw.choice(found.channels)
        heads = draw.choice(found.heads) if found.heads else channels
        shape = fitted((1, channels, draw.choice(found.positions)), elements, 0)
        return found.name, dtype, shape, math.gcd(heads, channels), draw.choice(found.taps)
    positions = draw.size(1 if draw.chance(0.1) else 8, max(8, min(20_000, elements)))
    channels = draw.size(1, max(1, min(2048, elements // positions)))
    shape = fitted((1, channels, positions), elements, 0)
    heads = math.gcd(channels, draw.choice((1, channels, 1 << draw.log(1, 6), draw.log(1, 64))))
    taps = draw.log(64, 257) if draw.chance(0.05) else draw.log(1, 63)
    return "", dtype, shape, heads, taps


def _filter_params(draw: Draw, taps: int) -> dict[str, Any]:
    kind = draw.weighted({"causal": 5, "centred": 3, "none": 1, "any": 1})
    padding = {"centred": taps // 2, "none": 0, "any": draw.log(1, taps) - 1}
    softmax = {"softmax_weight": True} if draw.chance(0.2) else {}
    return softmax | ({"padding_l": padding[kind]} if kind in padding else {})


def _conv(draw: Draw) -> Drawn:
    pattern, dtype, shape, heads, taps = _filters(draw, 2)
    x = Sample(shape, dtype, layout=draw.layout(3))
    inputs = {"x": x, "weight": Sample((heads, taps), dtype)}
    if draw.chance(0.4):
        inputs["bias"] = Sample(shape[1:2], dtype)
    return Drawn(inputs, _filter_params(draw, taps), pattern)


def _conv_backward(draw: Draw) -> Drawn:
    pattern, dtype, shape, heads, taps = _filters(draw, 3)
    given = [
        Sample(shape, dtype, "integers", *SMALL_INTEGERS, layout=draw.layout(3)) for _ in range(2)
    ]
    inputs = {"grad_output": given[0], "x": given[1], "weight": Sample((heads, taps), dtype)}
    params = _filter_params(draw, taps) | ({"bias": True} if draw.chance(0.4) else {})
    return Drawn(inputs, params, pattern)


def _isin(draw: Draw) -> Drawn:
    dtype = draw.weighted(ISIN)
    other = draw.weighted(ISIN) if draw.chance(0.1) else dtype
    kind = draw.weighted({"": 6, "few elements in many": 1, "token ids": 1})
    if kind == "token ids":
        dtype = other = torch.int64
    read, test = dtype.itemsize + 1, other.itemsize
    if kind == "few elements in many":
        elements = draw.log(1, max(1, draw.bytes // (8 * read)))
        tests = max(1, (draw.bytes - elements * read) // test)
    else:
        most = max(1, draw.bytes // (2 * test))
        tests = draw.log(1, min(most, 4096) if kind else most)
        elements = max(1, (draw.bytes - tests * test) // read)
    dense = kind == "token ids" or draw.chance(0.4)
    values: Values = "integers" if dense else "normal"
    high = max(2, tests * draw.choice((2, 4, 100)))
    high = draw.choice((32_000, 50_257, 128_256)) if kind == "token ids" else high
    shape = draw.shape(draw.choice((1, 1, 1, 2, 3)), elements)
    inputs = {
        "elements": Sample(shape, dtype, values, 0, high, draw.layout(len(shape))),
        "test_elements": Sample((tests,), other, values, 0, high, draw.layout(1)),
    }
    params = {"invert": draw.chance(0.2), "assume_unique": draw.chance(0.1)}
    return Drawn(inputs, params, kind, f"values below {high}" if dense else "sparse values")


def _of_declaration(op: Op) -> Domain:
    """The domain of an op that has none of its own."""

    def domain(draw: Draw) -> Drawn:
        dtype = draw.choice(op.inputs[0].dtypes)
        shape = draw.shape(draw.choice((1, 2, 3, 4)), max(1, draw.bytes // (2 * dtype.itemsize)))
        params = op.check_params(op.cases[0].params)
        sizes: dict[str, Any] = {
            s.name: draw.choice(s.choices) if s.choices else s.default for s in op.sizes
        }
        if op.derive is not None and op.dtypes:
            return Drawn(op.derive(dtype, **sizes), params)
        if op.derive is not None:
            return Drawn(op.derive(shape, dtype, params, **sizes), params)
        required = (one for one in op.inputs if not one.optional)
        return Drawn(
            {i.name: Sample(shape, dtype, i.values, i.low, i.high) for i in required}, params
        )

    return domain


DOMAINS: dict[str, Domain] = {
    "permute": _permute,
    "transpose-add": _transpose_add,
    "masked-softmax": _masked_softmax,
    "masked-softmax-backward": _masked_softmax_backward,
    "masked-softmax-bias-backward": _masked_softmax_bias_backward,
    "conv": _conv,
    "conv-backward": _conv_backward,
    "isin": _isin,
}


def case_of(op: Op, seed: int, index: int, within: Range) -> Case:
    """The case of this number: the same on each machine, whatever other cases are drawn.

    Raises:
        ValueError: the op takes none of what was drawn.
    """
    draw = Draw(f"{op.name} {seed} {index} {within.least} {within.most}", within)
    domain = DOMAINS.get(op.name) or _of_declaration(op)
    best: tuple[float, Drawn] | None = None
    for _ in range(TRIES):
        drawn = domain(draw)
        nbytes = _bytes_of(op, drawn)
        if not nbytes:
            continue
        off = abs(math.log(nbytes / draw.bytes))
        off += 0 if within.least <= nbytes <= within.most else 100
        if best is None or off < best[0]:
            best = off, drawn
        if off <= math.log(NEAR):
            break
    if best is None:
        raise ValueError(f"{op.name} takes no case that its domain draws")
    found = best[1]
    name = f"#{index} {named(op, found)}"
    return Case(name, found.inputs, found.params, "large", seed=index)


def _bytes_of(op: Op, drawn: Drawn) -> int:
    """The compulsory bytes; 0 if the op does not take the call."""
    metas = {name: Meta(sample.shape, sample.dtype) for name, sample in drawn.inputs.items()}
    try:
        params = op.check_params(drawn.params)
        op.check(metas, params)
        return op.bytes_moved(**metas, **params)
    except ValueError:  # InvalidInput is one
        return 0


def named(op: Op, drawn: Drawn) -> str:
    """The shapes, dtypes, layouts and parameters of a case, as one line."""
    parts: list[str] = []
    before: torch.dtype | None = None
    for name, sample in drawn.inputs.items():
        shape = str(list(sample.shape)).replace(" ", "")
        dtype = "" if sample.dtype == before else f" {_short(sample.dtype)}"
        before = sample.dtype
        layout = "" if sample.layout == "contiguous" else f" {sample.layout}"
        special = " special" if sample.values == "special" else ""
        label = "" if not parts else f"{name} "
        parts.append(f"{label}{shape}{dtype}{layout}{special}")
    defaults = {param.name: param.default for param in op.params}
    for name, value in drawn.params.items():
        if value != defaults[name]:
            shown = str(value).replace(" ", "")
            parts.append(name if value is True else f"{name} {shown}")
    pattern = f"{drawn.pattern}: " if drawn.pattern else ""
    remark = f" ({drawn.remark})" if drawn.remark else ""
    return f"{pattern}{', '.join(parts)}{remark}"


def _short(dtype: torch.dtype) -> str:
    return SHORT_DTYPES.get(dtype, dtype_name(dtype))
