"""The pages of ops and implementations: what they are, their source, where they were measured."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, TypeAlias, TypeVar

from fastapi import APIRouter, Path, Query, Request, Response
from markupsafe import Markup
from sqlalchemy.orm import Session

from warpcall import wire
from warpcall.errors import NotFound
from warpcall.implementations import ImplementationDetails, ImplementationList
from warpcall.problems import ProblemDetails, ProblemList
from warpcall_bench.drawing.plots import log_axis
from warpcall_bench.drawing.sources import difference, files_of_op, highlighted, plain
from warpcall_bench.jobs import answers, submissions
from warpcall_bench.jobs.placement import Devices
from warpcall_bench.jobs.service import JobService
from warpcall_bench.pages.results import case_name
from warpcall_bench.pages.sortable import ordered
from warpcall_bench.pages.upload_files import changed_files, whole_files
from warpcall_bench.pages.view import REST, View, page, render, streamed_page
from warpcall_bench.runs.operator_modules import OperatorModule
from warpcall_bench.summaries.board import Leader, leader
from warpcall_bench.uploads.database import Row, UploadFilter
from warpcall_bench.uploads.models import Cursor, Version
from warpcall_bench.uploads.service import IMPLEMENTATION, PROBLEM, Kind, UploadService
from warpcall_service.extension import Engine
from warpcall_service.http.caller import CurrentCaller
from warpcall_service.identity import Caller
from warpcall_service.text import brief

LATEST = 15  # jobs
PAGE_UPLOADS = 50
OP_UPLOADS = 100
UPLOAD_COLUMNS = ("name", "op", "uploaded")  # by which the database sorts them
PROBLEM_COLUMNS = ("name", "uploaded")
OP_COLUMNS = {
    "op": "op.name",
    "what it computes": "op.summary",
    "leader": "leader.entry.implementation",
    "of the limit": "-leader.entry.relative",
    "on": "leader.device",
}

File = Annotated[str | None, Query(max_length=200)]
Module = Annotated[str, Path(max_length=500)]
Op = Mapping[str, Any]
Uploaded = TypeVar("Uploaded", ImplementationDetails, ProblemDetails)
# A version, and the one from which its difference is shown.
Pair: TypeAlias = tuple[Uploaded, Uploaded | None]


def kernel_routes(engine: Engine, jobs: JobService, uploads: UploadService) -> APIRouter:
    """The list of ops and uploads, a page for each op and problem, and one for each upload."""
    router = APIRouter(include_in_schema=False)
    ops = {declared["name"]: declared for declared in engine.catalog}

    @router.get("/kernels")
    async def list_kernels(
        request: Request, caller: CurrentCaller, before: Cursor | None = None
    ) -> Response:
        view = View.of(request)
        wanted = _filter(view, "uploads", UPLOAD_COLUMNS, before)
        found = await uploads.list_implementations(caller, wanted)
        declared: ProblemList | None = None
        if before is None:
            wanted = _filter(view, "problems", PROBLEM_COLUMNS, None)
            declared = await uploads.list_problems(caller, wanted)
        providers = await uploads.providers(caller)
        ordered(view, "", (), [*OP_COLUMNS])  # what it refuses is refused before the page begins
        frame = kernels_page(view, declared, found, providers)
        parts = _with_leaders(jobs, caller, view, [*ops.values()], frame)
        return await streamed_page(request, view, parts)

    @router.get("/kernels/{name}")
    async def show_op(
        request: Request, caller: CurrentCaller, name: str, file: File = None
    ) -> Response:
        if name not in ops:
            raise NotFound(wire.no_such_op(name, ops), field="name")
        found = await uploads.list_implementations(
            caller, UploadFilter(name, None, None, OP_UPLOADS)
        )
        view, devices = View.of(request), jobs.scheduler.devices
        providers = await uploads.providers(caller)
        text = await jobs.read(caller, op_page, view, ops[name], found, providers, file, devices)
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
        pair = await _versions(uploads, IMPLEMENTATION, caller, user, name, version, against)
        devices, view = jobs.scheduler.devices, View.of(request)
        files = [
            {} if one is None else await uploads.read_files(caller, user, name, one.sha256)
            for one in (pair if any(one and one.files for one in pair) else ())
        ]
        text = await jobs.read(caller, implementation_page, view, pair, devices, files)
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
        pair = await _versions(uploads, PROBLEM, caller, user, name, version, against)
        offered = await uploads.list_implementations(
            caller, UploadFilter(pair[0].name, None, None, OP_UPLOADS)
        )
        devices, view = jobs.scheduler.devices, View.of(request)
        providers = await uploads.providers(caller)
        text = await jobs.read(caller, problem_page, view, pair, offered, providers, devices)
        return page(request, text)

    @router.get("/modules/{module}")
    async def show_module(request: Request, caller: CurrentCaller, module: Module) -> Response:
        found, source = await uploads.module_source(caller, module)
        text = await asyncio.to_thread(module_page, View.of(request), found, source)
        return page(request, text)

    return router


def _filter(view: View, name: str, columns: Sequence[str], before: str | None) -> UploadFilter:
    """What a reader wants of a list of uploads, in the parameters of its table."""
    shown = ordered(view, name, (), columns)
    sort = ("-" if shown.descending else "") + shown.sort or "-uploaded"
    return UploadFilter(None, None, before, PAGE_UPLOADS, shown.filter_text, sort)


@dataclass(frozen=True, slots=True)
class Leading:
    """An op in the list, with who leads in it; `spark` are the points of a line in a square of 100."""

    op: Op
    leader: Leader | None
    case: str
    spark: str


async def _with_leaders(
    jobs: JobService, caller: Caller, view: View, ops: Sequence[Op], frame: str
) -> AsyncGenerator[str, None]:
    """The page in two parts: the boards of all ops take some 10 ms each for thousands of jobs."""
    before, _, after = frame.partition(REST)
    yield before
    yield await jobs.read(caller, _ops_table, view, ops) + after


def _ops_table(session: Session, view: View, ops: Sequence[Op]) -> str:
    rows = [_leading(op, leader(session, view.caller, op["name"])) for op in ops]
    return render("kernels_ops.html", view, ops=rows, columns=OP_COLUMNS)


def _leading(op: Op, found: Leader | None) -> Leading:
    if found is None:
        return Leading(op, None, "", "")
    spark = ""
    if len(found.shares) > 1:
        axis = log_axis(found.shares, least_room=1.01)
        step = 100 / (len(found.shares) - 1)
        points = enumerate(found.shares)
        spark = " ".join(f"{n * step:.4g},{100 - axis.at(share):.4g}" for n, share in points)
    return Leading(op, found, case_name(op["name"], found.case), spark)


def kernels_page(
    view: View,
    problems: ProblemList | None,
    found: ImplementationList,
    providers: Mapping[str, OperatorModule],
) -> str:
    """The problems of users, and implementations. The table of the ops is to stand at REST.

    Args:
        problems: None on all pages but the first.
        providers: modules of the operator that the caller may read, by implementation.
    """
    uploaded = [one for one in found.implementations if one.user is not None]
    return render(
        "kernels.html",
        view,
        problems=problems,
        uploaded=uploaded,
        operators=[one for one in found.implementations if one.kind == "operator"],
        providers=providers,
        errors=found.errors,
        following=found.next,
        upload_columns=UPLOAD_COLUMNS,
        problem_columns=PROBLEM_COLUMNS,
    )


def op_page(
    session: Session,
    view: View,
    op: Op,
    found: ImplementationList,
    providers: Mapping[str, OperatorModule],
    file: str | None,
    devices: Devices,
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
        providers=providers,
        files=files,
        shown=shown,
        code=None if shown is None else highlighted(shown.text),
        jobs=answers.jobs(
            session, view.caller, submissions.Filter(op=op["name"], limit=LATEST), devices
        ).jobs,
    )


def implementation_page(
    session: Session,
    view: View,
    pair: Pair[ImplementationDetails],
    devices: Devices,
    files: Sequence[Mapping[str, bytes]] = (),
) -> str:
    """One version of an uploaded implementation, or its difference from an earlier one.

    Args:
        files: of the two versions; empty if both are single files.
    """
    one, other = pair
    measured = submissions.Filter(op=one.op, implementation=one.name, limit=LATEST)
    shown = _shown(session, view, pair, measured, devices)
    if files:
        after, before = files
        shown["parts"] = (
            whole_files(after, one.entry or "") if other is None else changed_files(before, after)
        )
    return render("implementation.html", view, **shown)


def problem_page(
    session: Session,
    view: View,
    pair: Pair[ProblemDetails],
    offered: ImplementationList,
    providers: Mapping[str, OperatorModule],
    devices: Devices,
) -> str:
    """One version of a problem, or its difference from an earlier one.

    Args:
        offered: the implementations that can be timed on it.
    """
    one = pair[0]
    shown = _shown(session, view, pair, submissions.Filter(op=one.name, limit=LATEST), devices)
    return render(
        "user_problem.html",
        view,
        op=one.declaration,
        implementations=offered.implementations,
        providers=providers,
        **shown,
    )


def module_page(view: View, module: OperatorModule, source: str) -> str:
    """One module of the operator: what it provides, and the source of its file."""
    return render("module.html", view, module=module, code=highlighted(source) if source else None)


async def _versions(
    uploads: UploadService,
    kind: Kind[Row, Uploaded],
    caller: Caller,
    user: str,
    name: str,
    version: str | None,
    against: str | None,
) -> Pair[Uploaded]:
    """A version of an upload, by default the latest, and the one that it is compared with."""
    found = await uploads.find(kind, caller, user, name, version)
    if against is None:
        return found, None
    return found, await uploads.find(kind, caller, user, name, against)


def _code_of(one: ImplementationDetails | ProblemDetails) -> Markup:
    if isinstance(one, ImplementationDetails) and one.language == "cuda":
        return plain(one.source)
    return highlighted(one.source)


def _shown(
    session: Session,
    view: View,
    pair: Pair[Uploaded],
    measured: submissions.Filter,
    devices: Devices,
) -> dict[str, Any]:
    """What the pages of all uploads show: the source or a difference, and the latest jobs."""
    one, other = pair
    return {
        "one": one,
        "other": other,
        "lines": None if other is None else difference(other.source, one.source),
        "code": None if other is not None else _code_of(one),
        "parts": None,
        "jobs": answers.jobs(session, view.caller, measured, devices).jobs,
    }
