"""Checks of arguments that several methods take."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from warpcall.dtypes import dtype_code
from warpcall.errors import InvalidInput
from warpcall.jobs import PRECISIONS, PRIORITIES

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


def job_request(op: str, request: Mapping[str, Any]) -> dict[str, Any]:
    """The body of a submission: the fields that are given, with the codes of dtypes.

    Raises:
        InvalidInput: the precision or the priority is none of the choices.
    """
    check_choice("precision", request.get("precision"), PRECISIONS)
    check_choice("priority", request.get("priority"), PRIORITIES)
    wanted = {"op": op, **{name: value for name, value in request.items() if value is not None}}
    if isinstance(sweep := wanted.get("sweep"), Mapping) and _is_list(sweep.get("dtypes")):
        wanted["sweep"] = {**sweep, "dtypes": list(map(dtype_code, sweep["dtypes"]))}
    if _is_list(wanted.get("cases")):
        wanted["cases"] = list(map(_with_codes, wanted["cases"]))
    return wanted


def _with_codes(case: Any) -> Any:
    if not isinstance(case, Mapping):
        return case
    case = {**case}
    if "dtype" in case:
        case["dtype"] = dtype_code(case["dtype"])
    if isinstance(inputs := case.get("inputs"), Mapping):
        case["inputs"] = {name: _with_codes(given) for name, given in inputs.items()}
    return case


def _is_list(value: object) -> bool:
    return isinstance(value, Sequence) and not isinstance(value, str | bytes)
