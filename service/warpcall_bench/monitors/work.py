"""What there is to do for monitors, in one statement, which servers run again and again."""

from __future__ import annotations

from dataclasses import dataclass

import sqlalchemy as sa
from sqlalchemy.orm import Session

from warpcall_bench.monitors import deliveries, runs


@dataclass(frozen=True, slots=True)
class Work:
    """Whether there is something to do.

    Attributes:
        ended: the latest job of a monitor has ended, and was not searched for steps yet.
        run: a run is due.
        delivery: an attempt of a delivery is due, or the last one was lost with its server.
    """

    ended: bool
    run: bool
    delivery: bool


def find_work(session: Session) -> Work:
    """What there is to do, without claiming it."""
    ended, run, delivery = session.execute(
        sa.select(
            runs.with_ended_job().exists(),
            runs.due().exists(),
            deliveries.unfinished().exists(),
        )
    ).one()
    return Work(bool(ended), bool(run), bool(delivery))
