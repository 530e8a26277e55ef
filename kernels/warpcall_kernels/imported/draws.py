"""Finds out how a function draws its tensors, without drawing them.

The function runs on the device "meta". Each tensor is followed from the function of torch that makes
it to where it is returned: which distribution it has, or that it follows from no random number.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Self

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

from warpcall_kernels.op.cases import Sample, SampleLayout
from warpcall_kernels.op.declaration import Meta
from warpcall_kernels.op.errors import InvalidInput

RANDOM = {
    "randn": "normal",
    "randn_like": "normal",
    "rand": "uniform",
    "rand_like": "uniform",
    "randint": "integers",
    "randint_like": "integers",
}
OTHER_RANDOM = frozenset(
    {"randperm", "normal", "bernoulli", "multinomial", "poisson", "bernoulli_", "exponential_"}
    | {"log_normal_", "cauchy_", "geometric_", "random_", "dropout"}
)
EMPTY = frozenset({"empty", "empty_like", "new_empty", "empty_strided", "zeros", "zeros_like"})
ZERO = frozenset({"zeros", "zeros_like"})
FACTORIES = frozenset(
    {"ones", "ones_like", "full", "full_like", "arange", "linspace", "logspace", "eye", "tensor"}
    | {"as_tensor", "tril_indices", "triu_indices", "hann_window", "from_numpy", "new_zeros"}
    | {"new_ones", "new_full", "new_tensor", "asarray"}
)
SAME_VALUES = frozenset(
    {"to", "float", "half", "bfloat16", "double", "int", "long", "short", "bool", "type", "type_as"}
    | {"cuda", "cpu", "contiguous", "clone", "detach", "requires_grad_", "__get__", "transpose"}
    | {"permute", "t", "view", "reshape", "unsqueeze", "squeeze", "flatten", "expand", "swapaxes"}
    | {"movedim", "expand_as", "view_as", "reshape_as", "unflatten", "pin_memory", "T", "mT"}
)


@dataclass(frozen=True)
class Drawn:
    """Random values: the fields of `Sample` for them."""

    values: str
    low: int = 0
    high: int = 100
    scale: float = 1.0
    shift: float = 0.0


@dataclass(frozen=True)
class Memory:
    """Memory that the function gives for results: empty, or filled with zeros."""

    zero: bool


@dataclass(frozen=True)
class Fixed:
    """Values that follow from no random number."""


@dataclass(frozen=True)
class Computed:
    """Random values that are computed in a way that the server cannot repeat."""

    by: str


Origin = Drawn | Memory | Fixed | Computed


@dataclass(frozen=True)
class Input:
    """A place in what the function returns: a tensor that the server draws."""

    name: str


@dataclass(frozen=True)
class Result:
    """A place in what the function returns: new memory in each call."""

    meta: Meta
    zero: bool


@dataclass(frozen=True)
class Constant:
    """A place in what the function returns: a tensor whose values are always the same."""

    number: int


@dataclass(frozen=True)
class Traced:
    """What a function returns: its structure, and the tensors to draw by name."""

    tree: Any
    samples: Mapping[str, Sample]


def trace(make: Callable[[], Any], names: Sequence[str], *, memory: bool) -> Traced:
    """Find out what a function returns.

    Args:
        make: the function; it is called on the device "meta".
        names: of the tensors at the top level of what it returns; "" and others are numbered.
        memory: whether empty tensors and zeros are memory for results; otherwise they are constants.

    Raises:
        InvalidInput: a tensor is drawn in a way that the server cannot repeat.
    """
    follow = _Follow(torch.device("meta"))
    with follow.following():
        made = make()
    samples: dict[str, Sample] = {}
    constants: list[Tensor] = []

    def place(value: Any, name: str) -> Any:
        if isinstance(value, Tensor):
            origin = follow.origin(value)
            if isinstance(origin, Drawn):
                samples[name] = _sample(name, value, origin)
                return Input(name)
            if isinstance(origin, Computed):
                raise InvalidInput(
                    "inputs",
                    f"the server cannot draw {name}: its random values are made by {origin.by}. It "
                    "draws what randn, rand and randint return, scaled and shifted by numbers, in any "
                    "dtype",
                )
            if isinstance(origin, Memory) and memory:
                return Result(Meta(tuple(value.shape), value.dtype), origin.zero)
            constants.append(value)
            return Constant(len(constants) - 1)
        if isinstance(value, dict):
            return {key: place(one, _joined(name, key)) for key, one in value.items()}
        if isinstance(value, list | tuple):
            found = [place(one, _joined(name, i)) for i, one in enumerate(value)]
            return like(value, found)
        return value

    if isinstance(made, list | tuple):
        known = [*names[: len(made)], *[""] * (len(made) - len(names))]
        each = [one or f"input{i}" for i, one in enumerate(known)]
        tree: Any = like(made, [place(one, n) for one, n in zip(made, each, strict=True)])
    else:
        tree = place(made, names[0] if names else "input0")
    return Traced(tree, samples)


def constants(make: Callable[[], Any], device: torch.device, *, memory: bool) -> list[Tensor]:
    """The tensors that `trace` finds to be constants, with their values."""
    follow = _Follow(device)
    with follow.following():
        made = make()
    kinds = (Fixed,) if memory else (Fixed, Memory)
    leaves = (one for one in _leaves(made) if isinstance(one, Tensor))
    return [one for one in leaves if isinstance(follow.origin(one), kinds)]


def filled(
    tree: Any,
    inputs: Mapping[str, Tensor],
    fixed: Sequence[Tensor],
    device: torch.device,
    cast: Callable[[torch.dtype], torch.dtype],
) -> Any:
    """What the function would return, with drawn tensors and new memory for results.

    Args:
        cast: the dtype of memory for results that replaces another one.
    """
    if isinstance(tree, Input):
        return inputs[tree.name]
    if isinstance(tree, Constant):
        return fixed[tree.number]
    if isinstance(tree, Result):
        make = torch.zeros if tree.zero else torch.empty
        return make(tree.meta.shape, dtype=cast(tree.meta.dtype), device=device)
    if isinstance(tree, dict):
        return {key: filled(one, inputs, fixed, device, cast) for key, one in tree.items()}
    if isinstance(tree, list | tuple):
        return like(tree, [filled(one, inputs, fixed, device, cast) for one in tree])
    return tree


def _leaves(value: Any) -> Iterator[Any]:
    if isinstance(value, dict):
        value = list(value.values())
    if isinstance(value, list | tuple):
        for one in value:
            yield from _leaves(one)
    else:
        yield value


def like(value: Any, parts: list[Any]) -> Any:
    """A list or tuple of other parts."""
    if hasattr(value, "_fields"):  # a named tuple
        return type(value)(*parts)
    return tuple(parts) if isinstance(value, tuple) else parts


def _joined(name: str, part: object) -> str:
    text = f"{name}_{part}"
    return text if text.isidentifier() else f"{name}_{abs(hash(text)) % 10**6}"


def _sample(name: str, tensor: Tensor, origin: Drawn) -> Sample:
    layout: SampleLayout = "contiguous"
    if not tensor.is_contiguous():
        if tensor.ndim > 1 and tensor.transpose(-1, -2).is_contiguous():
            layout = "transposed"
        elif tensor.ndim and tensor.stride(0) == 0 and tensor[:1].is_contiguous():
            layout = "expanded"
        else:
            raise InvalidInput(
                "inputs",
                f"the server cannot draw {name}: it lies in memory with shape {tuple(tensor.shape)} "
                f"and strides {tensor.stride()}. Contiguous and transposed tensors can be drawn",
            )
    return Sample(
        tuple(tensor.shape),
        tensor.dtype,
        origin.values,  # type: ignore[arg-type]
        origin.low,
        origin.high,
        layout,
        origin.scale,
        origin.shift,
    )


class _Follow(TorchFunctionMode):
    """Follows tensors while a function runs.

    Args:
        device: on which tensors are that follow from no random number; all others are on "meta".
    """

    def __init__(self, device: torch.device) -> None:
        super().__init__()
        self._device = device
        self._known: dict[int, tuple[Tensor, Origin]] = {}  # by id; tensors stay alive

    @contextlib.contextmanager
    def following(self) -> Iterator[None]:
        """Follow what is called in the block. Generators of any device are taken there."""
        generator = torch.Generator
        torch.Generator = _AnyGenerator  # type: ignore[misc]
        try:
            with self:
                yield
        finally:
            torch.Generator = generator  # type: ignore[misc]

    def origin(self, tensor: Tensor) -> Origin:
        """Where a tensor comes from."""
        return self._known.get(id(tensor), (tensor, Fixed()))[1]

    def __torch_function__(
        self, func: Any, types: Any, args: Any = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        name, given = getattr(func, "__name__", ""), dict(kwargs or {})
        is_factory = name in RANDOM or name in EMPTY or name in FACTORIES or name in OTHER_RANDOM
        if is_factory and not name.endswith("_"):
            given.pop("generator", None)
            given.pop("pin_memory", None)
            is_random = name in RANDOM or name in OTHER_RANDOM
            given["device"] = torch.device("meta") if is_random else self._device
            if name == "from_numpy":
                given.pop("device")
        elif name in ("cuda", "cpu", "pin_memory"):
            return args[0]
        elif name == "to":
            args = (args[0], *(one for one in args[1:] if not _is_device(one)))
            given.pop("device", None)
            if len(args) == 1 and not given:
                return args[0]
        elif name in ("normal_", "uniform_"):
            given.pop("generator", None)
        result = func(*args, **given)
        if isinstance(result, Tensor):
            self._known[id(result)] = result, self._origin_of(name, func, args, given)
        elif isinstance(result, list | tuple):
            for part in result:
                if isinstance(part, Tensor):
                    self._known[id(part)] = part, self._origin_of(name, func, args, given)
        elif name == "__setitem__" and args and isinstance(args[0], Tensor):
            self._known[id(args[0])] = args[0], self._merged(name, args)
        return result

    def _origin_of(self, name: str, func: Any, args: Any, given: Mapping[str, Any]) -> Origin:
        if name in RANDOM:
            if RANDOM[name] != "integers":
                return Drawn(RANDOM[name])
            bounds = [one for one in args if type(one) is int]
            bounds = [given[n] for n in ("low", "high") if n in given] or bounds
            low, high = (0, bounds[0]) if len(bounds) == 1 else (bounds[0], bounds[1])
            return Drawn("integers", low, high)
        if name in EMPTY:
            return Memory(name in ZERO)
        if name in OTHER_RANDOM:
            return Computed(f"torch's {name}")
        if name == "normal_":
            mean, std = _two(args, given, ("mean", "std"), (0.0, 1.0))
            return Drawn("normal", scale=std, shift=mean)
        if name == "uniform_":
            begin, end = _two(args, given, ("from", "to"), (0.0, 1.0))
            return Drawn("uniform", scale=end - begin, shift=begin)
        if name in ("zero_",):
            return Memory(zero=True)
        if name in SAME_VALUES and isinstance(args[0], Tensor):
            origin = self.origin(args[0])
            return Fixed() if isinstance(origin, Memory) and name == "__get__" else origin
        return self._scaled(name, args, given) or self._merged(name, args)

    def _scaled(self, name: str, args: Any, given: Mapping[str, Any]) -> Origin | None:
        """Of random values that are multiplied by a number, or to which one is added."""
        plain = name.strip("_")
        if not args or not isinstance(args[0], Tensor) or given:
            return None
        origin = self.origin(args[0])
        if not isinstance(origin, Drawn):
            return None
        if plain == "neg":
            return replace(origin, scale=-origin.scale, shift=-origin.shift)
        if len(args) != 2 or type(args[1]) not in (int, float):
            return None
        number = float(args[1])
        factor, term = {
            "mul": (number, 0.0),
            "rmul": (number, 0.0),
            "imul": (number, 0.0),
            "div": (1 / number if number else 0.0, 0.0),
            "truediv": (1 / number if number else 0.0, 0.0),
            "add": (1.0, number),
            "radd": (1.0, number),
            "sub": (1.0, -number),
            "rsub": (-1.0, number),
        }.get(plain, (0.0, 0.0))
        if not factor:
            return None
        return replace(origin, scale=origin.scale * factor, shift=origin.shift * factor + term)

    def _merged(self, name: str, args: Any) -> Origin:
        """Of a result of any other function."""
        origins = [self.origin(one) for one in _leaves(list(args)) if isinstance(one, Tensor)]
        if any(isinstance(one, Drawn | Computed) for one in origins):
            return Computed(f"torch's {name}")
        return Fixed()


class _AnyGenerator(torch.Generator):
    """A generator that is asked for a device which this process may not have."""

    def __new__(cls, device: object = None) -> Self:
        return super().__new__(cls, "cpu")  # type: ignore[call-arg]  # torch's gap


def _is_device(value: object) -> bool:
    return isinstance(value, torch.device) or (
        isinstance(value, str) and value.partition(":")[0] in ("cuda", "cpu", "hip", "mps", "xpu")
    )


def _two(
    args: Any, given: Mapping[str, Any], names: tuple[str, str], defaults: tuple[float, float]
) -> tuple[float, float]:
    found = [*args[1:3], *defaults[len(args) - 1 :]]
    return tuple(float(given.get(n, v)) for n, v in zip(names, found, strict=True))  # type: ignore[return-value]
