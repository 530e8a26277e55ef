"""Two jobs side by side: what both measured, by their samples."""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any

from sqlalchemy.orm import Session

from warpcall_service.callers import Caller
from warpcall_service.jobs import records, results
from warpcall_service.jobs.models import ComparedRow, Comparison
from warpcall_service.schema import Job

Samples = list[float | None]
Ask = Callable[[Samples, Samples], Awaitable[dict[str, Any]]]


@dataclass(slots=True)
class Pair:
    """What is compared: samples by case and implementation, of both jobs, and what else differs."""

    a: str
    b: str
    same_environment: bool
    differences: dict[str, list[Any]]
    samples_a: dict[tuple[str, str], Samples] = field(default_factory=dict)
    samples_b: dict[tuple[str, str], Samples] = field(default_factory=dict)


def pair(session: Session, caller: Caller, first_id: str, second_id: str) -> Pair:
    """The samples of two jobs of the caller."""
    first = records.find(session, caller, first_id)
    second = records.find(session, caller, second_id)
    facts = [json.loads(job.fingerprint or "{}") for job in (first, second)]
    return Pair(
        a=first.id,
        b=second.id,
        same_environment=first.environment is not None and first.environment == second.environment,
        differences=results.differences(*facts),
        samples_a=_samples(session, first),
        samples_b=_samples(session, second),
    )


async def compared(given: Pair, ask: Ask) -> Comparison:
    """Compare what both have; `ask` does it for one series of each."""
    rows = []
    for key in [key for key in given.samples_a if key in given.samples_b]:
        case, implementation = key
        found = await ask(given.samples_a[key], given.samples_b[key])
        rows.append(ComparedRow(case=case, implementation=implementation, **found))
    return Comparison(
        a=given.a,
        b=given.b,
        same_environment=given.same_environment,
        differences=given.differences,
        rows=rows,
        only_a=[" by ".join(key) for key in given.samples_a if key not in given.samples_b],
        only_b=[" by ".join(key) for key in given.samples_b if key not in given.samples_a],
    )


def _samples(session: Session, job: Job) -> dict[tuple[str, str], Samples]:
    found = {}
    for case, result in results.cases(session, job):
        masked = {mask["round"] for mask in result["masked"]}
        for told in result["implementations"]:
            if told["status"] == "ok":
                samples = [
                    None if number in masked else sample
                    for number, sample in enumerate(told["samples_us"])
                ]
                if any(sample is not None for sample in samples):
                    found[case.key, told["name"]] = samples
    return found
