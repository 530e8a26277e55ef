"""Cases on which kernels are wrong more often than on others, for a check of results.

They are all dtypes, layouts of each input, NaN and infinities, tensors with none and with one
element, odd sizes and long rows.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator, Mapping
from dataclasses import replace
from typing import Any, get_args

import torch

from warpcall_kernels.op.cases import SHORT_DTYPES, Case, Sample, SampleLayout
from warpcall_kernels.op.declaration import Meta, Op, dtype_name

ODD_SIZES = (31, 33, 37, 5)  # of a problem, in turn
LONG = 131_072  # elements of a long row
LONG_IF_SMALL = 4096
MOST_ELEMENTS = 1 << 26  # of the inputs of a case
MOST_ELEMENTS_IF_SMALL = 1 << 17
LAYOUTS = tuple(layout for layout in get_args(SampleLayout) if layout != "contiguous")

Samples = Mapping[str, Sample]


def odd_cases(op: Op, *, small: bool = False) -> list[Case]:
    """Odd cases of an op. Cases that it refuses are left out.

    An op of the library has its small cases, and further ones that follow from the first of them.
    The cases of a problem follow from its sizes.

    Args:
        op: an op of the library, or of a problem. For special values, the reference of a problem is
            called on the CPU.
        small: whether to leave out cases with more than `MOST_ELEMENTS_IF_SMALL` elements, for
            kernels that are interpreted. Long rows have `LONG_IF_SMALL` elements then.
    """
    if not op.has_odd_cases:
        return []
    found = _of_problem(op, small) if op.dtypes else _of_library(op, small)
    most = MOST_ELEMENTS_IF_SMALL if small else MOST_ELEMENTS
    return [case for case in found if _elements(case.inputs) <= most and _is_taken(op, case)]


def _of_library(op: Op, small: bool) -> Iterator[Case]:
    declared = [case for case in op.cases if case.size == "small"]
    yield from declared
    usual = _usual(op, declared)
    # Only these inputs: of others, the reference may make NaN where kernels need not, as 0 * inf.
    special = {n for case in declared for n, s in case.inputs.items() if s.values == "special"}
    for dtype in op.inputs[0].dtypes:
        yield _in_dtype(usual, dtype)
        yield _special(_in_dtype(usual, dtype), special)
    yield from _laid_out(usual)
    for dtype in op.inputs[0].dtypes:
        if dtype.is_floating_point and dtype.itemsize > 1:
            yield from _long_rows(op, declared, dtype, LONG_IF_SMALL if small else LONG)


def _usual(op: Op, declared: list[Case]) -> Case:
    """A case of which others are made: of matrices, with odd rows if there is one."""

    def rank(case: Case) -> int:
        samples = case.inputs.values()
        first = case.inputs[op.inputs[0].name]
        if any(math.prod(s.shape) < 2 or s.layout != "contiguous" for s in samples):
            return 2
        return 0 if len(first.shape) > 1 and first.shape[-1] % 2 else 1

    found = min(declared, key=rank)
    defaults = {one.name: one.values for one in op.inputs}
    inputs = {
        name: replace(sample, values=defaults[name]) if sample.values == "special" else sample
        for name, sample in found.inputs.items()
    }
    return replace(found, inputs=inputs)


def _long_rows(op: Op, declared: list[Case], dtype: torch.dtype, length: int) -> Iterator[Case]:
    """Two long rows, or as many rows as the first case that the op takes with long ones."""
    first = op.inputs[0].name
    for case in declared:
        leading = case.inputs[first].shape[:-1]
        shapes = [(2, length)] if len(leading) == 1 else [(*(min(2, n) for n in leading), length)]
        for shape in (*shapes, (*leading, length)):
            found = _derived(op, case, shape, dtype)
            if leading and math.prod(shape) and found is not None and _is_taken(op, found):
                yield found
                return


def _derived(op: Op, like: Case, shape: tuple[int, ...], dtype: torch.dtype) -> Case | None:
    """A case of this shape and dtype of the first input, with the parameters of another case."""
    sizes: dict[str, Any] = {size.name: size.default for size in op.sizes}
    try:
        if op.derive is None:
            required = (one for one in op.inputs if not one.optional)
            inputs: Samples = {
                i.name: Sample(shape, dtype, i.values, i.low, i.high) for i in required
            }
        else:
            inputs = op.derive(shape, dtype, op.check_params(like.params), **sizes)
    except (ValueError, IndexError):  # InvalidInput is a ValueError
        return None
    return Case("long rows", dict(inputs), like.params)


def _of_problem(op: Op, small: bool) -> Iterator[Case]:
    numbers = [size for size in op.sizes if not size.choices]
    odd: dict[str, int | str] = {
        size.name: max(size.minimum, ODD_SIZES[i % len(ODD_SIZES)])
        for i, size in enumerate(numbers)
    }
    one = {size.name: max(size.minimum, 1) for size in numbers}
    length = LONG_IF_SMALL if small else LONG
    for dtype in op.dtypes:
        yield from _of_sizes(op, "default sizes", dtype, {})
        for case in _of_sizes(op, "odd sizes", dtype, odd):
            yield case
            special = _special(case, case.inputs)
            if _is_computed(op, special):
                yield special
    first = op.dtypes[0]
    yield from _of_sizes(op, "sizes of 1", first, one)
    for size in numbers:
        short = {other.name: max(2, other.minimum) for other in numbers}
        yield from _of_sizes(op, f"{size.name} 1", first, {**odd, size.name: one[size.name]})
        yield from _of_sizes(op, f"{size.name} {length}", first, {**short, size.name: length})
        if size.minimum == 0:
            yield from _of_sizes(op, f"{size.name} 0", first, {**odd, size.name: 0})
    for size in op.sizes:
        for choice in size.choices:
            yield from _of_sizes(op, f"{size.name} {choice}", first, {**odd, size.name: choice})
    for case in _of_sizes(op, "odd sizes", first, odd):
        yield from _laid_out(case)


def _of_sizes(
    op: Op, name: str, dtype: torch.dtype, sizes: Mapping[str, int | str]
) -> Iterator[Case]:
    """The case of a problem for these sizes, and the defaults of the others, unless it raises."""
    assert op.derive is not None
    try:
        chosen = {**{size.name: size.default for size in op.sizes}, **sizes}
        inputs = op.derive(dtype, **chosen)
    except Exception:  # noqa: BLE001  # code of a user, for sizes that it may not expect
        return
    yield Case(
        name, dict(inputs), {size.name: chosen[size.name] for size in op.sizes if size.passed}
    )


def _in_dtype(case: Case, dtype: torch.dtype) -> Case:
    """The same with another dtype of the first input, and of all inputs that have the same."""
    before = next(iter(case.inputs.values())).dtype
    inputs = {
        name: replace(sample, dtype=dtype) if sample.dtype == before else sample
        for name, sample in case.inputs.items()
    }
    return replace(
        case, name=f"{case.name}, {SHORT_DTYPES.get(dtype, dtype_name(dtype))}", inputs=inputs
    )


def _special(case: Case, names: Collection[str]) -> Case:
    """The same with NaN and infinities among the values of these inputs."""
    inputs = {
        name: replace(sample, values="special")
        if name in names and sample.values == "normal" and _has_infinities(sample.dtype)
        else sample
        for name, sample in case.inputs.items()
    }
    return replace(case, name=f"{case.name}, NaN and inf", inputs=inputs)


def _has_infinities(dtype: torch.dtype) -> bool:
    return (dtype.is_floating_point and dtype.itemsize > 1) or dtype.is_complex


def _laid_out(case: Case) -> Iterator[Case]:
    """The same with each layout of each input, and of all inputs at once."""
    names = [[name] for name in case.inputs] + ([[*case.inputs]] if len(case.inputs) > 1 else [])
    for layout in LAYOUTS:
        least = {"transposed": 2, "offset": 0}.get(layout, 1)
        for chosen in names:
            if all(len(case.inputs[name].shape) >= least for name in chosen):
                inputs = {
                    name: replace(sample, layout=layout) if name in chosen else sample
                    for name, sample in case.inputs.items()
                }
                yield replace(
                    case, name=f"{case.name}, {' and '.join(chosen)} {layout}", inputs=inputs
                )


def _elements(inputs: Samples) -> int:
    return sum(math.prod(sample.shape) for sample in inputs.values())


def _is_taken(op: Op, case: Case) -> bool:
    """Whether the op accepts a case, by its declaration."""
    metas = {name: Meta(sample.shape, sample.dtype) for name, sample in case.inputs.items()}
    try:
        params = op.check_params(case.params)
        op.check(metas, params)
        op.bytes_moved(**metas, **params)
    except Exception:  # noqa: BLE001  # that of a problem is code of a user
        return False
    return True


def _is_computed(op: Op, case: Case) -> bool:
    """Whether the reference computes a small case without an error."""
    try:
        with torch.no_grad():
            op.reference(**case.tensors(), **op.check_params(case.params))
    except Exception:  # noqa: BLE001  # code of a user
        return False
    return True
