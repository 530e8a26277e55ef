"""Checks the cases of a job before it is queued, and compares the results of two jobs."""

from __future__ import annotations

import base64
import functools
import math
import os
import zlib
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import pydantic_core
import torch
from numpy.typing import NDArray

from warpcall.errors import InvalidInput
from warpcall_kernels import InvalidInput as RefusedByOp
from warpcall_kernels import measuring
from warpcall_kernels.measuring import PRECISIONS
from warpcall_service.runs.messages import Checked, CheckedCase

Floats = NDArray[np.float64]


def check_job(request: Mapping[str, Any], device: str) -> Checked:
    """Check the cases of a submission, or raise InvalidInput, which names the field."""
    op = request["op"]
    if "sweep" in request:
        number = measuring.count(op, request["sweep"])
        named: Iterable[tuple[str, Any]] = (
            ("sweep", spec) for spec in measuring.expand(op, request["sweep"])
        )
        field = "sweep"
    else:
        number = len(request["cases"])
        named = ((f"cases.{i}", spec) for i, spec in enumerate(request["cases"]))
        field = "cases"
    if number > request["max_cases"]:
        raise InvalidInput(
            f"{field} must be at most {request['max_cases']} cases, got {number}", field=field
        )
    memory_bytes = _memory_bytes(device)
    if device == "cpu":
        memory_bytes = min(memory_bytes, request["host_bytes"])
    return {
        "cases": _checked(op, named, device, memory_bytes),
        "implementation_s": PRECISIONS[request["precision"]].seconds,
        "environment": measuring.environment_class(_fingerprint(device)),
        "kernels_sha256": measuring.kernels_sha256(),  # of what the next job will import
        "sources": {},
    }


def compare_jobs(request: Sequence[Mapping[str, str | None]]) -> dict[str, Any]:
    """Compare cases of two jobs; each is given by its two results, as they are stored.

    A result is None if the job has not measured the case. The reply has, for each case, a row for
    each implementation that both jobs measured, and the names of those that only one measured.
    """
    cases = []
    for given in request:
        a, b = _series(given["a"]), _series(given["b"])
        cases.append(
            {
                "rows": [{"implementation": n, **_compared(a[n], b[n])} for n in a if n in b],
                "only_a": [name for name in a if name not in b],
                "only_b": [name for name in b if name not in a],
            }
        )
    return {"cases": cases}


def _series(stored: str | None) -> dict[str, Floats]:
    """Samples in us by implementation; NaN in rounds without a valid sample."""
    if stored is None:
        return {}
    result = pydantic_core.from_json(zlib.decompress(base64.b64decode(stored)))
    masked = [mask["round"] for mask in result["masked"]]
    found = {}
    for measured in result["implementations"]:
        if measured["status"] == "ok":
            samples = np.array(measured["samples_us"], np.float64)  # None becomes NaN
            samples[[number for number in masked if number < len(samples)]] = np.nan
            if not np.isnan(samples).all():
                found[measured["name"]] = samples
    return found


def _compared(a: Floats, b: Floats) -> dict[str, Any]:
    found = measuring.compare_runs(a, b)
    return {
        "a_us": float(np.nanmedian(a)),
        "b_us": float(np.nanmedian(b)),
        "ratio": found.ratio,
        "ratio_low": found.low if found.low > 0 else None,
        "ratio_high": found.high if math.isfinite(found.high) else None,
        "verdict": found.verdict,
        "relative_to_copy": False,
        "margin": None,
        "repeats": 0,
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
