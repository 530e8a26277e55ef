"""Checks the results of an implementation. One with wrong results is not timed.

Inputs come from random seeds and are drawn twice into the same memory, so that an implementation
can neither know nor remember a result. The result is compared with the reference in higher
precision on the same device. It must not be left from an earlier call, and the call must not change
its inputs or the memory on both sides of them.
"""

from __future__ import annotations

import functools
import secrets
from collections.abc import Callable, Iterator, Mapping, Sequence

import torch
from torch import Tensor

from warpcall_kernels import Op
from warpcall_kernels.measuring._implementations import outputs_of
from warpcall_kernels.measuring._memory import Guarded, guarded, poison
from warpcall_kernels.measuring._spec import JobCase
from warpcall_kernels.op.cases import Sample
from warpcall_kernels.op.declaration import Meta, dtype_name

DRAWS = 2
WORDS = {1: torch.uint8, 2: torch.int16, 4: torch.int32}  # by the bytes of an element
CHUNK = 1 << 24  # elements compared at a time, so that a comparison takes little memory

Function = Callable[..., object]


class Wrong(Exception):
    """A result is not the one that the op defines."""


class Checker:
    """Checks implementations of one case with several draws of its inputs."""

    def __init__(self, case: JobCase, device: torch.device) -> None:
        self._case = case
        self._device = device
        self._inputs: dict[str, Guarded] = {}

    def draws(self) -> Iterator[Callable[[Function], int | None]]:
        """For each draw, a function that checks an implementation.

        It raises Wrong, or returns the peak of device memory of the call in bytes.
        """
        for _ in range(DRAWS):
            seed = secrets.randbits(48)
            drawn = draw(self._case.inputs, seed, self._device)
            wanted = self._wanted(drawn)
            yield functools.partial(self._check, seed, drawn, wanted)
            del drawn, wanted

    def _check(
        self, seed: int, drawn: dict[str, Tensor], wanted: tuple[Tensor, ...], function: Function
    ) -> int | None:
        if not self._inputs:
            self._inputs = guarded(drawn)
        for name, t in drawn.items():
            self._inputs[name].fill(t)
        before = {name: g.snapshot() for name, g in self._inputs.items()}
        poison(self._case.outputs.values(), self._device)
        got, peak = self._call(function)
        self._compare(got, wanted, seed)
        for name, g in self._inputs.items():
            if not g.is_as(before[name]):
                raise Wrong(f"the call wrote to {name}, or next to it")
        return peak

    def _call(self, function: Function) -> tuple[tuple[Tensor, ...], int | None]:
        inputs = {name: g.tensor for name, g in self._inputs.items()}
        if self._device.type != "cuda":
            return outputs_of(function(**inputs)), None
        torch.cuda.synchronize(self._device)
        torch.cuda.reset_peak_memory_stats(self._device)
        before = torch.cuda.memory_allocated(self._device)
        got = outputs_of(function(**inputs))
        torch.cuda.synchronize(self._device)
        return got, max(0, torch.cuda.max_memory_allocated(self._device) - before)

    def _wanted(self, inputs: Mapping[str, Tensor]) -> tuple[Tensor, ...]:
        op = self._case.op
        wide = inputs if op.tolerance is None else {n: widened(t) for n, t in inputs.items()}
        wanted = tuple(
            t.contiguous() for t in outputs_of(op.reference(**wide, **self._case.params))
        )
        given = [(tuple(t.shape), t.device) for t in wanted]
        declared = [(meta.shape, self._device) for meta in self._case.outputs.values()]
        if given != declared:
            raise ValueError(
                f"the reference must return tensors of shapes and devices {declared}, got {given}"
            )
        return wanted

    def _compare(self, got: Sequence[Tensor], wanted: Sequence[Tensor], seed: int) -> None:
        metas = self._case.outputs
        if len(got) != len(metas):
            raise Wrong(f"there must be {len(metas)} outputs, got {len(got)}")
        for (name, meta), ours, theirs in zip(metas.items(), got, wanted, strict=True):
            _compare_one(self._case.op, name, meta, ours, theirs, self._device, seed)


def draw(inputs: Mapping[str, Sample], seed: int, device: torch.device) -> dict[str, Tensor]:
    """Draw inputs on a device. A seed gives the same values on one kind of device."""
    generator = torch.Generator(device).manual_seed(seed)
    return {name: sample.draw(generator, device) for name, sample in inputs.items()}


def widened(t: Tensor) -> Tensor:
    """The same values in the widest dtype of their kind."""
    if t.is_complex():
        return t.to(torch.complex128)
    return t.double() if t.is_floating_point() else t


def _compare_one(
    op: Op, name: str, meta: Meta, ours: object, theirs: Tensor, device: torch.device, seed: int
) -> None:
    if not isinstance(ours, Tensor):
        raise Wrong(f"{name} must be a tensor, got {type(ours).__name__}")
    if (tuple(ours.shape), ours.dtype) != (meta.shape, meta.dtype) or ours.device != device:
        raise Wrong(
            f"{name} must be {dtype_name(meta.dtype)} of shape {meta.shape} on {device}, "
            f"got {dtype_name(ours.dtype)} of shape {tuple(ours.shape)} on {ours.device}"
        )
    error = None if op.tolerance is None else op.tolerance[meta.dtype]
    wrong = first = 0
    for begin, a, b in _chunks(ours.contiguous(), theirs):
        bad = ~(_same(a, b) if error is None else _close(a, b, error))
        found = int(bad.sum())
        if found and not wrong:
            first = begin + int(bad.nonzero()[0])
        wrong += found
    if wrong:
        got, wanted = shown(*(t.reshape(-1)[first].item() for t in (ours.contiguous(), theirs)))
        raise Wrong(
            f"{name} differs from the reference in {wrong} of {ours.numel()} elements, first at {first} "
            f"(in C order): {got} instead of {wanted} (seed {seed})"
        )


def shown(got: object, wanted: object) -> tuple[str, str]:
    """Two different values as text, floats with as few digits as tell them apart."""
    if isinstance(got, float) and isinstance(wanted, float):
        for digits in (4, 8):
            texts = f"{got:.{digits}g}", f"{wanted:.{digits}g}"
            if texts[0] != texts[1]:
                return texts
    return str(got), str(wanted)


def _chunks(ours: Tensor, theirs: Tensor) -> Iterator[tuple[int, Tensor, Tensor]]:
    a, b = ours.reshape(-1), theirs.reshape(-1)
    for begin in range(0, a.numel(), CHUNK):
        yield begin, a[begin : begin + CHUNK], b[begin : begin + CHUNK]


def _same(ours: Tensor, theirs: Tensor) -> Tensor:
    """Equal bit for bit, except that every NaN equals every other: which one results is not
    defined.
    """
    # Whole words take a tenth of the time of bytes of which all must be equal.
    word = WORDS.get(ours.dtype.itemsize, torch.int64)
    same = ours.view(word) == theirs.view(word)
    if ours.dtype.itemsize > word.itemsize:
        same = same.view(ours.numel(), -1).all(1)
    if ours.is_floating_point() or ours.is_complex():
        wide = (ours, theirs) if ours.dtype.itemsize > 1 else (ours.float(), theirs.float())
        same |= wide[0].isnan() & wide[1].isnan()
    return same


def _close(ours: Tensor, theirs: Tensor, error: float) -> Tensor:
    """Within rtol = atol = error of the wide reference, with values beyond the dtype's range
    infinite.
    """
    expected = theirs
    if theirs.is_floating_point() or theirs.is_complex():  # torch 2.11 cannot select uint16 to 64
        rounded = theirs.to(ours.dtype).to(theirs.dtype)
        expected = torch.where(rounded.isfinite(), theirs, rounded)
    return torch.isclose(ours.to(expected.dtype), expected, rtol=error, atol=error, equal_nan=True)
