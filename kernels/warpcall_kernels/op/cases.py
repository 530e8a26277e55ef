"""Cases: named inputs and parameters that tests and benchmarks run, as data."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, get_args

import torch
from torch import Tensor

from warpcall_kernels.op.errors import InvalidInput, brief, listed

MAX_SIZE = 2**40  # of a dim; products stay within what torch accepts
MAX_RANK = 64
MAX_SCALE = 1e30  # of drawn values

# Sizes that servers often get, for the common calls of ops: powers of two, and unaligned sizes.
COMMON_SIZES = (16, 64, 256, 1024, 4096, 100, 1000)

# How the names of cases write a dtype.
SHORT_DTYPES = {
    torch.bool: "bool",
    torch.uint8: "u8",
    torch.int8: "i8",
    torch.int32: "i32",
    torch.int64: "i64",
    torch.float16: "fp16",
    torch.bfloat16: "bf16",
    torch.float32: "fp32",
    torch.float64: "fp64",
    torch.complex64: "c64",
    torch.complex128: "c128",
}

Values = Literal["normal", "special", "uniform", "integers", "mask"]
SampleLayout = Literal["contiguous", "transposed", "strided", "offset", "expanded"]


@dataclass(frozen=True)
class Sample:
    """A tensor to draw at random.

    Args:
        shape: shape of the tensor.
        dtype: dtype of the tensor.
        values: "normal": floats and complex numbers are drawn from the normal distribution,
            integers from the whole range of the dtype, and bool is True with probability 0.5;
            "special": as normal, and a quarter are NaN, inf, -inf, 0.0 or -0.0;
            "uniform": uniform in [0, 1);
            "integers": uniform in [low, high), cast to dtype;
            "mask": True, or 1, with probability 0.3.
        low, high: the bounds of "integers".
        layout: how the tensor lies in memory: "contiguous"; "transposed" (its last two dims are
            swapped), "strided" (every second element of the last dim), "offset" (contiguous, one
            element past an aligned address), "expanded" (the first dim has stride 0).
        scale, shift: what "normal", "uniform" and "integers" are multiplied with, and what is then
            added, before values are cast to dtype.
    """

    shape: tuple[int, ...]
    dtype: torch.dtype
    values: Values = "normal"
    low: int = 0
    high: int = 100
    layout: SampleLayout = "contiguous"
    scale: float = 1.0
    shift: float = 0.0

    def check(self, field: str) -> None:
        """Check a sample that a user describes, whatever it has in its fields.

        Args:
            field: where the user describes it, for the error.

        Raises:
            InvalidInput: it cannot be drawn; the error names the part of `field` that is wrong.
        """
        checked_shape(f"{field}.shape", self.shape)
        for name, allowed in (("values", get_args(Values)), ("layout", get_args(SampleLayout))):
            value = getattr(self, name)
            if value not in allowed:
                raise InvalidInput(
                    f"{field}.{name}",
                    f"{field}.{name} must be one of {listed(allowed)}, got {brief(value)}",
                )
        low, high = self.low, self.high
        if not all(type(n) is int and abs(n) < 2**62 for n in (low, high)) or low >= high:
            raise InvalidInput(
                f"{field}.low",
                f"{field}.low and high must be integers, low below high, got {brief((low, high))}",
            )
        for name, number in (("scale", self.scale), ("shift", self.shift)):
            if type(number) not in (int, float) or not abs(number) < MAX_SCALE:
                raise InvalidInput(
                    f"{field}.{name}",
                    f"{field}.{name} must be a number below {MAX_SCALE:g}, got {brief(number)}",
                )
        if (self.scale, self.shift) != (1, 0) and self.values in ("special", "mask"):
            raise InvalidInput(
                f"{field}.scale", f"{field}.scale and shift are not for the values {self.values}"
            )
        needed = {"transposed": 2, "strided": 1, "expanded": 1}.get(self.layout, 0)
        if len(self.shape) < needed:
            raise InvalidInput(
                f"{field}.layout",
                f"{field}.layout {self.layout} needs {needed} dims, got shape {self.shape}",
            )

    def draw(self, generator: torch.Generator, device: torch.device | str = "cpu") -> Tensor:
        """Draw the tensor.

        A generator on the CPU gives the same values everywhere; one on the GPU is faster.
        """
        with torch.device(generator.device):
            values = self._values(self._stored_shape(), generator)
        return self._lay_out(values.to(device))

    def meta(self) -> Tensor:
        """The tensor on the "meta" device: without memory, with shape, dtype and strides."""
        return self._lay_out(torch.empty(self._stored_shape(), dtype=self.dtype, device="meta"))

    def _stored_shape(self) -> list[int]:
        shape = list(self.shape)
        if self.layout == "transposed":
            shape[-2:] = shape[:-3:-1]
        elif self.layout == "strided":
            shape[-1] *= 2
        elif self.layout == "expanded":
            shape[0] = 1
        return shape

    def _lay_out(self, values: Tensor) -> Tensor:
        if self.layout == "transposed":
            return values.transpose(-1, -2)
        if self.layout == "strided":
            return values[..., ::2]
        if self.layout == "expanded":
            return values.expand(self.shape)
        if self.layout == "offset":
            padded = values.new_empty(values.numel() + 1)
            padded[1:] = values.reshape(-1)
            return padded[1:].view(self.shape)
        return values

    def _values(self, shape: list[int], generator: torch.Generator) -> Tensor:
        if self.values == "mask":
            return (torch.rand(shape, generator=generator) < 0.3).to(self.dtype)
        if self.values == "integers":
            drawn = torch.randint(self.low, self.high, shape, generator=generator)
            return self._scaled(drawn).to(self.dtype)
        if self.values == "uniform":
            return self._scaled(torch.rand(shape, generator=generator)).to(self.dtype)
        if self.dtype == torch.bool:
            return torch.rand(shape, generator=generator) < 0.5
        if not (self.dtype.is_floating_point or self.dtype.is_complex):
            count = math.prod(shape)
            words = torch.empty(-(-count * self.dtype.itemsize // 8), dtype=torch.int64)
            words.random_(-(2**63), None, generator=generator)
            return words.view(self.dtype)[:count].view(shape)
        wide = torch.complex64 if self.dtype.is_complex else torch.float32
        drawn = torch.randn(shape, generator=generator, dtype=wide)
        if self.values == "special" and drawn.numel():
            extremes = torch.tensor([float("nan"), float("inf"), -float("inf"), 0.0, -0.0])
            which = torch.randint(0, 20, shape, generator=generator)
            for i, extreme in enumerate(extremes):
                drawn = torch.where(which == i, extreme.to(wide), drawn)
        return self._scaled(drawn).to(self.dtype)

    def _scaled(self, drawn: Tensor) -> Tensor:
        if (self.scale, self.shift) == (1, 0):
            return drawn
        return drawn * self.scale + self.shift


@dataclass(frozen=True, eq=False)  # equal by identity, and so hashable
class Case:
    """One call of an op: inputs to draw, parameters, and a seed.

    Tests run "small" cases everywhere, also in Triton's interpreter, so keep them under 256 x 256
    elements. "large" cases are for tests on a GPU and for benchmarks.
    """

    name: str
    inputs: Mapping[str, Sample]
    params: Mapping[str, Any] = field(default_factory=dict)
    size: Literal["small", "large"] = "small"
    seed: int = 0

    def tensors(self, device: torch.device | str = "cpu") -> dict[str, Tensor]:
        """Draw the inputs; they are the same every time."""
        generator = torch.Generator().manual_seed(self.seed)
        return {name: sample.draw(generator, device) for name, sample in self.inputs.items()}

    def metas(self) -> dict[str, Tensor]:
        """Make the inputs without memory, on the "meta" device."""
        return {name: sample.meta() for name, sample in self.inputs.items()}


def checked_shape(field: str, value: object) -> tuple[int, ...]:
    """The shape that a user gives, or InvalidInput that names the field."""
    good = isinstance(value, list | tuple) and len(value) <= MAX_RANK
    if good and all(type(n) is int and 0 <= n <= MAX_SIZE for n in value):  # type: ignore[attr-defined]
        return tuple(value)  # type: ignore[arg-type]
    raise InvalidInput(
        field,
        f"{field} must be a list of at most {MAX_RANK} integers between 0 and {MAX_SIZE}, "
        f"got {brief(value)}",
    )
