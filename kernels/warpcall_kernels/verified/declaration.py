"""A declaration of launches: how an author says in JSON what one call of an op launches.

It names sizes, scratch memory, configurations and launches, with expressions over the sizes of a case.
docs/verified-kernels.md has its members. All of it comes from users, so each member is checked and bounded.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch

from warpcall_kernels.op.declaration import dtype_name
from warpcall_kernels.op.errors import brief, listed
from warpcall_kernels.verified.expressions import (
    DTYPES,
    RESERVED,
    Expression,
    InvalidExpression,
    Names,
    TensorFacts,
    Value,
)
from warpcall_kernels.verified.plan import (
    FILL_BYTES,
    FORMATS,
    MOST_ARGUMENTS,
    MOST_BYTES,
    MOST_CHARS,
    MOST_CHOICES,
    MOST_CLUSTER,
    MOST_DIMS,
    MOST_GRID,
    MOST_LAUNCHES,
    MOST_SHARED_BYTES,
    MOST_THREADS,
    POINTER,
    Triple,
)

MOST_SIZES = 64
MOST_SCRATCH = 16
MOST_CONDITIONS = 32
MOST_CONSTANTS = 32  # of a configuration
MOST_NAME = 64
NAME = re.compile(r"[A-Za-z_]\w*", re.ASCII)
OPTIONS = (
    "num_warps",
    "num_stages",
    "num_ctas",
    "maxnreg",
)  # of Triton; a configuration may have them
MOST_OPTION = {"num_warps": 32, "num_stages": 32, "num_ctas": MOST_CLUSTER, "maxnreg": 255}
SCALARS = tuple(kind for kind in FORMATS if kind != POINTER)  # types of arguments of CUDA C++
CODES = {dtype: code for code, dtype in DTYPES.items()}
Constant = bool | int | float


class InvalidDeclaration(Exception):
    """A declaration that cannot be carried out. The text names the member, what it is and what is allowed."""


@dataclass(frozen=True)
class Scratch:
    """Memory that is allocated for each call.

    Attributes:
        fill: the value of all its elements before the launches; None for none.
    """

    dtype: torch.dtype
    shape: tuple[Expression, ...]
    fill: Constant | None


@dataclass(frozen=True)
class Argument:
    """One argument of a kernel: its name for Triton, and its type for CUDA C++, where it is no pointer."""

    name: str
    kind: str
    value: Expression


@dataclass(frozen=True)
class DeclaredLaunch:
    """One launch.

    Attributes:
        member: where it stands, such as "launches[0]", for messages.
        grid, block, cluster: up to three expressions; `block` of CUDA C++ only.
        arguments: in order, of CUDA C++; by name, of Triton.
        options: of Triton, as OPTIONS names them.
        early: whether it may begin before the launch before has ended.
        cooperative: whether all its blocks must be resident at the same time.
    """

    member: str
    kernel: str
    grid: tuple[Expression, ...]
    arguments: tuple[Argument, ...]
    block: tuple[Expression, ...]
    shared_bytes: Expression
    cluster: tuple[Expression, ...]
    options: Mapping[str, Expression]
    early: bool
    cooperative: bool

    @property
    def for_cuda(self) -> bool:
        """Whether it launches a kernel in CUDA C++."""
        return bool(self.block)

    def grid_of(self, names: Names) -> Triple:
        """The blocks along three axes. Raises InvalidDeclaration."""
        return self._triple("grid", self.grid, names, 0, MOST_GRID)

    def block_of(self, names: Names) -> Triple:
        """The threads of a block along three axes. Raises InvalidDeclaration."""
        return self._product("block", self.block, names, MOST_THREADS)

    def cluster_of(self, names: Names) -> Triple:
        """The blocks of a cluster along three axes. Raises InvalidDeclaration."""
        return self._product("cluster", self.cluster, names, MOST_CLUSTER)

    def shared_bytes_of(self, names: Names) -> int:
        """The dynamic shared memory of a block. Raises InvalidDeclaration."""
        with _naming(f"{self.member}.shared_bytes"):
            return self.shared_bytes.integer(names, 0, MOST_SHARED_BYTES)

    def options_of(self, names: Names) -> dict[str, int]:
        """The options of Triton: those of the launch, otherwise those of the configuration.

        Raises:
            InvalidDeclaration: one has no value, or one that Triton cannot take.
        """
        found = {}
        for name in OPTIONS:
            if name in self.options:
                with _naming(f"{self.member}.{name}"):
                    found[name] = self.options[name].integer(names, 1, MOST_OPTION[name])
            elif isinstance(value := names.get(name), int):
                found[name] = value
        return found

    def _triple(
        self, what: str, given: Sequence[Expression], names: Names, low: int, high: Sequence[int]
    ) -> Triple:
        numbers = []
        for axis, one in enumerate(given):
            with _naming(f"{self.member}.{what}[{axis}]"):
                numbers.append(one.integer(names, low, high[axis]))
        x, y, z = (*numbers, 1, 1, 1)[:3]
        return x, y, z

    def _product(self, what: str, given: Sequence[Expression], names: Names, most: int) -> Triple:
        triple = self._triple(what, given, names, 1, (most,) * 3)
        if math.prod(triple) > most:
            raise InvalidDeclaration(
                f"{self.member}.{what}: the product of its numbers may be {most} at most, and is {math.prod(triple)}"
            )
        return triple


class Allocated(NamedTuple):
    """Scratch memory of one case and one configuration. The fill is that of the declaration."""

    shape: tuple[int, ...]
    dtype: torch.dtype
    fill: Constant | None

    @property
    def nbytes(self) -> int:
        return math.prod(self.shape) * self.dtype.itemsize


@dataclass(frozen=True)
class Scope:
    """A declaration with the values of one case and one configuration.

    Attributes:
        label: the configuration as text; empty if the declaration has none.
        constants: the configuration.
        names: the values of all names that expressions may have.
    """

    label: str
    constants: Mapping[str, Constant]
    names: Names
    scratch: Mapping[str, Allocated]


@dataclass(frozen=True)
class Declaration:
    """A checked declaration."""

    requires: tuple[Expression, ...]
    sizes: Mapping[str, Expression]
    scratch: Mapping[str, Scratch]
    configurations: tuple[Mapping[str, Constant], ...]
    launches: tuple[DeclaredLaunch, ...]

    @property
    def for_cuda(self) -> bool:
        """Whether its kernels are in CUDA C++. Otherwise they are in Triton."""
        return self.launches[0].for_cuda

    @classmethod
    def from_json(cls, data: Any) -> Declaration:
        """The declaration of data that json.loads returned.

        Raises:
            InvalidDeclaration: it is none.
        """
        optional = ("requires", "sizes", "scratch", "configurations")
        _members(data, "the declaration", ("launches",), optional)
        conditions = data.get("requires")
        requires = _expressions(
            [] if conditions is None else conditions, "requires", 0, MOST_CONDITIONS
        )
        sizes = {
            name: _expression(value, f"sizes.{name}")
            for name, value in _named(data.get("sizes"), "sizes", MOST_SIZES)
        }
        scratch = {
            name: _scratch(value, f"scratch.{name}")
            for name, value in _named(data.get("scratch"), "scratch", MOST_SCRATCH)
        }
        given = data.get("configurations")
        configurations = tuple(
            _configuration(one, f"configurations[{number}]")
            for number, one in enumerate(
                _list([] if given is None else given, "configurations", 0, MOST_CHOICES)
            )
        )
        if len({frozenset(one) for one in configurations}) > 1:
            raise InvalidDeclaration("configurations: each must have the same names")
        launches = tuple(
            _launch(one, f"launches[{number}]")
            for number, one in enumerate(_list(data["launches"], "launches", 1, MOST_LAUNCHES))
        )
        if len({one.for_cuda for one in launches}) > 1:
            raise InvalidDeclaration(
                "launches: all have a block and their arguments in a list, for kernels in CUDA C++, or none"
            )
        constants = configurations[0] if configurations else {}
        for name in sizes:
            if name in scratch or name in constants:
                raise InvalidDeclaration(f"sizes.{name}: the name is taken")
        for name in scratch:
            if name in constants:
                raise InvalidDeclaration(f"scratch.{name}: the name is taken")
        return cls(requires, sizes, scratch, configurations, launches)

    def scopes(self, names: Names) -> Iterator[Scope]:
        """The declaration for one case, with each of its configurations.

        Args:
            names: inputs, outputs and parameters of the op by name, None for optional inputs that
                the case has not.

        Raises:
            InvalidDeclaration: a name is taken, a size has no value, or the case does not have what is
                required.
        """
        for name in (*self.sizes, *self.scratch, *(self.configurations or ({},))[0]):
            if name in names:
                raise InvalidDeclaration(
                    f"{name}: an input, output or parameter of the op has this name"
                )
        for constants in self.configurations or ({},):
            values: dict[str, Value] = {**names, **constants}
            for name, size in self.sizes.items():
                with _naming(f"sizes.{name}"):
                    values[name] = size.value(values)
                if isinstance(values[name], TensorFacts | str):
                    what = "a dtype" if isinstance(values[name], str) else "a tensor"
                    raise InvalidDeclaration(f"sizes.{name} must be a number, and is {what}")
            for number, condition in enumerate(self.requires):
                with _naming(f"requires[{number}]"):
                    if condition.value(values) is not True:
                        raise InvalidExpression(
                            f"the kernels are not for this case: {brief(condition.text)} is not true"
                        )
            scratch = {}
            for name, one in self.scratch.items():
                shape = []
                for axis, expression in enumerate(one.shape):
                    with _naming(f"scratch.{name}.shape[{axis}]"):
                        shape.append(expression.integer(values, 0, MOST_BYTES))
                scratch[name] = Allocated(tuple(shape), one.dtype, one.fill)
                if scratch[name].nbytes > MOST_BYTES:
                    raise InvalidDeclaration(f"scratch.{name} has more than {MOST_BYTES} bytes")
            for name, allocated in scratch.items():
                values[name] = facts(allocated.shape, allocated.dtype)
            label = ", ".join(f"{name}={value}" for name, value in constants.items())
            yield Scope(label[:MOST_CHARS], constants, values, scratch)


def facts(
    shape: Sequence[int], dtype: torch.dtype, strides: Sequence[int] | None = None
) -> TensorFacts:
    """What expressions may ask of a tensor; one without strides is contiguous."""
    if strides is None:
        strides = [math.prod(max(1, n) for n in shape[axis + 1 :]) for axis in range(len(shape))]
    return TensorFacts(tuple(shape), tuple(strides), dtype.itemsize, CODES.get(dtype, ""))


def bit_pattern(value: Constant, dtype: torch.dtype) -> tuple[int, int]:
    """The bits of a value of a dtype as a number, and how many bytes of it repeat.

    Raises:
        InvalidExpression: the dtype has no such value, or its bits cannot be filled in.
    """
    try:
        made = torch.tensor(value, dtype=dtype)
    except (RuntimeError, ValueError, OverflowError):
        raise InvalidExpression(f"{dtype_name(dtype)} has no value {value}") from None
    if not dtype.is_floating_point and (made.item() != value or type(value) is float):
        raise InvalidExpression(f"{dtype_name(dtype)} has no value {value}")
    nbytes = dtype.itemsize
    bits = int.from_bytes(made.reshape(1).view(torch.uint8).numpy().tobytes(), "little")
    if nbytes not in FILL_BYTES:
        low = bits & 0xFFFFFFFF
        if bits != low | low << 32:
            raise InvalidExpression(
                f"{dtype_name(dtype)} can be filled with 0 or -1 only, got {value}"
            )
        return low, 4
    return bits, nbytes


class _naming:  # noqa: N801  # reads as a function
    """A context that names the member in the error of an expression."""

    def __init__(self, member: str) -> None:
        self._member = member

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: object, error: BaseException | None, where: object) -> None:
        if isinstance(error, InvalidExpression):
            raise InvalidDeclaration(f"{self._member}: {error}") from None


def _expression(value: Any, member: str) -> Expression:
    with _naming(member):
        return Expression.parse(value)


def _expressions(value: Any, member: str, least: int, most: int) -> tuple[Expression, ...]:
    given = _list(value, member, least, most)
    return tuple(_expression(one, f"{member}[{number}]") for number, one in enumerate(given))


def _members(data: Any, what: str, needed: Sequence[str], optional: Sequence[str]) -> None:
    if not isinstance(data, dict):
        raise InvalidDeclaration(f"{what} must be an object of JSON, got {brief(data)}")
    for name in needed:
        if name not in data:
            raise InvalidDeclaration(f"{what} lacks {name}")
    for name in data:
        if name not in needed and name not in optional:
            raise InvalidDeclaration(
                f"{what} has no member {brief(name)}; there are {listed((*needed, *optional))}"
            )


def _named(data: Any, member: str, most: int) -> list[tuple[str, Any]]:
    """The members of an object whose names the author chose."""
    if data is None:
        return []
    if not isinstance(data, dict) or len(data) > most:
        raise InvalidDeclaration(
            f"{member} must be an object of at most {most} members, got {brief(data)}"
        )
    for name in data:
        _check_name(name, member)
    return list(data.items())


def _check_name(name: Any, member: str) -> None:
    valid = isinstance(name, str) and len(name) <= MOST_NAME and NAME.fullmatch(name)
    if not valid or name in RESERVED:
        raise InvalidDeclaration(
            f"{member}: a name has letters, digits and _, at most {MOST_NAME} of them, and is none of "
            f"{listed(sorted(RESERVED))}; got {brief(name)}"
        )


def _list(data: Any, member: str, least: int, most: int) -> list[Any]:
    if not isinstance(data, list) or not least <= len(data) <= most:
        raise InvalidDeclaration(f"{member} must be a list of {least} to {most}, got {brief(data)}")
    return data


def _scratch(data: Any, member: str) -> Scratch:
    _members(data, member, ("dtype", "shape"), ("fill",))
    name, fill = data["dtype"], data.get("fill")
    if not isinstance(name, str) or name not in DTYPES:
        raise InvalidDeclaration(
            f"{member}.dtype must be one of {listed(DTYPES)}, got {brief(name)}"
        )
    if fill is not None:
        if type(fill) not in (bool, int, float):
            raise InvalidDeclaration(f"{member}.fill must be a number, got {brief(fill)}")
        with _naming(f"{member}.fill"):
            bit_pattern(fill, DTYPES[name])
    return Scratch(DTYPES[name], _expressions(data["shape"], f"{member}.shape", 0, MOST_DIMS), fill)


def _configuration(data: Any, member: str) -> dict[str, Constant]:
    given = _named(data, member, MOST_CONSTANTS)
    for name, value in given:
        if type(value) not in (bool, int, float) or not abs(value) < 1 << 63:
            raise InvalidDeclaration(
                f"{member}.{name} must be a number of JSON below 2^63, true or false, got {brief(value)}"
            )
        most = MOST_OPTION.get(name)
        if most is not None and not (type(value) is int and 1 <= value <= most):
            raise InvalidDeclaration(
                f"{member}.{name} must be an integer from 1 to {most}, got {brief(value)}"
            )
    return dict(given)


def _launch(data: Any, member: str) -> DeclaredLaunch:
    optional = ("block", "shared_bytes", "cluster", "early", "cooperative", *OPTIONS)
    _members(data, member, ("kernel", "grid", "arguments"), optional)
    kernel = data["kernel"]
    if not isinstance(kernel, str) or len(kernel) > MOST_CHARS or not NAME.fullmatch(kernel):
        raise InvalidDeclaration(
            f"{member}.kernel must be the name of a function, got {brief(kernel)}"
        )
    for_cuda = "block" in data
    wrong = OPTIONS if for_cuda else ("shared_bytes", "cluster")
    for name in wrong:
        if name in data:
            owner = "Triton" if for_cuda else "CUDA C++, which has a block"
            raise InvalidDeclaration(f"{member}.{name} is for kernels in {owner}")
    for name in ("early", "cooperative"):
        if type(data.get(name, False)) is not bool:
            raise InvalidDeclaration(
                f"{member}.{name} must be true or false, got {brief(data[name])}"
            )
    return DeclaredLaunch(
        member=member,
        kernel=kernel,
        grid=_expressions(data["grid"], f"{member}.grid", 1, 3),
        arguments=(_ordered if for_cuda else _by_name)(data["arguments"], f"{member}.arguments"),
        block=_expressions(data["block"], f"{member}.block", 1, 3) if for_cuda else (),
        shared_bytes=_expression(data.get("shared_bytes", 0), f"{member}.shared_bytes"),
        cluster=_expressions(data.get("cluster", [1]), f"{member}.cluster", 1, 3),
        options={n: _expression(data[n], f"{member}.{n}") for n in OPTIONS if n in data},
        early=data.get("early", False),
        cooperative=data.get("cooperative", False),
    )


def _by_name(data: Any, member: str) -> tuple[Argument, ...]:
    if isinstance(data, list):
        raise InvalidDeclaration(
            f"{member} must be an object with the kernel's parameters by name; a list is for kernels in "
            "CUDA C++, whose launches also have a block"
        )
    given = _named(data, member, MOST_ARGUMENTS)
    return tuple(Argument(n, "", _expression(value, f"{member}.{n}")) for n, value in given)


def _ordered(data: Any, member: str) -> tuple[Argument, ...]:
    """Arguments of CUDA C++: names of tensors and null, and scalars as {type: expression}."""
    found = []
    for number, one in enumerate(_list(data, member, 0, MOST_ARGUMENTS)):
        where = f"{member}[{number}]"
        if isinstance(one, dict):
            kind, value = next(iter(one.items())) if len(one) == 1 else (None, None)
            if kind not in SCALARS:
                raise InvalidDeclaration(
                    f'{where}: a number has its type, as in {{"i32": "rows"}}; types are {listed(SCALARS)}; '
                    f"got {brief(one)}"
                )
            found.append(Argument("", kind, _expression(value, where)))
        else:
            found.append(Argument("", POINTER, _expression(one, where)))
    return tuple(found)
