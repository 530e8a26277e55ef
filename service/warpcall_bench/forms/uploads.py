"""The forms to upload an implementation or a problem, as a file or as text."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Mapping, Sequence
from pathlib import PurePath
from typing import Annotated, Any, TypeVar
from urllib.parse import quote, urlencode

from fastapi import APIRouter, Query, Request, Response
from pydantic import BaseModel, ValidationError

from warpcall._jobs.source import Source
from warpcall._jobs.verified import verified_members
from warpcall.errors import InvalidInput, NotFound, Problem
from warpcall.problems import ProblemInfo
from warpcall_bench.forms.ops import Ops
from warpcall_bench.jobs.models import ImplementationName, Name, without_version
from warpcall_bench.pages.view import View, page, render
from warpcall_bench.settings import BenchSettings
from warpcall_bench.uploads.models import ProblemUpload, UploadRequest
from warpcall_bench.uploads.new_versions import NAME
from warpcall_bench.uploads.service import UploadService
from warpcall_service.formats.form import CHOICE, Form, go_to, read_form
from warpcall_service.http.caller import CurrentCaller
from warpcall_service.identity import Caller
from warpcall_service.text import brief

FURTHER_BYTES = 16 << 10  # of a form beside the source
IMPLEMENTATION, PROBLEM = "upload.html", "upload_problem.html"  # templates
FIELDS = ("op", "file", "source", "function", "name", "private", "verified")
SHOWN_AT = {"launches": "source", "language": "verified"}  # members of a request that are no fields
PYTHON, VERIFIED, CUDA = "", "yes", "cuda"  # values of the field `verified`

# A form sends an empty text for a field that was left empty.
Empty = Annotated[str, Query(max_length=0)]
Model = TypeVar("Model", bound=BaseModel)


def signature(op: Mapping[str, Any]) -> str:
    """How the function of an op is declared, such as "def permute(x, dims):"."""
    given = [one["name"] for one in op["inputs"] if not one["optional"]]
    given += [one["name"] for one in op["params"] if one["required"]]
    optional = [one for one in op["inputs"] if one["optional"]]
    optional += [one for one in op["params"] if not one["required"]]
    given += [f"{one['name']}={one.get('default')!r}" for one in optional]
    return f"def {_function(op['name'])}({', '.join(given)}):"


def implementation_of(form: Form) -> UploadRequest:
    """The implementation that a form describes.

    Raises:
        InvalidInput: the form has two sources or none, or a field is wrong; the error names it.
    """
    given: dict[str, Any] = {"op": form.text("op")}
    if function := form.text("function"):
        given["function"] = function
    given |= source_of(form, "function" not in given)
    return validated(UploadRequest, {**given, **_verified(form, given["source"])})


def _verified(form: Form, text: str) -> Mapping[str, Any]:
    """Whether an upload is a verified one, its language, and launches that CUDA C++ declares.

    Raises:
        InvalidInput: CUDA C++ declares no launches, or the choice is none of the form's.
    """
    choice, file = form.text("verified"), form.file_names.get("file", "")
    if choice not in (PYTHON, VERIFIED, CUDA):
        raise InvalidInput(
            f"verified must be empty, {VERIFIED} or {CUDA}, got {brief(choice)}", field="verified"
        )
    is_cuda = choice == CUDA or file.endswith(".cu")
    source = Source(text, language="cuda" if is_cuda else "python", label="the source")
    members = verified_members(source, choice == VERIFIED, None, None)
    return {name: value for name, value in members.items() if value is not None}


def problem_of(form: Form) -> ProblemUpload:
    """The problem that a form describes. Its name is by default that of the reference.

    Raises:
        InvalidInput: the form has two sources or none, or a field is wrong; the error names it.
    """
    return validated(ProblemUpload, source_of(form, named_by_file=False))


def source_of(form: Form, named_by_file: bool) -> dict[str, Any]:
    """What both forms have: the source, its name and who may read it.

    Args:
        named_by_file: the name is by default that of the file, if it can be one.

    Raises:
        InvalidInput: the form has two sources or none.
    """
    source = form.raw("file")
    if source and form.text("source"):
        raise InvalidInput("give either a file or a text, both came", field="file")
    source = source or form.raw("source")
    if not source.strip():
        raise InvalidInput("choose a file, or paste the text of one", field="source")
    stem = PurePath(form.file_names.get("file", "")).stem
    by_default = stem if named_by_file and re.fullmatch(NAME, stem) else None
    private = CHOICE.get(form.text("private"))
    return {"source": source, "name": form.text("name") or by_default, "private": private}


def validated(model: type[Model], given: Mapping[str, Any]) -> Model:
    """The request with these fields.

    Raises:
        InvalidInput: one of them is wrong; the error names it.
    """
    try:
        return model.model_validate(given)
    except ValidationError as error:
        fault = error.errors()[0]
        message = fault["msg"].removeprefix("Value error, ")
        name = str(fault["loc"][0])
        got = "" if name == "source" else f", got {brief(fault['input'])}"
        raise InvalidInput(f"{message}{got}", field=name) from None


def errors_of(problem: Problem) -> dict[str, str]:
    """What is wrong with an upload, by the field of the form."""
    field = problem.field or ""
    shown = SHOWN_AT.get(field, field)
    return {shown if shown in FIELDS else "": problem.detail.removeprefix(f"{field}: ")}


def page_of(kind: str, name: str) -> str:
    """The URL of the page of an upload, relative to the server's root."""
    return "/".join(quote(part, safe="") for part in (kind, *name.split("/")))


def routes(settings: BenchSettings, ops: Ops, uploads: UploadService) -> APIRouter:
    """The pages of both forms, and what they post to."""
    router = APIRouter(include_in_schema=False)
    most_bytes = 2 * int(settings.upload_max_bytes) + FURTHER_BYTES

    async def show(
        request: Request,
        template: str,
        form: Form,
        errors: Mapping[str, str],
        status: int = 200,
        choices: Sequence[tuple[str, str]] = (),
    ) -> Response:
        text = render(
            template,
            View.of(request),
            ops=choices,
            form=form,
            source=form.raw("source") or form.raw("file"),  # a browser does not keep a file
            errors=errors,
            environment=await uploads.environment(),
        )
        return page(request, text, status)

    @router.get("/upload")
    async def upload(
        request: Request,
        caller: CurrentCaller,
        op: ImplementationName | Empty = "",
        name: Name | Empty = "",
    ) -> Response:
        caller.check("upload")
        known = [one["name"] for one in ops.shipped]
        chosen = op or ("permute" if "permute" in known else known[0])
        choices = await _choices(ops, caller, chosen)
        form = Form.of([("op", chosen), ("name", name)])
        return await show(request, IMPLEMENTATION, form, {}, choices=choices)

    @router.post("/upload")
    async def store(request: Request, caller: CurrentCaller) -> Response:
        caller.check("upload")
        form = await read_form(request, most_bytes)
        try:
            found = await uploads.add_implementation(caller, implementation_of(form))
        except Problem as problem:
            choices = await _choices(ops, caller, form.text("op"))
            errors = errors_of(problem)
            return await show(request, IMPLEMENTATION, form, errors, problem.status, choices)
        if form.text("action") == "bench":
            query = {"op": found.op, "implementation": found.name}
            return go_to(f"new?{urlencode(query)}")
        return go_to(page_of("implementations", found.name))

    @router.get("/upload/problem")
    async def upload_problem(
        request: Request, caller: CurrentCaller, name: Name | Empty = ""
    ) -> Response:
        caller.check("upload")
        return await show(request, PROBLEM, Form.of([("name", name)]), {})

    @router.post("/upload/problem")
    async def store_problem(request: Request, caller: CurrentCaller) -> Response:
        caller.check("upload")
        form = await read_form(request, most_bytes)
        try:
            found = await uploads.add_problem(caller, problem_of(form))
        except Problem as problem:
            return await show(request, PROBLEM, form, errors_of(problem), problem.status)
        if form.text("action") == "bench":
            return go_to(f"../new?{urlencode({'op': found.name})}")
        return go_to(f"../{page_of('problems', found.name)}")

    return router


async def _choices(ops: Ops, caller: Caller, chosen: str) -> Sequence[tuple[str, str]]:
    """The ops and problems of which an implementation can be, each with how it is declared.

    Args:
        chosen: the one that the form has; it is left out if there is none of this name.
    """
    found = [(op["name"], signature(op)) for op in ops.shipped]
    found += [(one.name, _declared(one)) for one in await ops.problems(caller)]
    wanted = without_version(chosen)
    if "/" in wanted and wanted not in dict(found):
        with contextlib.suppress(NotFound):  # the form says so when it is sent
            found.append((wanted, signature(await ops.find(caller, wanted))))
    return found


def _declared(problem: ProblemInfo) -> str:
    """How the function of a problem is declared, without the defaults, which lists do not have."""
    return f"def {_function(problem.name)}({', '.join((*problem.inputs, *problem.params))}):"


def _function(op: str) -> str:
    return op.rpartition("/")[2].replace("-", "_")
