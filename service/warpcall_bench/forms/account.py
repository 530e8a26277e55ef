"""The page of a user: who is logged in, in which browsers, their limits, and the button to log out
everywhere."""

from __future__ import annotations

from fastapi import APIRouter, Request, Response
from sqlalchemy.orm import Session

from warpcall.errors import NotFound
from warpcall_bench.forms.admin_data import session_row
from warpcall_bench.forms.quota_rows import own_rows
from warpcall_bench.jobs.service import JobService
from warpcall_bench.pages.view import View, page, render
from warpcall_bench.summaries.quota_use import quota_use
from warpcall_service.auth import sessions
from warpcall_service.extension import Accounts
from warpcall_service.http.caller import CurrentCaller
from warpcall_service.identity import LOCAL

MOST_ROWS = 100


def routes(accounts: Accounts, jobs: JobService) -> APIRouter:
    """The page. Its form posts to the route that logs out everywhere."""
    router = APIRouter(include_in_schema=False)

    @router.get("/account")
    async def account(request: Request, caller: CurrentCaller) -> Response:
        if caller is LOCAL:
            raise NotFound("this server has no keys, so nobody logs in", field="path")
        view = View.of(request)

        def show(session: Session) -> str:
            open_sessions = [session_row(row) for row in sessions.listed(session, caller.name)]
            use = quota_use(session, caller.name)
            return render(
                "account.html",
                view,
                sessions=open_sessions[-MOST_ROWS:],
                quotas=own_rows(accounts.quotas, caller.name, use),
            )

        return page(request, await jobs.read(caller, show))

    return router
