"""Parses the arguments of `warpcall bench` into the sweep of a benchmark job."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from warpcall._cli.files import UsageError
from warpcall._cli.op_args import option, parse_arguments, size_option
from warpcall._jobs.names import is_problem
from warpcall.dtypes import DTYPES, ITEMSIZE, dtype_code

OURS = "warpcall"
TORCH = "torch"
EXAMPLE_SHAPES = "4096x4096,8192x8192"


def sweep_of(
    declaration: Mapping[str, Any],
    arguments: Sequence[str],
    shape: str | None,
    dtype: str | None,
    sizes: Sequence[str],
) -> dict[str, Any]:
    """The sweep over these shapes and dtypes, of a problem over its sizes and dtypes. Options of
    the op may have several values.

    Raises:
        UsageError: an option is wrong; the message says what is allowed and what came.
    """
    sweep: dict[str, Any] = {}
    if not is_problem(name := declaration["name"]):
        sweep["shapes"] = shapes_of(shape)
    elif shape is not None:
        known = " ".join(map(size_option, declaration["sizes"])) or "no sizes"
        raise UsageError(f"--shape is for ops of the server, {name} has {known}")
    if dtype is not None or not is_problem(name):
        sweep["dtypes"] = dtypes_of(dtype)
    params = _params(declaration, arguments)
    if params:
        sweep["params"] = params
    if sizes:
        sweep["sizes"] = sizes_of(sizes)
    return sweep


def shapes_of(text: str | None) -> list[list[int]]:
    """Parse shapes such as 4096x4096,100."""
    given = "nothing" if text is None else repr(text)
    wrong = UsageError(f"--shape must be shapes such as {EXAMPLE_SHAPES}, got {given}")
    shapes = [part.split("x") for part in (text or "").split(",")]
    if not all(size.isascii() and size.isdigit() and len(size) < 19 for s in shapes for size in s):
        raise wrong
    return [[int(size) for size in shape] for shape in shapes]


def dtypes_of(text: str | None) -> list[str]:
    """Parse dtypes such as bf16,float32 into the wire's codes."""
    codes = []
    for name in (text or "").split(","):
        code = str(dtype_code(name))
        if code not in ITEMSIZE:
            given = "nothing" if text is None else repr(name)
            names = ", ".join(dtype.name for dtype in DTYPES)
            raise UsageError(f"--dtype must be of {names}, got {given}")
        codes.append(code)
    return codes


def implementations_of(op: str, text: str | None, mine: Sequence[str]) -> list[str]:
    """The names of the implementations to time, the one that the others are compared with first.

    With uploads of one's own, that is the first name of --vs, and the uploads follow it. Otherwise
    it is ours, and for a problem, for which we have none, its reference.

    Args:
        op: name of the op.
        text: the value of --vs.
        mine: names of what --mine uploaded.
    """
    ours = TORCH if is_problem(op) else OURS
    given = ",".join(dict.fromkeys((ours, TORCH))) if text is None else text
    first, *others = given.split(",")
    if not mine:
        first, others = ours, [name for name in (first, *others) if name != ours]
    if not all((first, *others)) or len({*others}) < len(others):
        raise UsageError(
            f"--vs must be names such as torch,torch.compile,copy, each once, got {text!r}"
        )
    names = [first, *mine, *others]
    if len({*names}) < len(names):
        raise UsageError(
            f"--mine and --vs must name each implementation once, got {', '.join(names)}"
        )
    return names


def sizes_of(given: Sequence[str]) -> dict[str, list[int | str]]:
    """Parse sizes such as taps=3,7 or rows=4096,columns=1000,1024."""
    sizes: dict[str, list[int | str]] = {}
    for argument in given:
        wrong = UsageError(
            "--size must be such as taps=3,7 or rows=4096,columns=1000,1024, each name once, "
            f"got {argument!r}"
        )
        values: list[int | str] | None = None  # of the name that came last
        for part in argument.split(","):
            name, equals, value = part.partition("=")
            if equals:
                if not name or name in sizes:
                    raise wrong
                values = sizes[name] = []
            text = value if equals else part
            if values is None or not text:
                raise wrong
            values.append(int(text) if text.isascii() and text.isdigit() else text)
    return sizes


def _params(declaration: Mapping[str, Any], arguments: Sequence[str]) -> dict[str, list[Any]]:
    """Parse the op's options. An option that is given several times adds a case for each value."""
    groups = _groups(arguments)
    _check_sizes(declaration, groups)
    values: dict[str, list[Any]] = {}
    required = [p for p in declaration["params"] if p["required"]]
    optional = {**declaration, "params": [{**p, "required": False} for p in declaration["params"]]}
    for group in groups:
        files, params = parse_arguments(optional, group)
        if files:
            raise UsageError(f"bench takes one op, then options, got {files[0]!r} as well")
        for name, value in params.items():
            if value not in values.setdefault(name, []):
                values[name].append(value)
    for p in required:
        if p["name"] not in values:
            raise UsageError(f"{declaration['name']} needs {option(p)}")
    return values


def _check_sizes(declaration: Mapping[str, Any], groups: Sequence[Sequence[str]]) -> None:
    """Raise UsageError if a size is given as an option of the op, such as --taps 7."""
    sizes = {size["name"] for size in declaration.get("sizes", [])}
    sizes -= {p["name"] for p in declaration["params"]}
    for flag in (group[0].partition("=")[0] for group in groups):
        name = flag.removeprefix("--").replace("-", "_")
        if flag.startswith("--") and name in sizes:
            raise UsageError(f"{name} is a size of {declaration['name']}: --size {name}=...")


def _groups(arguments: Sequence[str]) -> list[list[str]]:
    """Split the arguments into a group for each option: `parse_arguments` takes each name once."""
    groups: list[list[str]] = []
    for argument in arguments:
        if argument.startswith("--") or not groups:
            groups.append([argument])
        else:
            groups[-1].append(argument)
    return groups
