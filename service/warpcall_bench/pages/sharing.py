"""The part of a page that makes, lists and revokes the share links of a job or a comparison."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from sqlalchemy.orm import Session

from warpcall.jobs import JobInfo, Share
from warpcall_bench.pages.view import View
from warpcall_bench.shares import database
from warpcall_bench.shares.service import described

LIFETIMES = {"1 day": 1, "7 days": 7, "30 days": 30, "1 year": 365, "never": None}  # in days
DEFAULT_LIFETIME = "30 days"


@dataclass(frozen=True, slots=True)
class Sharing:
    """What the form of a share link needs, and the links that there are.

    Attributes:
        job_id: the job that a new link shows, or the first one of its comparison with `other_id`.
        private: ids of those jobs that no link can show, because they are private.
    """

    job_id: str
    other_id: str | None
    private: list[str]
    links: Sequence[Share]
    lifetimes: Sequence[str] = (*LIFETIMES,)
    chosen: str = DEFAULT_LIFETIME


def sharing(session: Session, view: View, *jobs: JobInfo) -> Sharing | None:
    """The links to a job or to the comparison of two; None if the caller may make none."""
    caller = view.caller
    if view.is_guest or not caller.may("bench"):
        return None
    if not all(caller.owns(job.user) for job in jobs):
        return None
    ids = [job.id for job in jobs]
    links = described(database.listed(session, caller, ids[0], None))
    if len(ids) > 1:
        links = [one for one in links if {one.job, one.other} == {*ids}]
    private = [job.id for job in jobs if job.private]
    return Sharing(ids[0], ids[1] if len(ids) > 1 else None, private, links)
