"""Checks what the author of a problem declares, before it is used. All errors are InvalidInput."""

from __future__ import annotations

import dataclasses
import inspect
import keyword
import math
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, TypeVar, get_args

import torch
from torch import Tensor

from warpcall_kernels.op.cases import MAX_SIZE, Sample
from warpcall_kernels.op.declaration import Meta, Param, ParamKind, Size, dtype_name
from warpcall_kernels.op.errors import InvalidInput, brief, listed

MAX_ENTRIES = 32  # of each list: inputs, outputs, sizes, choices, params, dtypes
MAX_CHARS = 200  # of a text
NAME = re.compile(r"[A-Za-z][A-Za-z0-9_]{0,63}")  # of an input, a size or a parameter

# Relative to the size of the results of a row. How many terms a result is the sum of is unknown.
# Dtypes of at most two bytes have four roundings to the dtype, because sums in fp32 add little to
# that, and fp8 two. Of fp32 there is room for sums of some 100,000 terms of random signs, 4 *
# sqrt(1e5) roundings of fp32, and of fp64 for those of any length. e8m0 rounds by at most a half.
DEFAULT_TOLERANCE: Mapping[torch.dtype, float] = {
    torch.float64: 1e-10,
    torch.float32: 1e-4,
    torch.float16: 2e-3,
    torch.bfloat16: 1.6e-2,
    torch.complex128: 1e-10,
    torch.complex64: 1e-4,
    torch.float8_e4m3fn: 0.125,
    torch.float8_e4m3fnuz: 0.125,
    torch.float8_e5m2: 0.25,
    torch.float8_e5m2fnuz: 0.25,
    torch.float8_e8m0fnu: 0.5,
    **dict.fromkeys(
        (
            *(torch.int64, torch.int32, torch.int16, torch.int8),
            *(torch.uint64, torch.uint32, torch.uint16, torch.uint8, torch.bool),
        ),
        0.0,
    ),
}

T = TypeVar("T")


def function(field: str, value: Any) -> Callable[..., Any]:
    """A function of the author's."""
    if not callable(value) or isinstance(value, type):
        raise InvalidInput(field, f"{field} must be a function, got {brief(value)}")
    return value  # type: ignore[no-any-return]


def line(field: str, value: object) -> str:
    """A text of one line."""
    if isinstance(value, str) and len(value) <= MAX_CHARS and value.isprintable():
        return value
    raise InvalidInput(
        field, f"{field} must be one line of at most {MAX_CHARS} characters, got {brief(value)}"
    )


def entries(field: str, value: object, kind: type[T]) -> tuple[T, ...]:
    """A list of entries of one type."""
    if not isinstance(value, list | tuple) or len(value) > MAX_ENTRIES:
        comma = " (a tuple of one is written (one,))" if isinstance(value, kind) else ""
        raise InvalidInput(
            field, f"{field} must be a tuple of at most {MAX_ENTRIES}{comma}, got {brief(value)}"
        )
    for one in value:
        if not isinstance(one, kind):
            raise InvalidInput(
                field, f"{field} must be a tuple of {kind.__name__}, got {brief(one)} in it"
            )
    return tuple(value)


def names(field: str, given: Iterable[object]) -> None:
    """Names of one kind, such as those of all sizes: different, and usable as arguments."""
    seen = set()
    for name in given:
        if not isinstance(name, str) or not NAME.fullmatch(name) or keyword.iskeyword(name):
            raise InvalidInput(
                field,
                f"{field} must have names of letters, digits and _, at most 64 of them, that begin "
                f"with a letter and are no keywords of Python, got {brief(name)}",
            )
        if name in seen:
            raise InvalidInput(field, f"{field} must have different names, got {name} twice")
        seen.add(name)


def distinct(field: str, given: Sequence[str], others: Sequence[str]) -> None:
    """Names of two kinds, which are arguments of one function or options of one command."""
    for name in given:
        if name in others:
            raise InvalidInput(field, f"{field} must not have the name {name}, another has it")


def sizes(value: object) -> tuple[Size, ...]:
    """The sizes of a problem, with checked defaults."""
    found = entries("sizes", value, Size)
    names("sizes", [size.name for size in found])
    for size in found:
        field = f"sizes.{size.name}"
        if size.name == "dtype":
            raise InvalidInput("sizes", "sizes must not have the name dtype: `dtypes` says those")
        line(f"{field}.doc", size.doc)
        choices = entries(f"{field}.choices", size.choices, str)
        for choice in choices:
            line(f"{field}.choices", choice)
        if type(size.passed) is not bool or (size.passed and choices):
            raise InvalidInput(
                field, f"{field}.passed must be a boolean, and false for choices between words"
            )
        allowed: tuple[object, ...] = choices
        if not choices:
            least = size.minimum
            if type(least) is not int or not 0 <= least <= MAX_SIZE:
                raise InvalidInput(
                    field, f"{field}.minimum must be an integer of at least 0, got {brief(least)}"
                )
            if type(size.default) is int and least <= size.default <= MAX_SIZE:
                continue
            allowed = (f"an integer between {least} and {MAX_SIZE}",)
        if size.default not in choices:
            raise InvalidInput(
                field,
                f"{field}.default must be {' or '.join(map(str, allowed))}, got "
                f"{brief(size.default)}",
            )
    return found


def params(value: object) -> tuple[Param, ...]:
    """The parameters of a problem, with checked defaults."""
    found = entries("params", value, Param)
    names("params", [param.name for param in found])
    for param in found:
        field = f"params.{param.name}"
        line(f"{field}.doc", param.doc)
        if param.kind not in get_args(ParamKind):
            raise InvalidInput(
                field,
                f"{field}.kind must be one of {listed(get_args(ParamKind))}, got "
                f"{brief(param.kind)}",
            )
        for name, bound in (("minimum", param.minimum), ("maximum", param.maximum)):
            if bound is not None and type(bound) is not int:
                raise InvalidInput(field, f"{field}.{name} must be an integer, got {brief(bound)}")
        if param.required:
            raise InvalidInput(
                field, f"{field} must not be required, so that it can be left out: give a default"
            )
        try:
            param.check(param.default)
        except InvalidInput as error:
            raise InvalidInput(field, f"{field}.default: {error}") from None
    return found


def dtypes(value: object) -> tuple[torch.dtype, ...]:
    """The dtypes of a problem."""
    found = entries("dtypes", value, torch.dtype)
    if not found or len(set(found)) != len(found):
        raise InvalidInput(
            "dtypes", f"dtypes must be different dtypes, at least one, got {brief(value)}"
        )
    for dtype in found:
        _known("dtypes", dtype)
    return found


def tolerance(value: object) -> dict[torch.dtype, float] | None:
    """The tolerances of a problem, with the default of each dtype that has none."""
    if value is None:
        return None
    if not isinstance(value, Mapping):
        raise InvalidInput(
            "tolerance", f"tolerance must be None or a dict of numbers by dtype, got {brief(value)}"
        )
    for dtype, error in value.items():
        if not isinstance(dtype, torch.dtype):
            raise InvalidInput("tolerance", f"tolerance must be by dtype, got {brief(dtype)}")
        _known("tolerance", dtype)
        number = type(error) in (int, float)
        if not number or not 0 <= error < math.inf:
            raise InvalidInput(
                "tolerance",
                f"tolerance must be finite numbers of at least 0, got {brief(error)} for "
                f"{dtype_name(dtype)}",
            )
    return {**DEFAULT_TOLERANCE, **value}


def signature(
    field: str, function: Callable[..., Any], by_position: Sequence[str], by_name: Sequence[str]
) -> None:
    """A function that takes some arguments by position and others by name."""
    try:
        found = inspect.signature(function)
    except (TypeError, ValueError):  # such as of a function in C, which has none
        return
    try:
        found.bind(*by_position, **dict.fromkeys(by_name))
    except TypeError as error:
        wanted = [*by_position, *(f"{name}=..." for name in by_name)]
        raise InvalidInput(
            field,
            f"{field} must be callable as {field}({listed(wanted) if wanted else ''}), it takes "
            f"{str(found)[:MAX_CHARS]}: {error}",
        ) from None


def samples(found: Mapping[Any, Any]) -> dict[str, Sample]:
    """What the inputs of a problem return."""
    if len(found) > MAX_ENTRIES:
        raise InvalidInput(
            "inputs", f"inputs must return at most {MAX_ENTRIES} tensors, got {len(found)}"
        )
    names("inputs", found)
    for name, sample in found.items():
        field = f"inputs.{name}"
        if not isinstance(sample, Sample):
            raise InvalidInput(field, f"{field} must be a Sample, got {brief(sample)}")
        if not isinstance(sample.dtype, torch.dtype):
            raise InvalidInput(field, f"{field}.dtype must be a dtype, got {brief(sample.dtype)}")
        _known(field, sample.dtype)
        sample.check(field)
    return {name: dataclasses.replace(s, shape=tuple(s.shape)) for name, s in found.items()}


def outputs(result: object) -> dict[str, Meta]:
    """What the reference of a problem returns on the device "meta"."""
    many = isinstance(result, tuple)
    parts: tuple[object, ...] = result if isinstance(result, tuple) else (result,)
    if not 0 < len(parts) <= MAX_ENTRIES:
        raise InvalidInput(
            "reference", f"reference must return 1 to {MAX_ENTRIES} tensors, got {len(parts)}"
        )
    found = {}
    for number, part in enumerate(parts):
        name = f"out{number}" if many else "out"
        if not isinstance(part, Tensor):
            raise InvalidInput(
                "reference",
                f"reference must return a tensor or a tuple of tensors, got {brief(part)} as {name}",
            )
        if part.device.type != "meta":
            raise InvalidInput(
                "reference",
                f"reference must compute on the device of its inputs, {name} is on {part.device}: "
                "pass device=x.device to functions that make tensors",
            )
        _known("reference", part.dtype)
        found[name] = Meta(tuple(part.shape), part.dtype)
    return found


def _known(field: str, dtype: torch.dtype) -> None:
    if dtype not in DEFAULT_TOLERANCE:
        allowed = listed(map(dtype_name, DEFAULT_TOLERANCE))
        raise InvalidInput(field, f"{field} must have dtypes of {allowed}, got {dtype_name(dtype)}")
