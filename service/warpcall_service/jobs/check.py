"""What a lane says of a job before it is queued: its cases, checked, and what they need."""

from __future__ import annotations

import functools
import math
import os
import statistics
from collections.abc import Iterable, Mapping
from typing import Any

import torch

from warpcall.errors import InvalidInput
from warpcall_kernels import InvalidInput as RefusedByOp
from warpcall_kernels import measuring
from warpcall_kernels.measuring import PRECISIONS
from warpcall_service.jobs.messages import Checked, CheckedCase


def answer(question: Mapping[str, Any], device: str) -> Checked:
    """Check a submission, or raise InvalidInput, which names the field."""
    for module in question["modules"]:
        measuring.load(module)
    op, asked = question["op"], question["implementations"]
    known = measuring.implementations(op)
    for name in asked:
        if name not in known:
            raise InvalidInput(
                f"implementations must be of {', '.join(known)}, got {name!r:.60}",
                field="implementations",
            )
    if "sweep" in question:
        number = measuring.count(op, question["sweep"])
        named: Iterable[tuple[str, Any]] = (
            ("sweep", spec) for spec in measuring.expand(op, question["sweep"])
        )
        field = "sweep"
    else:
        number = len(question["cases"])
        named = ((f"cases.{i}", spec) for i, spec in enumerate(question["cases"]))
        field = "cases"
    if number > question["max_cases"]:
        raise InvalidInput(
            f"{field} must be at most {question['max_cases']} cases, got {number}", field=field
        )
    memory_bytes = _memory_bytes(device)
    if device == "cpu":
        memory_bytes = min(memory_bytes, question["host_bytes"])
    return {
        "cases": _checked(op, named, device, memory_bytes),
        "implementation_s": PRECISIONS[question["precision"]].seconds,
        "environment": measuring.environment_class(_fingerprint(device)),
        "kernels_sha256": _fingerprint(device)["kernels_sha256"],
    }


def compare(question: Mapping[str, Any]) -> dict[str, Any]:
    """Compare two series of samples in us, by round, that were measured apart."""
    a, b = ([math.nan if us is None else us for us in question[name]] for name in ("a", "b"))
    found = measuring.compare_runs(a, b)
    return {
        "a_us": statistics.median(us for us in a if not math.isnan(us)),
        "b_us": statistics.median(us for us in b if not math.isnan(us)),
        "ratio": found.ratio,
        "ratio_low": found.low if found.low > 0 else None,
        "ratio_high": found.high if math.isfinite(found.high) else None,
        "verdict": found.verdict,
    }


@functools.cache
def _fingerprint(device: str) -> dict[str, Any]:
    return measuring.fingerprint(device)


def _checked(
    op: str, named: Iterable[tuple[str, Any]], device: str, memory_bytes: int
) -> list[CheckedCase]:
    cases: dict[str, CheckedCase] = {}
    for field, spec in named:
        try:
            case = measuring.make_case(op, spec)
        except RefusedByOp as error:
            name = error.argument if error.argument == "op" else f"{field}.{error.argument}"
            raise InvalidInput(f"{field}: {error}", field=name) from None
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


def _memory_bytes(device: str) -> int:
    if device == "cpu":
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return int(torch.cuda.get_device_properties(device).total_memory)
