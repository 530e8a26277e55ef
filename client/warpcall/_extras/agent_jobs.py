"""The tools `race` and `profile` of `warpcall mcp`: each uploads sources and waits for one job.

As those of an evaluation, the sources are not kept: the job has them until it ends.
"""

from __future__ import annotations

import contextlib
from collections.abc import Mapping, Sequence
from typing import Any

from warpcall import AsyncClient
from warpcall._jobs import races
from warpcall.errors import InvalidInput, NotFound
from warpcall.implementations import UploadedImplementation
from warpcall.jobs import Precision
from warpcall.races import Race, RaceEntry

MOST_ENTRIES = 16  # of a race that are listed, those with a rank and those without one
MOST_ERROR = 200  # characters
MOST_PROFILE = 8000  # characters of a profile's text; Nsight Compute prints some 8 KB for a kernel
CUT = "\n(...)\n"
NEXT_RACE = {
    "winner": "Send the winner to evaluate with precision standard and fresh cases, if you need its "
    "ratio to the baseline.",
    "same": "Those with rank 1 take the same time within 1 %. Keep the simplest, and try another idea.",
    "undecided": "Race those with rank 1 again, with precision standard.",
    "none": "No candidate has times that are a basis for a verdict. Mend what `failed` says; "
    "`interpreted` and `plain torch` need a server with a GPU.",
}
NEXT_PROFILE = (
    "Look for what the text calls the limit: of memory, move fewer bytes; of latency, keep more loads "
    "in flight; then send the changed source to evaluate."
)
NO_TEXT = "The server made no text of this profile"


async def race(
    gpu: AsyncClient,
    op: str,
    cases: Sequence[Mapping[str, Any]],
    sources: Sequence[str],
    implementations: Sequence[str],
    *,
    verified: bool,
    precision: Precision,
    timeout_s: float,
) -> dict[str, Any]:
    """Race sources and stored implementations, and return the ranking."""
    entrants = [
        races.Entrant(f"{source}\n", f"source {number}", verified=verified)
        for number, source in enumerate(sources)
    ]
    submitted = await races.race(
        *(gpu._core, op, entrants),
        implementations=[*implementations],
        cases=[*cases],
        precision=precision,
    )
    for _, uploaded, _ in submitted.uploaded:
        await _forget(gpu, uploaded)
    numbers = {name: int(one.label.split()[1]) for one, _, name in reversed(submitted.uploaded)}
    return _ranking(await races.outcome(submitted, timeout_s), numbers)


def _ranking(found: Race, numbers: Mapping[str, int]) -> dict[str, Any]:
    """A race as a tool answers it. Sources have their numbers in place of names."""
    ranked = [one for one in found.entries if one.rank is not None]
    failed = [one for one in found.entries if one.rank is None]
    several = len(found.cases) > 1

    def named(name: str) -> int | str:
        return numbers.get(name, name)

    def who(name: str) -> dict[str, Any]:
        return {"source" if name in numbers else "implementation": named(name)}

    def row(one: RaceEntry) -> dict[str, Any]:
        fields = ("rank", "ratio", "ratio_low", "ratio_high", "median_us")
        best = {"best_in": one.best_in} if several else {}
        return {**who(one.implementation), **{name: getattr(one, name) for name in fields}, **best}

    refused = [
        {"source": int(label.split()[1]), "status": "refused", "error": text[:MOST_ERROR]}
        for label, text in found.refused.items()
    ]
    failures = [
        {**who(o.implementation), "status": o.status, "error": (o.error or "")[:MOST_ERROR]}
        for o in failed
    ]
    cases = [
        {"case": c.case, "outcome": c.outcome, "fastest": [*map(named, c.fastest)]}
        for c in found.cases
    ]
    return {
        "outcome": found.outcome,
        "winner": None if found.winner is None else who(found.winner),
        "ranking": [*map(row, ranked[:MOST_ENTRIES])],
        "slower_left_out": max(0, len(ranked) - MOST_ENTRIES) or None,
        "failed": [*failures, *refused][:MOST_ENTRIES],
        "cases": cases if several else [],
        "never_best": [*map(named, found.never_best)] if several else [],
        "device_s": found.device_s,
        "full_device_s": found.full_device_s,
        "job": found.job,
        "next": NEXT_RACE[found.outcome],
    }


async def profile(
    gpu: AsyncClient,
    op: str,
    case: Mapping[str, Any],
    source: str | None,
    function: str | None,
    implementation: str | None,
    options: Mapping[str, object] | None = None,
    *,
    timeout_s: float,
) -> dict[str, Any]:
    """Time one implementation in a case, and return what Nsight Compute says of its kernels.

    Args:
        options: the `profile_options` of the job.

    Raises:
        InvalidInput: there is not one of `source` and `implementation`, or the server cannot profile.
    """
    if (source is None) == (implementation is None):
        raise InvalidInput("give either source or implementation", field="source")
    uploaded = None
    name = implementation or ""
    if source is not None:
        uploaded = await gpu.implementations.add(op, f"{source}\n", function=function)
        name = f"{uploaded.name}@{uploaded.version}"
    try:
        job = await gpu.jobs.submit(
            op,
            implementations=[name],
            cases=[case],
            precision="quick",
            profile="ncu",
            profile_options=options,
        )
    finally:
        if uploaded is not None:
            await _forget(gpu, uploaded)
    results = await job.wait(timeout_s)
    row = next(one for one in results.measurements if one.implementation == name)
    known = {"job": job.id, "case": row.case, "status": row.status, "median_us": row.median_us}
    known |= {"share_of_limit": row.share_of_limit}
    if row.status != "ok":
        return {**known, "error": (row.error or "")[:MOST_ERROR], "next": "Send it to evaluate."}
    files = [one for one in await job.artefacts() if one.kind == "ncu-text"]
    file = next((one for one in files if one.implementation == name), None)
    if file is None or file.error:
        why = NO_TEXT if file is None else file.error
        return {**known, "error": why[:MOST_ERROR], "next": "Use explain in its place."}
    text = (await file.read()).decode(errors="replace")
    if len(text) > MOST_PROFILE:
        half = MOST_PROFILE // 2
        text = text[:half] + CUT + text[-half:]
    return {**known, "text": text, "next": NEXT_PROFILE}


async def _forget(gpu: AsyncClient, uploaded: UploadedImplementation) -> None:
    """Delete a version that was uploaded now; a job that needs it has it until its end."""
    if uploaded.created:
        with contextlib.suppress(NotFound):
            await gpu.implementations.remove(uploaded.name, uploaded.version)
