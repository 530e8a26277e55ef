"""The pages of ops and implementations: what they are, their source, where they were measured."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated, Any

from fastapi import APIRouter, Query, Request, Response
from sqlalchemy.orm import Session

from warpcall import wire
from warpcall.errors import NotFound
from warpcall.implementations import ImplementationDetails, ImplementationList
from warpcall.problems import ProblemDetails, ProblemInfo
from warpcall_service.drawing.sources import difference, files_of_op, highlighted
from warpcall_service.http.caller import CurrentCaller
from warpcall_service.jobs import submissions, views
from warpcall_service.jobs.service import JobService
from warpcall_service.lanes.engine import LocalEngine
from warpcall_service.pages.view import View, page, render
from warpcall_service.text import brief
from warpcall_service.uploads.database import Filter
from warpcall_service.uploads.models import Cursor, Version
from warpcall_service.uploads.problems import ProblemService
from warpcall_service.uploads.service import ImplementationService

LATEST = 15  # jobs
PAGE_UPLOADS = 50
OP_UPLOADS = 100

File = Annotated[str | None, Query(max_length=200)]
Op = Mapping[str, Any]


def kernel_routes(
    engine: LocalEngine,
    jobs: JobService,
    implementations: ImplementationService,
    problems: ProblemService,
) -> APIRouter:
    """The list of ops and uploads, a page for each op and problem, and one for each upload."""
    router = APIRouter(include_in_schema=False)
    ops = {declared["name"]: declared for declared in engine.catalog}

    @router.get("/kernels")
    async def list_kernels(
        request: Request, caller: CurrentCaller, before: Cursor | None = None
    ) -> Response:
        found = await implementations.list(caller, Filter(None, None, before, PAGE_UPLOADS))
        declared: Sequence[ProblemInfo] = ()
        if before is None:
            wanted = Filter(None, None, None, PAGE_UPLOADS)
            declared = (await problems.list(caller, wanted)).problems
        view = View.of(request)
        return page(request, kernels_page(view, list(ops.values()), declared, found))

    @router.get("/kernels/{name}")
    async def show_op(
        request: Request, caller: CurrentCaller, name: str, file: File = None
    ) -> Response:
        if name not in ops:
            raise NotFound(wire.no_such_op(name, ops), field="name")
        found = await implementations.list(caller, Filter(name, None, None, OP_UPLOADS))
        devices = jobs.scheduler.devices
        text = await jobs.read(caller, op_page, View.of(request), ops[name], found, file, devices)
        return page(request, text)

    @router.get("/implementations/{user}/{name}")
    async def show_implementation(
        request: Request,
        caller: CurrentCaller,
        user: str,
        name: str,
        version: Version | None = None,
        against: Version | None = None,
    ) -> Response:
        found = await implementations.find(caller, user, name, version)
        other = None
        if against is not None:
            other = await implementations.find(caller, user, name, against)
        devices = jobs.scheduler.devices
        text = await jobs.read(caller, implementation_page, View.of(request), found, other, devices)
        return page(request, text)

    @router.get("/problems/{user}/{name}")
    async def show_problem(
        request: Request,
        caller: CurrentCaller,
        user: str,
        name: str,
        version: Version | None = None,
        against: Version | None = None,
    ) -> Response:
        found = await problems.find(caller, user, name, version)
        other = None
        if against is not None:
            other = await problems.find(caller, user, name, against)
        offered = await implementations.list(caller, Filter(found.name, None, None, OP_UPLOADS))
        devices, view = jobs.scheduler.devices, View.of(request)
        text = await jobs.read(caller, problem_page, view, found, other, offered, devices)
        return page(request, text)

    return router


def kernels_page(
    view: View, ops: Sequence[Op], problems: Sequence[ProblemInfo], found: ImplementationList
) -> str:
    """All ops, the problems of users, and their implementations."""
    uploaded = [one for one in found.implementations if one.kind == "uploaded"]
    counts = {op["name"]: sum(one.op == op["name"] for one in uploaded) for op in ops}
    return render(
        "kernels.html",
        view,
        ops=ops,
        problems=problems,
        counts=counts,
        uploaded=uploaded,
        operators=[one for one in found.implementations if one.kind == "operator"],
        errors=found.errors,
        following=found.next,
    )


def op_page(
    session: Session,
    view: View,
    op: Op,
    found: ImplementationList,
    file: str | None,
    devices: int,
) -> str:
    """One op: its declaration, the implementations that there are, its source and its latest jobs.

    Raises:
        NotFound: the op has no file of this name.
    """
    files = files_of_op(op["name"])
    shown = next((one for one in files if one.path == (file or files[0].path)), None)
    if file is not None and shown is None:
        raise NotFound(f"{op['name']} has no file {brief(file)}", field="file")
    return render(
        "op.html",
        view,
        op=op,
        implementations=found.implementations,
        files=files,
        shown=shown,
        code=None if shown is None else highlighted(shown.text),
        jobs=views.jobs(
            session, view.caller, submissions.Filter(op=op["name"], limit=LATEST), devices
        ).jobs,
    )


def implementation_page(
    session: Session,
    view: View,
    found: ImplementationDetails,
    other: ImplementationDetails | None,
    devices: int,
) -> str:
    """One version of an uploaded implementation, or its difference from an earlier one.

    Args:
        other: the version from which the difference is shown.
    """
    measured = submissions.Filter(op=found.op, implementation=found.name, limit=LATEST)
    return render(
        "implementation.html",
        view,
        one=found,
        other=other,
        lines=None if other is None else difference(other.source, found.source),
        code=None if other is not None else highlighted(found.source),
        jobs=views.jobs(session, view.caller, measured, devices).jobs,
    )


def problem_page(
    session: Session,
    view: View,
    found: ProblemDetails,
    other: ProblemDetails | None,
    offered: ImplementationList,
    devices: int,
) -> str:
    """One version of a problem, or its difference from an earlier one.

    Args:
        other: the version from which the difference is shown.
        offered: the implementations that can be timed on it.
    """
    measured = submissions.Filter(op=found.name, limit=LATEST)
    return render(
        "user_problem.html",
        view,
        one=found,
        op=found.declaration,
        implementations=offered.implementations,
        other=other,
        lines=None if other is None else difference(other.source, found.source),
        code=None if other is not None else highlighted(found.source),
        jobs=views.jobs(session, view.caller, measured, devices).jobs,
    )
