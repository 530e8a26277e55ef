"""The HTTP route of compile reports."""

from __future__ import annotations

from fastapi import Request, Response

from warpcall.compile_reports import CompileReport
from warpcall.errors import (
    Busy,
    Forbidden,
    InvalidInput,
    Problem,
    TimedOut,
    TooLarge,
    Unavailable,
    UnsupportedMedia,
)
from warpcall.wire import COMPILE_REPORTS_PATH
from warpcall_bench.compile_reports.models import CompileRequest
from warpcall_bench.compile_reports.service import CompileReports
from warpcall_bench.json_body import check_structure, read_model
from warpcall_bench.settings import BenchSettings
from warpcall_bench.uploads.routes import most_bytes
from warpcall_service.formats.media_types import JSON
from warpcall_service.formats.payloads import answered
from warpcall_service.http.caller import CurrentCaller, needs
from warpcall_service.http.openapi_parts import problem_responses, ref
from warpcall_service.http.router import Router

PROBLEMS: list[type[Problem]] = [
    InvalidInput,
    TooLarge,
    UnsupportedMedia,
    TimedOut,
    Forbidden,
    Busy,
    Unavailable,
]


def compile_reports(settings: BenchSettings, service: CompileReports) -> Router:
    """The route that makes a compile report."""
    router = Router(tags=["implementations"])
    benching = needs("bench")
    body = {"required": True, "content": {JSON: {"schema": ref(CompileRequest)}}}

    @router.post(
        COMPILE_REPORTS_PATH,
        response_model=CompileReport,
        responses=problem_responses(PROBLEMS),
        dependencies=benching["dependencies"],
        openapi_extra={**benching["openapi_extra"], "requestBody": body},
    )
    async def make_compile_report(request: Request, caller: CurrentCaller) -> Response:
        """What the Triton kernels of an implementation need on a GPU, and their PTX and SASS.

        The implementation is called once, with launches that only compile, in the sandbox unless it
        is the library's own. No GPU is needed. `source` needs a key with the role `upload`.
        """
        most = most_bytes(settings)
        wanted = await read_model(
            request, CompileRequest, most, "the JSON of a compile report", check_structure
        )
        return answered(await service.make(caller, wanted))

    return router
