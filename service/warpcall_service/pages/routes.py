"""The routes of the pages. What a page shows is made by the module with its name."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Query, Request, Response

from warpcall.jobs import State
from warpcall_service.http.caller import CurrentCaller
from warpcall_service.jobs.models import Name, Word
from warpcall_service.jobs.routes import JobId
from warpcall_service.jobs.service import JobService
from warpcall_service.jobs.submissions import Filter
from warpcall_service.lanes.engine import LocalEngine
from warpcall_service.pages import docs, login, static
from warpcall_service.pages.job import job_page
from warpcall_service.pages.jobs import jobs_page
from warpcall_service.pages.queue import queue_page, strips
from warpcall_service.pages.view import View, page

PAGE_JOBS = 50

Position = Annotated[int, Query(ge=0, le=1_000_000)]
# A form sends an empty text for a field that was left empty.
Empty = Annotated[str, Query(max_length=0)]


def pages(engine: LocalEngine, jobs: JobService) -> APIRouter:
    """All pages."""
    router = APIRouter(include_in_schema=False)
    for part in (static.routes(), docs.routes(), login.routes()):
        router.include_router(part)

    @router.get("/")
    async def now(request: Request, caller: CurrentCaller) -> Response:
        devices = jobs.scheduler.devices
        text = await jobs.read(caller, queue_page, View.of(request), strips(engine), devices)
        return page(request, text)

    @router.get("/jobs")
    async def list_jobs(
        request: Request,
        caller: CurrentCaller,
        user: Name | Empty | None = None,
        state: State | Empty | None = None,
        op: Name | Empty | None = None,
        tag: Word | Empty | None = None,
        before: JobId | None = None,
    ) -> Response:
        wanted = Filter(user or None, state or None, op or None, tag or None, before, PAGE_JOBS)
        ops = [declared["name"] for declared in engine.catalog]
        devices = jobs.scheduler.devices
        text = await jobs.read(caller, jobs_page, View.of(request), wanted, ops, devices)
        return page(request, text)

    @router.get("/jobs/{id}")
    async def show_job(
        request: Request,
        caller: CurrentCaller,
        id: JobId,
        first: Annotated[Position, Query(alias="from")] = 0,
    ) -> Response:
        devices = jobs.scheduler.devices
        text = await jobs.read(caller, job_page, View.of(request), id, devices, first)
        return page(request, text)

    return router
