"""What the tests require of every op, whatever it computes."""

from __future__ import annotations

import dataclasses
import functools
import math
from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from warpcall_kernels import Op
from warpcall_kernels.op.cases import Case
from warpcall_kernels.op.compare import Comparison
from warpcall_kernels.op.declaration import Meta

WIDE = {
    torch.float16: torch.float64,
    torch.bfloat16: torch.float64,
    torch.float32: torch.float64,
    torch.complex64: torch.complex128,
}
GRADIENT_DTYPES = (torch.float32, torch.float64, torch.complex64)


@dataclasses.dataclass(frozen=True)
class Run:
    """One call of an op: copies of its inputs, its outputs, and the inputs after the call."""

    given: dict[str, Tensor]
    after: dict[str, Tensor]
    outputs: dict[str, Tensor]
    params: dict[str, Any]


@functools.cache
def run(op: Op, case: Case, device: str) -> Run:
    """Call the public function, and so the kernel, once for all tests of a case."""
    inputs = case.tensors(device)
    given = {name: t.clone() for name, t in inputs.items()}
    params = op.check_params(case.params)
    outputs = by_name(op, op.function(**inputs, **params))
    return Run(given, inputs, outputs, params)


def case_params(pairs: Iterable[tuple[Op, Case]], quick: int | None = None) -> list[Any]:
    """Parameters `op` and `case`. All but the first `quick` cases of each op are slow; None: none is."""
    seen: Counter[str] = Counter()
    params = []
    for op, case in pairs:
        is_slow = quick is not None and seen[op.name] >= quick
        seen[op.name] += 1
        marks = [pytest.mark.slow] if is_slow else []
        params.append(pytest.param(op, case, id=f"{op.name} {case.name}", marks=marks))
    return params


def by_name(op: Op, result: Any) -> dict[str, Tensor]:
    """The outputs in a function's result, by name, without those that are None."""
    parts = result if isinstance(result, tuple) else (result,)
    names = (o.name for o in op.outputs)
    return {n: t for n, t in zip(names, parts, strict=True) if t is not None}


def drawn(
    shape: tuple[int, ...], dtype: torch.dtype, device: str, offset: int = 0, pitch: int = 0
) -> Tensor:
    """Any bits, from an address that `offset` elements lie before, in an allocation that ends with
    it.
    """
    *outer, rows, columns = shape
    span = torch.Size((*outer, rows)).numel() * max(columns, pitch) - max(0, pitch - columns)
    octets = torch.randint(0, 256, ((span + offset) * dtype.itemsize,), dtype=torch.uint8)
    if dtype == torch.bool:
        octets &= 1
    strides = (
        *(s * max(columns, pitch) for s in torch.empty((*outer, rows), device="meta").stride()),
        1,
    )
    return octets.to(device).view(dtype).as_strided(shape, strides, offset)


def widen(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The same values in fp64; tensors of other kinds than floats and complex stay as they are."""
    return {name: t.to(WIDE.get(t.dtype, t.dtype)) for name, t in tensors.items()}


def metas(tensors: Mapping[str, Tensor]) -> dict[str, Meta]:
    return {name: Meta(tuple(t.shape), t.dtype) for name, t in tensors.items()}


def assert_right(
    op: Op, given: Mapping[str, Tensor | None], params: Mapping[str, Any], result: Any
) -> None:
    """Assert that the outputs of a call are what the reference says, within the op's tolerance.

    Args:
        op: the op.
        given: the inputs of the call by name; None for one that was left out.
        params: the parameters of the call by name, without defaults.
        result: a tensor or a tuple of them, as the op returns them, or outputs by name. An output
            that is None is not compared.
    """
    inputs = {name: t for name, t in given.items() if t is not None}
    checked = op.check_params(params)
    actual = result if isinstance(result, Mapping) else by_name(op, result)
    expected = reference_of(op, inputs, checked)
    assert actual
    comparison = Comparison(op, inputs, checked)
    for name, output in actual.items():
        assert output.shape == expected[name].shape
        assert op.tolerance is not None or output.dtype == expected[name].dtype
        differs = comparison.difference(name, output, expected[name])
        assert differs is None, differs


def assert_bits_equal(actual: Tensor, expected: Tensor) -> None:
    """Assert the same dtype, shape and bits, so that -0.0 differs from 0.0. All NaN are equal."""
    assert (actual.dtype, actual.shape) == (expected.dtype, expected.shape)
    if actual.dtype.is_complex:
        actual, expected = torch.view_as_real(actual), torch.view_as_real(expected)
    if actual.dtype.is_floating_point and actual.dtype.itemsize > 1:
        nan = expected.isnan()
        assert torch.equal(actual.isnan(), nan)
        actual, expected = actual.masked_fill(nan, 0), expected.masked_fill(nan, 0)
    octets = (t.flatten().clone(memory_format=torch.contiguous_format) for t in (actual, expected))
    assert torch.equal(*(t.view(torch.uint8) for t in octets))


def reference_of(op: Op, given: Mapping[str, Tensor], params: Mapping[str, Any]) -> dict[str, Any]:
    """The outputs of the reference, in fp64 unless the op is bit-exact."""
    inputs = given if op.tolerance is None else widen(given)
    return by_name(op, op.reference(**inputs, **params))


def has_gradient(op: Op, case: Case) -> bool:
    """Whether to check the gradients of this case by finite differences, which need fp64.

    Cases in fp16 or bf16 would only repeat those in fp32.
    """
    return bool(op.differentiable) and all(
        math.prod(s.shape) > 0 and s.values != "special" and s.dtype in GRADIENT_DTYPES
        for name, s in case.inputs.items()
        if name in op.differentiable
    )


def leaves(op: Op, case: Case, device: str) -> dict[str, Tensor]:
    """The inputs of a case in fp64; those that have a gradient require it."""
    wide = widen({name: t.clone() for name, t in case.tensors(device).items()})
    return {name: t.requires_grad_(name in op.differentiable) for name, t in wide.items()}


class Recorder(TorchDispatchMode):  # type: ignore[no-untyped-call]  # torch's own are untyped
    """Records the calls of this library's custom ops."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.calls: list[tuple[Any, tuple[Any, ...], dict[str, Any]]] = []

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        if func.namespace == "warpcall":
            self.calls.append((func, args, kwargs or {}))
        return func(*args, **(kwargs or {}))
