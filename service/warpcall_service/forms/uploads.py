"""The form to upload an implementation, as a file or as text."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import PurePath
from typing import Annotated, Any
from urllib.parse import quote, urlencode

from fastapi import APIRouter, Query, Request, Response
from pydantic import ValidationError

from warpcall.errors import InvalidInput, Problem
from warpcall_service.formats.form import CHOICE, Form, go_to, read_form
from warpcall_service.http.caller import CurrentCaller
from warpcall_service.jobs.models import Name
from warpcall_service.lanes.engine import LocalEngine
from warpcall_service.pages.view import View, page, render
from warpcall_service.settings import Settings
from warpcall_service.text import brief
from warpcall_service.uploads.models import UploadRequest
from warpcall_service.uploads.new_versions import NAME
from warpcall_service.uploads.service import ImplementationService

FURTHER_BYTES = 16 << 10  # of a form beside the source

# A form sends an empty text for a field that was left empty.
Empty = Annotated[str, Query(max_length=0)]


def signature(op: Mapping[str, Any]) -> str:
    """How the function of an op is declared, such as "def permute(x, dims):"."""
    given = [one["name"] for one in op["inputs"] if not one["optional"]]
    given += [one["name"] for one in op["params"] if one["required"]]
    optional = [one for one in op["inputs"] if one["optional"]]
    optional += [one for one in op["params"] if not one["required"]]
    given += [f"{one['name']}={one.get('default')!r}" for one in optional]
    return f"def {op['name'].replace('-', '_')}({', '.join(given)}):"


def request_of(form: Form) -> UploadRequest:
    """The upload that a form describes.

    Raises:
        InvalidInput: the form has two sources or none, or a field is wrong; the error names it.
    """
    source = form.raw("file")
    if source and form.text("source"):
        raise InvalidInput("give either a file or a text, both came", field="file")
    source = source or form.raw("source")
    if not source.strip():
        raise InvalidInput("choose a file, or paste the text of one", field="source")
    given: dict[str, Any] = {"op": form.text("op"), "source": source}
    for name in ("function", "name"):
        if text := form.text(name):
            given[name] = text
    stem = PurePath(form.file_names.get("file", "")).stem
    if "name" not in given and "function" not in given and re.fullmatch(NAME, stem):
        given["name"] = stem
    given["private"] = CHOICE.get(form.text("private"))
    try:
        return UploadRequest.model_validate(given)
    except ValidationError as error:
        fault = error.errors()[0]
        message = fault["msg"].removeprefix("Value error, ")
        name = str(fault["loc"][0])
        got = "" if name == "source" else f", got {brief(fault['input'])}"
        raise InvalidInput(f"{message}{got}", field=name) from None


def routes(
    settings: Settings, engine: LocalEngine, implementations: ImplementationService
) -> APIRouter:
    """The page of the form, and what it posts to."""
    router = APIRouter(include_in_schema=False)
    most = int(settings.upload_max_bytes)

    async def show(
        request: Request, form: Form, errors: Mapping[str, str], status: int = 200
    ) -> Response:
        source = form.raw("source") or form.raw("file")  # a browser does not keep the file
        text = render(
            "upload.html",
            View.of(request),
            ops=[(op["name"], signature(op)) for op in engine.catalog],
            form=form,
            source=source,
            errors=errors,
            environment=await implementations.environment(),
        )
        return page(request, text, status)

    @router.get("/upload")
    async def upload(
        request: Request, caller: CurrentCaller, op: Name | Empty = "", name: Name | Empty = ""
    ) -> Response:
        caller.check("upload")
        known = [one["name"] for one in engine.catalog]
        chosen = op if op in known else "permute" if "permute" in known else known[0]
        return await show(request, Form.of([("op", chosen), ("name", name)]), {})

    @router.post("/upload")
    async def store(request: Request, caller: CurrentCaller) -> Response:
        caller.check("upload")
        form = await read_form(request, 2 * most + FURTHER_BYTES)
        try:
            found = await implementations.add(caller, request_of(form))
        except Problem as problem:
            field = problem.field if problem.field in _FIELDS else ""
            detail = problem.detail.removeprefix(f"{field}: ")
            return await show(request, form, {field: detail}, problem.status)
        if form.text("action") == "bench":
            query = {"op": found.op, "implementation": found.name}
            return go_to(f"new?{urlencode(query)}")
        return go_to("implementations/" + "/".join(map(_quoted, found.name.split("/"))))

    return router


_FIELDS = ("op", "file", "source", "function", "name", "private")


def _quoted(part: str) -> str:
    return quote(part, safe="")
