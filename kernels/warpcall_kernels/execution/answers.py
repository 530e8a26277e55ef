"""Checks what a process with uploaded code answers, before anything uses it."""

from __future__ import annotations

from collections.abc import Container, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from warpcall_kernels.execution.failures import printable
from warpcall_kernels.execution.inputs import BufferLayout
from warpcall_kernels.execution.windows import Address

MOST_SETS = 64  # of inputs
MOST_RESULTS = 1024  # calls of which a process keeps the outputs
MOST_US = 1e10
LEAST_US = 1e-3  # of a sample
MOST_CHARS = 64  # of a method or a tag
MOST_TAGS = 4


class Unsound(Exception):
    """An honest process does not answer so."""


@dataclass
class Facts:
    """What a process says about its timed calls.

    Attributes:
        method, rough_us, host_us, repeats, tags: as for `Timed`.
        sets: number of its sets of inputs.
        tight_results: where the outputs of calls without pauses lie, if they stay there.
    """

    method: str
    rough_us: float
    host_us: float
    repeats: int
    sets: int
    tags: tuple[str, ...]
    tight_results: Sequence[Any] = ()


def facts(answer: Mapping[str, Any]) -> Facts:
    """What an answer says about timed calls.

    Raises:
        Unsound: it says something else.
    """
    tags = answer.get("tags")
    texts = [t for t in tags if isinstance(t, str)] if isinstance(tags, list) else []
    if not all(_is_count(answer.get(name), MOST_SETS) for name in ("repeats", "sets")):
        raise Unsound
    return Facts(
        method=printable(str(answer.get("method"))[:MOST_CHARS]),
        rough_us=_number(answer.get("rough_us")),
        host_us=_number(answer.get("host_us")),
        repeats=answer["repeats"],
        sets=answer["sets"],
        tags=tuple(printable(text[:MOST_CHARS]) for text in texts[:MOST_TAGS]),
        tight_results=answer.get("results", ()),
    )


def times(found: Any, count: int) -> list[float]:
    """Times in us of so many samples.

    Raises:
        Unsound: they are something else.
    """
    if not isinstance(found, list) or len(found) != count:
        raise Unsound
    if not all(_number(time_us) >= LEAST_US for time_us in found):
        raise Unsound
    return [float(time_us) for time_us in found]


def sets(found: Any, layouts: Mapping[str, BufferLayout]) -> list[dict[str, Address]]:
    """Where sets of inputs lie.

    Raises:
        Unsound: that is not what it says.
    """
    if not isinstance(found, list) or len(found) > MOST_SETS:
        raise Unsound
    for one in found:
        if not isinstance(one, dict) or one.keys() != layouts.keys():
            raise Unsound
        addresses([*one.values()])
    return found


def results(found: Any, keys: Container[int]) -> list[tuple[int, Any]]:
    """Which calls there were, and where the outputs of each lie; at least one.

    Raises:
        Unsound: that is not what it says, or there was no such call.
    """
    if not isinstance(found, list | tuple) or not 0 < len(found) <= MOST_RESULTS:
        raise Unsound
    for entry in found:
        if not isinstance(entry, list) or len(entry) != 2 or type(entry[0]) is not int:
            raise Unsound
        if entry[0] not in keys:
            raise Unsound
    return [(key, where) for key, where in found]


def addresses(found: Any) -> list[Address]:
    """Where tensors lie.

    Raises:
        Unsound: that is not what it says.
    """
    if not isinstance(found, list):
        raise Unsound
    for one in found:
        if not isinstance(one, dict) or not one.keys() <= {"address", "handle"}:
            raise Unsound
        if type(one.get("address")) is not int or not 0 <= one["address"] < 1 << 63:
            raise Unsound
        handle = one.get("handle", "")
        if not isinstance(handle, str) or not handle.isascii():
            raise Unsound
    return found


def place(address: Address) -> int:
    """A number for an address, so that different allocations are far from each other."""
    allocation = int(address.get("handle", "").encode().hex() or "0", 16)
    return int(address["address"]) + (allocation << 64)


def _is_count(value: Any, most: int) -> bool:
    return type(value) is int and 0 < value <= most


def _number(value: Any) -> float:
    if type(value) not in (int, float) or not 0 <= value < MOST_US:
        raise Unsound
    return float(value)
