"""Declares the launches of a verified kernel: the decorator `warpcall.launches`.

It needs neither torch nor Triton. The server reads the attribute `__warpcall_launches__` that it sets.
docs/verified-kernels.md describes the members.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any, TypeVar

MOST_LAUNCHES = 8
MOST_CONFIGURATIONS = 64
MOST_JSON_BYTES = 16 << 10  # of a declaration
ATTRIBUTE = "__warpcall_launches__"

Function = TypeVar("Function", bound=Callable[..., Any])
Expression = int | str
"""A number, or an expression over names, such as "cdiv(x.shape[0], 32)"."""


@dataclass(frozen=True, kw_only=True)
class Launch:
    """One launch of a kernel.

    Args:
        kernel: the kernel, a function with `@triton.jit`, or its name.
        grid: one to three expressions, the numbers of blocks (in Triton: programs) along each axis.
        arguments: of a Triton kernel a mapping from the names of its parameters to tensors,
            expressions, numbers, bools and None; of a CUDA C++ kernel a list in the order of its
            parameters, with the type of each number, such as `{"i32": "rows"}`.
        num_warps, num_stages, num_ctas, maxnreg: of a Triton kernel.
        block: of a CUDA C++ kernel: one to three expressions, the threads of a block.
        shared_bytes: of a CUDA C++ kernel: dynamic shared memory of a block.
        cluster: of a CUDA C++ kernel: blocks of a cluster along each axis.
        early: whether it may begin before the launch before it has ended.
        cooperative: whether all its blocks must be resident at the same time.
    """

    kernel: Any
    grid: Sequence[Expression]
    arguments: Mapping[str, Any] | Sequence[Any]
    num_warps: Expression | None = None
    num_stages: Expression | None = None
    num_ctas: Expression | None = None
    maxnreg: Expression | None = None
    block: Sequence[Expression] | None = None
    shared_bytes: Expression | None = None
    cluster: Sequence[Expression] | None = None
    early: bool = False
    cooperative: bool = False


def launches(
    *,
    launches: Iterable[Launch | Mapping[str, Any]],
    requires: Sequence[str] | None = None,
    sizes: Mapping[str, Expression] | None = None,
    scratch: Mapping[str, Mapping[str, Any]] | None = None,
    configurations: Iterable[Mapping[str, Any]] | None = None,
) -> Callable[[Function], Function]:
    """Declare what one call of an op's function launches, for `warpcall bench --verified`.

        @warpcall.launches(
            sizes={"rows": "x.shape[0]", "columns": "x.shape[1]"},
            launches=[warpcall.Launch(
                kernel=_transpose,
                grid=["cdiv(rows, 32)", "cdiv(columns, 32)"],
                arguments={"x_ptr": "x", "out_ptr": "out", "rows": "rows", "columns": "columns"},
                num_warps=4,
            )],
        )
        def permute(x, dims): ...

    A verified job then does not call the function. Most functions need no declaration, because their
    launches can be recorded.

    Args:
        launches: at most 8, in sequence.
        requires: conditions, such as "x.dtype == BF16"; a case that has not all of them is refused.
        sizes: names for expressions, in the order in which they are computed.
        scratch: memory for each call by name: `dtype`, `shape`, and `fill`, with which it is filled.
        configurations: at most 64, each with names for expressions and constants; the fastest one
            is chosen before anything is timed.

    Raises:
        TypeError: a member has another type than it may have.
        ValueError: there are too many launches or configurations, or the declaration is too long.
    """
    declared = _declaration(launches, requires, sizes, scratch, configurations)

    def decorate(function: Function) -> Function:
        setattr(function, ATTRIBUTE, declared)
        return function

    return decorate


def _declaration(
    launches: Any, requires: Any, sizes: Any, scratch: Any, configurations: Any
) -> dict[str, Any]:
    if isinstance(launches, Mapping | str) or not isinstance(launches, Iterable):
        raise TypeError(f"launches must be a list of Launch, got {_brief(launches)}")
    listed = [_launch(f"launches[{i}]", one) for i, one in enumerate(launches)]
    if not 1 <= len(listed) <= MOST_LAUNCHES:
        raise ValueError(f"launches must have 1 to {MOST_LAUNCHES} entries, got {len(listed)}")
    declared: dict[str, Any] = {}
    if requires is not None:
        if not isinstance(requires, list | tuple) or not all(isinstance(c, str) for c in requires):
            raise TypeError(f"requires must be a list of conditions, got {_brief(requires)}")
        declared["requires"] = [*requires]
    if sizes is not None:
        declared["sizes"] = {
            name: _expression(f"sizes[{name!r}]", value)
            for name, value in _mapping("sizes", sizes).items()
        }
    if scratch is not None:
        declared["scratch"] = {
            name: dict(_mapping(f"scratch[{name!r}]", value))
            for name, value in _mapping("scratch", scratch).items()
        }
    if configurations is not None:
        if isinstance(configurations, Mapping | str) or not isinstance(configurations, Iterable):
            raise TypeError(f"configurations must be a list, got {_brief(configurations)}")
        found = [dict(_mapping("configurations", one)) for one in configurations]
        if len(found) > MOST_CONFIGURATIONS:
            raise ValueError(
                f"configurations must have at most {MOST_CONFIGURATIONS} entries, got {len(found)}"
            )
        declared["configurations"] = found
    declared["launches"] = listed
    check_size(declared)
    return declared


def check_size(declared: Mapping[str, Any]) -> None:
    """Check that a declaration is JSON, and not too long.

    Raises:
        TypeError: a value in it is none that JSON has.
        ValueError: it has more than 16 KiB, or a number that JSON does not have.
    """
    nbytes = len(json.dumps(declared, allow_nan=False).encode())
    if nbytes > MOST_JSON_BYTES:
        raise ValueError(
            f"a declaration of launches must have at most {MOST_JSON_BYTES} bytes as JSON, "
            f"got {nbytes}"
        )


def _launch(where: str, given: Any) -> dict[str, Any]:
    if isinstance(given, Launch):
        given = {one.name: getattr(given, one.name) for one in fields(given)}
    known = [one.name for one in fields(Launch)]
    members = _mapping(where, given)
    for name in members:
        if name not in known:
            raise TypeError(f"{where} has no member {name!r}, it has {', '.join(known)}")
    for name in ("kernel", "grid", "arguments"):
        if members.get(name) is None:
            raise TypeError(f"{where} needs the member {name}")
    found: dict[str, Any] = {"kernel": _kernel(f"{where}.kernel", members["kernel"])}
    for name in ("grid", "block", "cluster"):
        if members.get(name) is not None:
            found[name] = _triple(f"{where}.{name}", members[name])
    found["arguments"] = _arguments(f"{where}.arguments", members["arguments"])
    for name in ("num_warps", "num_stages", "num_ctas", "maxnreg", "shared_bytes"):
        if members.get(name) is not None:
            found[name] = _expression(f"{where}.{name}", members[name])
    for name in ("early", "cooperative"):
        if members.get(name, False) is not False:
            if members[name] is not True:
                raise TypeError(
                    f"{where}.{name} must be True or False, got {_brief(members[name])}"
                )
            found[name] = True
    return found


def _kernel(where: str, given: Any) -> str:
    """The name of a kernel; autotuners and heuristics have the kernel as `fn`."""
    seen = given
    while not isinstance(seen, str) and not isinstance(getattr(seen, "__name__", None), str):
        seen = getattr(seen, "fn", None)
        if seen is None:
            raise TypeError(f"{where} must be a kernel or its name, got {_brief(given)}")
    return seen if isinstance(seen, str) else str(seen.__name__)


def _triple(where: str, given: Any) -> list[Expression]:
    if not isinstance(given, list | tuple) or not 1 <= len(given) <= 3:
        raise TypeError(f"{where} must be a list of 1 to 3 expressions, got {_brief(given)}")
    return [_expression(f"{where}[{i}]", one) for i, one in enumerate(given)]


def _arguments(where: str, given: Any) -> dict[str, Any] | list[Any]:
    if isinstance(given, Mapping):
        return {
            name: _plain(f"{where}[{name!r}]", value)
            for name, value in _mapping(where, given).items()
        }
    if not isinstance(given, list | tuple):
        raise TypeError(f"{where} must be a mapping by name, or a list, got {_brief(given)}")
    found: list[Any] = []
    for i, one in enumerate(given):
        at = f"{where}[{i}]"
        if isinstance(one, Mapping):
            if len(one) != 1:
                raise TypeError(f"{at} must be one type with its value, got {_brief(one)}")
            found.append({n: _plain(at, value) for n, value in _mapping(at, one).items()})
        else:
            found.append(_plain(at, one))
    return found


def _plain(where: str, given: Any) -> Any:
    if given is None or isinstance(given, bool | int | float | str):
        return given
    raise TypeError(
        f"{where} must be the name of a tensor, an expression or a number, got {_brief(given)}"
    )


def _expression(where: str, given: Any) -> Expression:
    if isinstance(given, int | str) and not isinstance(given, bool):
        return given
    raise TypeError(f"{where} must be an integer or an expression as text, got {_brief(given)}")


def _mapping(where: str, given: Any) -> Mapping[str, Any]:
    if isinstance(given, Mapping) and all(isinstance(name, str) for name in given):
        return given
    raise TypeError(f"{where} must be a mapping with names, got {_brief(given)}")


def _brief(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:57]}..."
