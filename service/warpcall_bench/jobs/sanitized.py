"""What compute-sanitizer found in a job, as a short text in the row of each upload.

The whole text is an artefact.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable

from sqlalchemy.orm import Session

from warpcall.jobs.results import Measurement as Row
from warpcall_bench.jobs.tables import Job, Measurement
from warpcall_bench.runs.events import ProfileMade
from warpcall_bench.runs.messages import PROFILE_FILES, SANITIZERS
from warpcall_service.text import printable

FILES = {file: tool for tool in SANITIZERS for file in PROFILE_FILES[tool]}
MAX_CHARS = 500
MOST_REMARKS = 8


def store(session: Session, job: Job, made: ProfileMade) -> None:
    """Store the short text of a tool. The operation is idempotent."""
    tool = FILES[made.file]
    row = session.get_one(Measurement, (job.number, made.position, made.implementation))
    summary = json.loads(row.summary)
    summary["sanitizer"] = {**summary.get("sanitizer", {}), tool: short_text(made)}
    row.summary = json.dumps(summary)


def short_text(made: ProfileMade) -> str:
    """What a tool found, in a line: the first one of its text, without the name of the tool."""
    if made.error:
        return printable(f"not run: {made.error}"[:MAX_CHARS])
    first = made.content[: 4 * MAX_CHARS].decode(errors="replace").partition("\n")[0]
    return printable(first.removeprefix(f"{FILES[made.file]}: ")[:MAX_CHARS])


def remarks(rows: Iterable[Row]) -> list[str]:
    """For the readers of a job: what compute-sanitizer found, and why it was not run."""
    clean = Counter[tuple[str, str]]()
    found = []
    for row in rows:
        for tool, text in row.sanitizer.items():
            if text.startswith("0 "):
                clean[row.implementation, tool] += 1
            else:
                found.append(f"{tool} of {row.implementation}, {row.case}: {text}")
    if len(found) > MOST_REMARKS:
        more = len(found) - MOST_REMARKS
        found = [
            *found[:MOST_REMARKS],
            f"compute-sanitizer: {more} more, on the pages of the cases",
        ]
    nothing = [
        f"{tool} of {name} found nothing in {count} {'case' if count == 1 else 'cases'}"
        for (name, tool), count in clean.items()
    ]
    return [*found, *nothing]
