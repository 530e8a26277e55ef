"""What uploads print in the cases of a job: stored with the job, read with it, deleted with it.

Every function takes a session and blocks.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterator
from functools import partial

import sqlalchemy as sa
from sqlalchemy.orm import Session

from warpcall.jobs import PrintedList
from warpcall.jobs import PrintedText as Shown
from warpcall_bench.jobs import submissions
from warpcall_bench.jobs.exports import Step
from warpcall_bench.jobs.tables import Job, JobCase, PrintedText
from warpcall_bench.runs.events import Printed
from warpcall_service.formats.payloads import to_json
from warpcall_service.identity import Caller


def store(session: Session, job: Job, event: Printed) -> None:
    """Store a text, in place of the one of an earlier attempt. The operation is idempotent."""
    session.merge(
        PrintedText(
            job_number=job.number,
            position=event.position,
            implementation=event.implementation,
            text=zlib.compress(event.text.encode()),
        )
    )


def of_case(session: Session, number: int, position: int) -> dict[str, str]:
    """The texts of a case, by implementation.

    Args:
        number: of the job.
    """
    rows = session.scalars(
        sa.select(PrintedText).where(
            PrintedText.job_number == number, PrintedText.position == position
        )
    )
    return {row.implementation: _text(row) for row in rows}


def begin(session: Session, caller: Caller, job_id: str) -> Iterator[Step]:
    """The steps that render all texts of a job, in the order of its cases.

    Raises:
        NotFound: there is no such job, or it is private to another user.
    """
    job = submissions.find(session, caller, job_id)
    found = session.execute(
        sa.select(PrintedText.position, PrintedText.implementation, JobCase.key)
        .join(
            JobCase,
            sa.and_(
                JobCase.job_number == PrintedText.job_number,
                JobCase.position == PrintedText.position,
            ),
        )
        .where(PrintedText.job_number == job.number)
        .order_by(PrintedText.position, PrintedText.implementation)
    ).all()
    head, tail = to_json(PrintedList(id=job.id, printed=[])).split(b"[")
    steps = [lambda _: head + b"["]
    for number, (position, implementation, key) in enumerate(found):
        before = b"," if number else b""
        steps.append(partial(_rendered, job.number, position, implementation, key, before))
    return iter([*steps, lambda _: tail])


def _rendered(
    number: int, position: int, implementation: str, case: str, before: bytes, session: Session
) -> bytes:
    row = session.get(PrintedText, (number, position, implementation))
    text = "" if row is None else _text(row)  # it was deleted meanwhile
    shown = Shown(position=position, case=case, implementation=implementation, text=text)
    return before + to_json(shown)


def _text(row: PrintedText) -> str:
    return zlib.decompress(row.text).decode()
