"""Checks the cases of a job: each is a call that the op takes, and fits into memory."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from warpcall.errors import InvalidInput
from warpcall_bench.runs.messages import CheckedCase
from warpcall_kernels import InvalidInput as RefusedByOp
from warpcall_kernels import Op, measuring, ops
from warpcall_kernels.op.errors import brief, listed
from warpcall_kernels.op.odd_cases import odd_cases

MAX_KEY_CHARS = 4096  # of the name of a case


def check_cases(
    op: Op | str, request: Mapping[str, Any], device: str, memory_bytes: int
) -> list[CheckedCase]:
    """Check the cases of a submission.

    Args:
        op: an op, or the name of a shipped one.
        request: `max_cases`, whether they are `timed`, and either `cases` or a `sweep`, which is
            counted before it is made. Without both, the op's odd cases are taken; `small` says
            whether only small ones.
        device: for messages.
        memory_bytes: the most that a case may need.

    Raises:
        InvalidInput: the error names the field, such as "cases.0.inputs.x.shape".
    """
    if "sweep" in request:
        number = measuring.count(op, request["sweep"])
        named: Iterable[tuple[str, Any]] = (
            ("sweep", spec) for spec in measuring.expand(op, request["sweep"])
        )
        field = "sweep"
    elif "cases" not in request:
        return _odd_cases(op, request, device, memory_bytes)
    else:
        number = len(request["cases"])
        named = ((f"cases.{i}", spec) for i, spec in enumerate(request["cases"]))
        field = "cases"
    if number > request["max_cases"]:
        raise InvalidInput(
            f"{field} must be at most {request['max_cases']} cases, got {number}", field=field
        )
    return _checked(op, named, device, memory_bytes, timed=request.get("timed", True))


def _odd_cases(
    op: Op | str, request: Mapping[str, Any], device: str, memory_bytes: int
) -> list[CheckedCase]:
    """The op's odd cases, without those that need too much memory."""
    if not isinstance(op, Op):
        if op not in ops():
            raise InvalidInput(f"op must be one of {listed(ops())}, got {brief(op)}", field="op")
        op = ops()[op]
    found = {}
    for case in odd_cases(op, small=request["small"]):
        made = measuring.JobCase(op, case.inputs, op.check_params(case.params))
        if made.device_bytes <= memory_bytes and len(made.key) <= MAX_KEY_CHARS:
            found[made.key] = made.spec
    if not found:
        raise InvalidInput(
            f"cases: {op.name} has no odd cases that fit into {memory_bytes} bytes", field="cases"
        )
    named = (
        (f"cases.{i}", spec) for i, spec in enumerate([*found.values()][: request["max_cases"]])
    )
    return _checked(op, named, device, memory_bytes, timed=False)


def _checked(
    op: Op | str,
    named: Iterable[tuple[str, Any]],
    device: str,
    memory_bytes: int,
    *,
    timed: bool,
) -> list[CheckedCase]:
    cases: dict[str, CheckedCase] = {}
    for field, spec in named:
        try:
            case = measuring.make_case(op, spec, timed=timed)
        except RefusedByOp as error:
            name = error.argument if error.argument == "op" else f"{field}.{error.argument}"
            raise InvalidInput(f"{field}: {error}", field=name) from None
        if len(case.key) > MAX_KEY_CHARS:
            raise InvalidInput(
                f"{field}: the name of a case must have at most {MAX_KEY_CHARS} characters, that of "
                f"this one has {len(case.key)}: {case.key[:60]}...",
                field=field,
            )
        if case.device_bytes > memory_bytes:
            raise InvalidInput(
                f"{field}: {case.key} needs up to {case.device_bytes} bytes, more than the "
                f"{memory_bytes} that a job may have on {device}",
                field=field,
            )
        if case.key in cases:
            raise InvalidInput(f"{field}: {case.key} is there twice", field=field)
        cases[case.key] = {
            "spec": case.spec,
            "key": case.key,
            "device_bytes": case.device_bytes,
        }
    return list(cases.values())
