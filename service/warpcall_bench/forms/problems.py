"""The form to upload a problem, as a file or as text."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated
from urllib.parse import urlencode

from fastapi import APIRouter, Query, Request, Response

from warpcall.errors import Problem
from warpcall_bench.forms.uploads import (
    FURTHER_BYTES,
    errors_of,
    page_of,
    shown_source,
    source_of,
    validated,
)
from warpcall_bench.jobs.models import Name
from warpcall_bench.pages.view import View, page, render
from warpcall_bench.settings import BenchSettings
from warpcall_bench.uploads.models import ProblemUpload
from warpcall_bench.uploads.service import UploadService
from warpcall_service.formats.form import Form, go_to, read_form
from warpcall_service.http.caller import CurrentCaller

# A form sends an empty text for a field that was left empty.
Empty = Annotated[str, Query(max_length=0)]


def request_of(form: Form) -> ProblemUpload:
    """The upload that a form describes. Its name is by default that of the reference.

    Raises:
        InvalidInput: the form has two sources or none, or a field is wrong; the error names it.
    """
    return validated(ProblemUpload, source_of(form, named_by_file=False))


def routes(settings: BenchSettings, uploads: UploadService) -> APIRouter:
    """The page of the form, and what it posts to."""
    router = APIRouter(include_in_schema=False)
    most = int(settings.upload_max_bytes)

    async def show(
        request: Request, form: Form, errors: Mapping[str, str], status: int = 200
    ) -> Response:
        text = render(
            "upload_problem.html",
            View.of(request),
            form=form,
            source=shown_source(form),
            errors=errors,
            environment=await uploads.environment(),
        )
        return page(request, text, status)

    @router.get("/upload/problem")
    async def upload(request: Request, caller: CurrentCaller, name: Name | Empty = "") -> Response:
        caller.check("upload")
        return await show(request, Form.of([("name", name)]), {})

    @router.post("/upload/problem")
    async def store(request: Request, caller: CurrentCaller) -> Response:
        caller.check("upload")
        form = await read_form(request, 2 * most + FURTHER_BYTES)
        try:
            found = await uploads.add_problem(caller, request_of(form))
        except Problem as problem:
            return await show(request, form, errors_of(problem), problem.status)
        if form.text("action") == "bench":
            return go_to(f"../new?{urlencode({'op': found.name})}")
        return go_to(f"../{page_of('problems', found.name)}")

    return router
