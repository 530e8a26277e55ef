"""The list of jobs, with filters."""

from __future__ import annotations

from dataclasses import replace

from sqlalchemy.orm import Session

from warpcall.jobs import STATES
from warpcall_service.jobs import views
from warpcall_service.jobs.submissions import Filter
from warpcall_service.pages.queue import headline
from warpcall_service.pages.view import View, render


def jobs_page(
    session: Session, view: View, wanted: Filter, ops: list[str], job_devices: int
) -> str:
    """The page as text.

    Raises:
        NotFound: there is no job `before`, or the caller may not see it.
    """
    found = views.jobs(session, view.caller, wanted, job_devices)
    return render(
        "jobs.html",
        view,
        jobs=found.jobs,
        following=found.next,
        wanted=wanted,
        is_filtered=replace(wanted, before=None, limit=0) != Filter(limit=0),
        ops=ops,
        states=STATES,
        headline=headline,
    )
