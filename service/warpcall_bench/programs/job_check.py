"""Checks the cases of a job before it is queued, and compares the results of two jobs."""

from __future__ import annotations

import base64
import functools
import math
import os
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from warpcall_bench.programs.case_check import check_cases
from warpcall_bench.runs.messages import Checked
from warpcall_bench.runs.stored_results import result_of
from warpcall_kernels import measuring
from warpcall_kernels.measuring import PRECISIONS

LIMIT = "copy"
OWN_REPEATS = 5  # with fewer of an implementation in a case, those of all cases say more

Floats = NDArray[np.float64]


def check_job(request: Mapping[str, Any], device: str) -> Checked:
    """Check the cases of a submission, or raise InvalidInput, which names the field.

    Those of a job on a problem are checked elsewhere, see `problem_check`. Its `op` is None here, and
    the reply has no cases.
    """
    memory_bytes = _memory_bytes(device)
    if device == "cpu":
        memory_bytes = min(memory_bytes, request["host_bytes"])
    return {
        "cases": []
        if request["op"] is None
        else check_cases(
            request["op"], {**request, "small": device == "cpu"}, device, memory_bytes
        ),
        "implementation_s": PRECISIONS[request["precision"]].seconds,
        "environment": measuring.environment_class(_fingerprint(device)),
        "kernels_sha256": measuring.kernels_sha256(),  # of what the next job will import
        "memory_bytes": memory_bytes,
        "sources": {},
    }


def compare_jobs(request: Mapping[str, Any], device: str) -> dict[str, Any]:
    """Compare cases of two jobs.

    Args:
        device: of the worker, which is not used.
        request: `cases`, each with its two results `a` and `b` as they are stored, None for a job
            that has not measured it, and with the `repeated` measurements of each implementation:
            a list with a `Spread` for each environment of the two jobs. `repeated` beside the cases
            has those of all implementations and cases, for what was hardly ever repeated itself.

    Returns:
        For each case a row for each implementation that both jobs measured, and the names of those
        that only one measured.
    """
    everywhere = _margin(request["repeated"])
    cases = []
    for given in request["cases"]:
        a, b = _Series(given["a"]), _Series(given["b"])
        rows = []
        for name in a.samples:
            if name in b.samples:
                known = given["repeated"].get(name, [])
                often = all(spread["repeats"] >= OWN_REPEATS for spread in known)
                own = name == LIMIT or (known and often)
                margin = _margin(known) if own else everywhere
                rows.append({"implementation": name, **_compared(name, a, b, margin)})
        cases.append(
            {
                "rows": rows,
                "only_a": [name for name in a.samples if name not in b.samples],
                "only_b": [name for name in b.samples if name not in a.samples],
            }
        )
    return {"cases": cases}


class _Margin(NamedTuple):
    """A margin of log ratios, None if it is not known, and the number of repeats behind it."""

    value: float | None
    repeats: int


def _margin(spreads: Sequence[Mapping[str, Any]]) -> _Margin:
    """The margin for runs in several environments: the widest of them."""
    found = [measuring.between_runs(one["groups"], one["repeats"]) for one in spreads]
    values = [value for value in found if value is not None]
    repeats = min((one["repeats"] for one in spreads), default=0)
    return _Margin(max(values) if values and len(values) == len(found) else None, repeats)


class _Series:
    """Samples in us of a stored result: NaN in rounds without a valid sample.

    Attributes:
        samples: by implementation.
        verified: implementations of which only the compiled kernels were timed.
        limit: of the copy; None if it could not be measured.
    """

    def __init__(self, stored: str | None) -> None:
        self.samples: dict[str, Floats] = {}
        self.verified: set[str] = set()
        self.limit: Floats | None = None
        if stored is None:
            return
        result = result_of(base64.b64decode(stored))
        masked = [mask["round"] for mask in result["masked"]]
        for measured in result["implementations"]:
            samples = _valid(measured, masked)
            if samples is not None:  # those of a race end where it left
                missing = max(0, result["rounds"] - len(samples))
                samples = np.pad(samples, (0, missing), constant_values=np.nan)
            if samples is not None:
                self.samples[measured["name"]] = samples
                if measured.get("verified"):
                    self.verified.add(measured["name"])
        if result["limit"] is not None:
            self.limit = _valid(result["limit"], masked)


def _valid(measured: Mapping[str, Any], masked: Sequence[int]) -> Floats | None:
    if measured["status"] != "ok":
        return None
    samples = np.array(measured["samples_us"], np.float64)  # None becomes NaN
    samples[[number for number in masked if number < len(samples)]] = np.nan
    samples[samples <= 0] = np.nan  # older servers stored what no clock measures
    return None if np.isnan(samples).all() else samples


def _compared(name: str, a: _Series, b: _Series, margin: _Margin) -> dict[str, Any]:
    limits = None
    if name != LIMIT and a.limit is not None and b.limit is not None:
        limits = a.limit, b.limit
    if limits is None and name != LIMIT:
        margin = _Margin(None, 0)  # what is known of the spread is of times relative to the copy
    least = max(measuring.MARGIN, margin.value or 0.0)
    found = measuring.compare_runs(a.samples[name], b.samples[name], limits=limits, margin=least)
    return {
        "a_us": measuring.median_of_run(a.samples[name]),
        "b_us": measuring.median_of_run(b.samples[name]),
        "ratio": found.ratio,
        "ratio_low": found.low if found.low > 0 else None,
        "ratio_high": found.high if math.isfinite(found.high) else None,
        "verdict": "inconclusive" if margin.value is None else found.verdict,
        "relative_to_copy": limits is not None,
        "margin": None if margin.value is None else least,
        "repeats": margin.repeats,
        "verified": name in a.verified and name in b.verified,
    }


@functools.cache
def _fingerprint(device: str) -> dict[str, Any]:
    return measuring.fingerprint(device)


def _memory_bytes(device: str) -> int:
    if device == "cpu":
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return int(torch.cuda.get_device_properties(device).total_memory)
