"""Checks of arguments that several methods take."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, SupportsIndex

from warpcall.errors import InvalidInput

LONGEST_TIMEOUT_S = 1e6  # 11 days: poll() takes milliseconds as a 32-bit integer


def check_timeout(timeout_s: float | None) -> None:
    """Raise InvalidInput unless a call may have this time limit; None means the client's."""
    if timeout_s is not None and not 0 < timeout_s <= LONGEST_TIMEOUT_S:
        raise InvalidInput(
            f"timeout_s must be above 0 and at most {LONGEST_TIMEOUT_S:.0f}, got {timeout_s}",
            field="timeout_s",
        )


def check_header_values(headers: Mapping[str, str]) -> None:
    """Raise InvalidInput if a header has a value that HTTP cannot carry, such as a line end."""
    text = "".join(headers.values())
    if text.isascii() and text.isprintable():
        return
    for name, value in headers.items():
        if not (value.isascii() and value.isprintable()):
            raise InvalidInput(f"{name} must be printable ASCII, got {value!r:.60}", field=name)


def ints(field: str, first: int | Sequence[int], further: Sequence[int]) -> Sequence[int]:
    """Integers that were given one by one, as in torch, or as one sequence.

    Raises:
        InvalidInput: a sequence is followed by integers.
    """
    if isinstance(first, SupportsIndex):
        return first, *further
    if further:
        raise InvalidInput(
            f"{field} must be integers, or one sequence of them, got {first!r:.60} and "
            f"{', '.join(map(repr, further)):.60}",
            field=field,
        )
    return first


def split_arguments(
    name: str, arguments: Mapping[str, Any], is_array: Callable[[object], bool]
) -> tuple[dict[str, Any], dict[str, object]]:
    """Separate tensors from parameters: arrays are tensors, all other values are parameters."""
    tensors = {key: value for key, value in arguments.items() if is_array(value)}
    if not tensors:
        raise InvalidInput(
            f"{name} needs at least one numpy array or torch tensor, "
            f"got {', '.join(arguments) or 'none'}",
            field="inputs",
        )
    return tensors, {key: value for key, value in arguments.items() if key not in tensors}


def check_choice(field: str, value: object, choices: Sequence[str]) -> None:
    """Raise InvalidInput unless `value` is one of the choices, or None."""
    if value is not None and value not in choices:
        *others, last = choices
        raise InvalidInput(
            f"{field} must be {', '.join(others)} or {last}, got {value!r:.60}", field=field
        )
