"""What people without a key see: the job or the comparison of a share link, and its cases."""

from __future__ import annotations

from dataclasses import replace
from typing import Annotated, Literal

from fastapi import APIRouter, Path, Query, Request, Response

from warpcall.errors import NotFound
from warpcall_bench.jobs.models import MAX_SEQUENCE
from warpcall_bench.jobs.routes import Position
from warpcall_bench.jobs.service import JobService
from warpcall_bench.pages.case import case_page
from warpcall_bench.pages.compare import comparison_page
from warpcall_bench.pages.job import job_page
from warpcall_bench.pages.view import View, page, streamed_page
from warpcall_bench.shares.database import Shared
from warpcall_bench.shares.service import ShareService
from warpcall_service.http.exchange import Exchange

Token = Annotated[str, Path(max_length=200)]
From = Annotated[int, Query(alias="from", ge=0, le=MAX_SEQUENCE)]
# Which cases the table of all ratios has: the worst ones of very many, or all.
Ratios = Literal["", "all"]


def shared_routes(jobs: JobService, shares: ShareService) -> APIRouter:
    """The pages of share links. The links on them lead to nothing else."""
    router = APIRouter(include_in_schema=False)

    @router.get("/share/{token}")
    async def show_shared(
        request: Request, token: Token, first: From = 0, ratios: Ratios = ""
    ) -> Response:
        found = await shares.open(_exchange_of(request), token)
        view = _view_of(request, found, token)
        if found.other_id is not None:
            parts = comparison_page(jobs, found.caller, view, found.job_id, found.other_id)
        else:
            parts = job_page(jobs, view, found.job_id, first, bool(ratios))
        return await streamed_page(request, view, parts)

    @router.get("/share/{token}/cases/{position}")
    async def show_shared_case(request: Request, token: Token, position: Position) -> Response:
        found = await shares.open(_exchange_of(request), token)
        if found.other_id is not None:
            raise NotFound("this share link shows a comparison", field="token")
        view = _view_of(request, found, token)
        text = await jobs.read(found.caller, case_page, view, found.job_id, position)
        return page(request, text)

    return router


def _view_of(request: Request, found: Shared, token: str) -> View:
    return replace(View.of(request), caller=found.caller, share=token)


def _exchange_of(request: Request) -> Exchange:
    exchange: Exchange = request.scope["state"]["exchange"]
    return exchange
