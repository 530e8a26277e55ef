"""The first page, with the devices and the queue of all users, and the list of jobs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import get_args

from sqlalchemy.orm import Session

from warpcall.jobs import STATES, Queue
from warpcall_bench.drawing.numbers import count, span
from warpcall_bench.jobs import answers
from warpcall_bench.jobs.placement import Devices
from warpcall_bench.jobs.search import SORTS, Found
from warpcall_bench.jobs.submissions import Filter
from warpcall_bench.pages.shown import Servers
from warpcall_bench.pages.strips import DeviceStrip
from warpcall_bench.pages.view import View, render
from warpcall_bench.words import LONGEST
from warpcall_service.extension import Engine
from warpcall_service.lanes.activity import STEPS

NAMED_CASES = 3  # of a job in the list, besides the last one
LATEST = 8  # finished jobs that are shown
LOOKED_AT = 20  # jobs before them that may not have ended
MOST_ENTRIES = 100  # of the queue


def queue_page(
    session: Session,
    view: View,
    devices: Sequence[DeviceStrip],
    job_devices: Devices,
    servers: Servers,
    able: str,
) -> str:
    """The page as text."""
    queue = answers.whole_queue(session, view.caller, job_devices)
    latest = answers.jobs(session, view.caller, Filter(limit=LATEST + LOOKED_AT), job_devices).jobs
    recent = [job for job in latest if job.finished_at][:LATEST]
    running = [entry for entry in queue.entries if entry.position == 0]
    at = {(entry.node, entry.device): entry for entry in running}
    order = {node.id: place for place, node in enumerate(servers.shown)}
    in_order = sorted(devices, key=lambda one: order.get(one.node or servers.own, 0))
    return render(
        "now.html",
        view,
        devices=[
            replace(one, job=at.get((one.node or servers.own, one.status.name))) for one in in_order
        ],
        queue=queue,
        MOST_ENTRIES=MOST_ENTRIES,
        answer=_answer(view.caller.name, queue, devices),
        able=able,
        recent=recent,
        has_jobs=bool(latest),
        servers=servers,
        there={
            node.id: [entry for entry in running if entry.node == node.id] for node in servers.shown
        },
        step_share=round(100 / STEPS, 4),
    )


def abilities(engine: Engine, uploads: str) -> str:
    """What users can do on this server now, in a sentence or two."""
    ops = count(len(engine.catalog), "op")
    if uploads == "off":
        return f"You can call {ops} and benchmark them. Your own kernels cannot be timed: uploads are off."
    if uploads.startswith("unavailable"):
        return f"You can call {ops} and benchmark them. Your own kernels cannot be timed now: uploads are {uploads}."
    return f"You can call {ops}, and benchmark them and your own kernels."


def _answer(user: str, queue: Queue, devices: Sequence[DeviceStrip]) -> str:
    """The page in one or two sentences: is a device free, and when does the caller's job start."""
    ready = sum(one.status.state == "ready" for one in devices)
    if not ready:
        return "No device is ready."
    running = [entry for entry in queue.entries if entry.position == 0]
    waiting = [entry for entry in queue.entries if entry.position > 0 and entry.has_device]
    if not running and not waiting:
        return "Free: a job that you submit now starts at once."
    entries = [*running, *waiting]
    own = [entry for entry in entries if entry.user == user]
    free = queue.devices - len(running)
    first = (
        f"{count(free, 'device')} free."
        if free > 0
        else f"Busy: {count(len(running), 'job')} running, {len(waiting)} waiting."
    )
    if not own:
        if free > 0 and not waiting:
            return first
        ends = max(entry.ends_in_s for entry in entries)
        return f"{first} All of them are done in about {span(ends)}."
    if own[0].position == 0:
        return f"{first} Your job runs, and ends in about {span(own[0].ends_in_s)}."
    before = sum(entry.position < own[0].position for entry in entries)
    return (
        f"{first} Your next job starts in about {span(own[0].starts_in_s)}, after "
        f"{count(before, 'other job')}."
    )


def jobs_page(
    session: Session, view: View, wanted: Filter, ops: list[str], job_devices: Devices
) -> str:
    """The page as text.

    Raises:
        NotFound: there is no job `before`, or the caller may not see it.
    """
    found = answers.jobs(session, view.caller, wanted, job_devices)
    keys = answers.case_keys(session, [job.id for job in found.jobs], NAMED_CASES)
    return render(
        "jobs.html",
        view,
        further={job.id: _further(keys[job.id], job.cases_total) for job in found.jobs},
        jobs=found.jobs,
        following=found.next,
        wanted=wanted,
        is_filtered=replace(wanted, before=None, limit=0, sort="")
        != Filter(limit=0, sort="", kind=None),
        ops=ops,
        states=STATES,
        all_found=get_args(Found),
        columns=[*SORTS],
        longest=LONGEST,
    )


def _further(keys: Sequence[str], total: int) -> str:
    """How the further cases of a job differ from its first one, such as "x=F32[256,256], x=F32[512,512]
    and 3 others"."""
    if len(keys) < 2:
        return ""
    first = keys[0].split()
    named = [" ".join(word for word in key.split() if word not in first) for key in keys[1:]]
    others = total - len(keys)
    return ", ".join(filter(None, named)) + (f" and {count(others, 'other')}" if others else "")
