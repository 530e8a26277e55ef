"""The routes of the pages. What a page shows is made by the module with its name."""

from __future__ import annotations

from collections.abc import Callable
from datetime import date
from typing import Annotated

from fastapi import APIRouter, Query, Request, Response
from pydantic import BeforeValidator

from warpcall.jobs import State
from warpcall.regressions import ALLOWED, MOST_ALLOWED
from warpcall_bench.artefacts.contents import contents
from warpcall_bench.artefacts.service import Artefacts
from warpcall_bench.groups.service import GroupService
from warpcall_bench.jobs.models import CaseKey, ImplementationName, Name, Word
from warpcall_bench.jobs.routes import JobId, Position
from warpcall_bench.jobs.search import SORTS, Found
from warpcall_bench.jobs.service import JobService
from warpcall_bench.jobs.submissions import Filter
from warpcall_bench.pages import docs, guide, login, start, static
from warpcall_bench.pages.board import board_page
from warpcall_bench.pages.case import case_artefacts, case_page, traces_of
from warpcall_bench.pages.compare import (
    address_of,
    comparison_page,
    form_page,
    regression_page,
    several_of,
    several_page,
)
from warpcall_bench.pages.group import group_page
from warpcall_bench.pages.history import history_page
from warpcall_bench.pages.job import job_page
from warpcall_bench.pages.kernels import kernel_routes
from warpcall_bench.pages.lists import abilities, jobs_page, queue_page
from warpcall_bench.pages.shared import From, Ratios, shared_routes
from warpcall_bench.pages.shown import servers
from warpcall_bench.pages.sortable import find_of, sort_of
from warpcall_bench.pages.strips import remote_strips, strips
from warpcall_bench.pages.view import View, page, streamed_page
from warpcall_bench.shares.service import ShareService
from warpcall_bench.summaries.routes import DeviceName
from warpcall_bench.uploads.service import UploadService
from warpcall_service.extension import Engine, Nodes
from warpcall_service.formats.form import go_to
from warpcall_service.http.caller import CurrentCaller

PAGE_JOBS = 50
MOST_IDS = 400  # characters of a list of ids

Percent = Annotated[float, Query(gt=0, le=100 * MOST_ALLOWED, allow_inf_nan=False)]
# A form sends an empty text for a field that was left empty.
EMPTY_IS_NONE = BeforeValidator(lambda text: text or None)
Empty = Annotated[str, Query(max_length=0)]
Day = Annotated[date | None, EMPTY_IS_NONE]
Outcome = Annotated[Found | None, EMPTY_IS_NONE]


def pages(
    engine: Engine,
    jobs: JobService,
    groups: GroupService,
    uploads: UploadService,
    shares: ShareService,
    nodes: Nodes,
    artefacts: Artefacts,
    upload_status: Callable[[], str],
    viewer: str,
) -> APIRouter:
    """All pages.

    Args:
        upload_status: returns what /readyz says of uploads.
        viewer: URL of the viewer that opens traces; empty if there is none.
    """
    router = APIRouter(include_in_schema=False)
    for part in (
        static.routes(),
        docs.routes(),
        login.routes(),
        start.routes(engine, upload_status),
        guide.routes(),
        kernel_routes(engine, jobs, uploads),
        shared_routes(jobs, shares),
    ):
        router.routes.extend(part.routes)

    @router.get("/")
    async def now(request: Request, caller: CurrentCaller) -> Response:
        devices = jobs.scheduler.devices
        known = servers(nodes)
        strip = [*strips(engine), *remote_strips(nodes)]
        able = abilities(engine, upload_status())
        text = await jobs.read(caller, queue_page, View.of(request), strip, devices, known, able)
        return page(request, text)

    @router.get("/jobs")
    async def list_jobs(
        request: Request,
        caller: CurrentCaller,
        user: Name | Empty | None = None,
        state: State | Empty | None = None,
        op: Name | Empty | None = None,
        tag: Word | Empty | None = None,
        found: Outcome = None,
        since: Day = None,
        until: Day = None,
        before: JobId | None = None,
    ) -> Response:
        view = View.of(request)
        wanted = Filter(
            *(user or None, state or None, op or None, tag or None, before, PAGE_JOBS),
            words=find_of(view, ""),
            found=found,
            since=since,
            until=until,
            sort=sort_of(view, "", SORTS) or "-submitted",
            kind=None,
        )
        ops = [declared["name"] for declared in engine.catalog]
        devices = jobs.scheduler.devices
        text = await jobs.read(caller, jobs_page, view, wanted, ops, devices)
        return page(request, text)

    @router.get("/jobs/{id}")
    async def show_job(
        request: Request,
        caller: CurrentCaller,
        id: JobId,
        first: From = 0,
        ratios: Ratios = "",
    ) -> Response:
        hosts = servers(nodes).hosts
        view = View.of(request)
        parts = job_page(jobs, view, id, first, bool(ratios), hosts)
        return await streamed_page(request, view, parts)

    @router.get("/groups/{id}")
    async def show_group(request: Request, caller: CurrentCaller, id: JobId) -> Response:
        hosts = servers(nodes).hosts
        view, devices = View.of(request), groups.devices
        return page(request, await jobs.read(caller, group_page, view, id, devices, hosts))

    @router.get("/jobs/{id}/cases/{position}")
    async def show_case(
        request: Request, caller: CurrentCaller, id: JobId, position: Position
    ) -> Response:
        rows = await jobs.read(caller, case_artefacts, caller, id, position)
        profiles = await contents(artefacts, rows)
        shown = (View.of(request), id, position, profiles, viewer)
        text = await jobs.read(caller, case_page, *shown)
        # A browser lets a page speak with a tab of another origin only if its policy allows it.
        return page(request, text, hands_over=bool(viewer and traces_of(profiles)))

    @router.get("/jobs/{id}/regression")
    async def show_regression(
        request: Request, caller: CurrentCaller, id: JobId, percent: Percent = 100 * ALLOWED
    ) -> Response:
        view = View.of(request)
        text = await jobs.read(caller, regression_page, view, id, percent / 100)
        return page(request, text)

    @router.get("/compare")
    async def compare(
        request: Request,
        caller: CurrentCaller,
        a: JobId = "",
        b: JobId = "",
        job: Annotated[tuple[JobId, ...], Query()] = (),
        jobs_: Annotated[str, Query(alias="jobs", max_length=MOST_IDS)] = "",
    ) -> Response:
        view = View.of(request)
        if job:  # those that were ticked in a list
            return go_to(await jobs.read(caller, address_of, view, job))
        if jobs_:
            parts = several_page(jobs, caller, view, several_of(jobs_))
            return await streamed_page(request, view, parts)
        if a and b:
            parts = comparison_page(jobs, caller, view, a, b)
            return await streamed_page(request, view, parts)
        text = await jobs.read(caller, form_page, view, a, b, jobs.scheduler.devices)
        return page(request, text)

    @router.get("/history")
    async def history(
        request: Request,
        caller: CurrentCaller,
        op: ImplementationName | Empty = "",
        implementation: ImplementationName | Empty = "",
        case: CaseKey | Empty = "",
    ) -> Response:
        view = View.of(request)
        text = await jobs.read(caller, history_page, view, op, implementation, case)
        return page(request, text)

    @router.get("/board")
    async def board(
        request: Request,
        caller: CurrentCaller,
        op: ImplementationName | Empty = "",
        device: DeviceName | Empty = "",
        case: CaseKey | Empty = "",
        all_: Annotated[bool, Query(alias="all")] = False,
    ) -> Response:
        ops = [declared["name"] for declared in engine.catalog]
        view = View.of(request)
        text = await jobs.read(caller, board_page, view, ops, op, device, case, all_)
        return page(request, text)

    return router
