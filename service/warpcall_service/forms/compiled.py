"""The page of compile reports: what kernels need on a GPU, their texts, and two versions compared."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from fastapi import APIRouter, Request, Response

from warpcall.compile_reports import (
    ARCHITECTURES,
    GPU,
    TEXT_NAMES,
    CompileReport,
    KernelReport,
    TextName,
)
from warpcall.errors import InvalidInput
from warpcall.implementations import ImplementationDetails
from warpcall_service.compile_reports.models import CompileRequest
from warpcall_service.compile_reports.service import CompileReports
from warpcall_service.drawing.sources import (
    DiffLine,
    difference,
    files_of_op,
    highlighted,
    plain,
)
from warpcall_service.formats.form import Form
from warpcall_service.forms import new_job
from warpcall_service.forms.ops import Declared, Ops
from warpcall_service.forms.uploads import validated
from warpcall_service.http.caller import CurrentCaller
from warpcall_service.identity import Caller
from warpcall_service.pages.view import View, page, render
from warpcall_service.uploads.database import REFERENCE
from warpcall_service.uploads.service import ImplementationService

SHOWN: TextName = "ptx"  # the text that is shown first


@dataclass(frozen=True, slots=True)
class Pair:
    """A kernel of a version, and the same kernel of the version that it is compared with."""

    new: KernelReport | None
    old: KernelReport | None

    @property
    def versions(self) -> list[tuple[str, KernelReport]]:
        """Those of the two that there are, each with the word for it."""
        both = (("new", self.new), ("old", self.old))
        return [(word, one) for word, one in both if one is not None]

    @property
    def label(self) -> str:
        """The name of the kernel."""
        one = self.new or self.old
        return "" if one is None else one.label


@dataclass
class Wanted:
    """What the form asks for.

    Attributes:
        errors: what is wrong, by the field of the form; under "" what concerns no field.
    """

    case: dict[str, Any] = field(default_factory=dict)
    errors: dict[str, str] = field(default_factory=dict)


def read_case(form: Form, op: Declared) -> Wanted:
    """The one case that a form describes, or its errors."""
    read = new_job.Read()
    sweep = new_job.read_sweep(read, form, op)
    wanted = Wanted(errors=read.errors)
    for name, plural in (("shape", "shapes"), ("dtype", "dtypes")):
        _take_one(wanted, name, sweep.get(plural, ()), wanted.case, name)
    for kind in ("params", "sizes"):
        for name, values in sweep.get(kind, {}).items():
            _take_one(wanted, f"{kind}.{name}", values, wanted.case.setdefault(kind, {}), name)
    return wanted


def _take_one(
    wanted: Wanted, label: str, values: Sequence[Any], target: dict[str, Any], name: str
) -> None:
    if len(values) > 1:
        wanted.errors[label] = f"a report is on one case, {len(values)} values came"
    elif values:
        target[name] = values[0]


def errors_of(error: InvalidInput, op: Declared) -> dict[str, str]:
    """What the service refused, by the field of the form."""
    first, _, rest = (error.field or "").partition(".")
    detail = error.detail.removeprefix(f"{first}: ")
    if first in ("gpu", "implementation"):
        return {first: detail}
    name = new_job.field_of(f"sweep.{rest}", op) if first == "case" else ""
    return {name: detail}


def pairs(new: CompileReport, old: CompileReport | None) -> list[Pair]:
    """The kernels of a report, each with the one of the other report that has its name."""
    left = [] if old is None else [*old.kernels]
    found = []
    for one in new.kernels:
        same = [k for k in left if (k.name, k.config) == (one.name, one.config)]
        if same:
            left.remove(same[0])
        found.append(Pair(one, same[0] if same else None))
    return [*found, *(Pair(None, one) for one in left)]


def routes(ops: Ops, implementations: ImplementationService, reports: CompileReports) -> APIRouter:
    """The page, whose form asks for itself with a query."""
    router = APIRouter(include_in_schema=False)

    async def versions(caller: Caller, name: str) -> ImplementationDetails | None:
        parts = REFERENCE.fullmatch(name)
        if parts is None:
            return None
        return await implementations.find(caller, parts["user"], parts["name"], parts["version"])

    @router.get("/compiled")
    async def compiled(request: Request, caller: CurrentCaller) -> Response:
        """The form, and below it the report, if a case was given."""
        caller.check("bench")
        form = Form.of(request.query_params.multi_items())
        upload = await versions(caller, form.text("implementation"))
        name = form.text("op") or (None if upload is None else upload.op) or "permute"
        op = await ops.find(caller, name)
        asked = form.has("dtype")
        wanted = read_case(form, op) if asked else Wanted()
        found: list[CompileReport] = []
        if asked and not wanted.errors:
            try:
                for one in ("implementation", "against"):
                    if one == "implementation" or form.has(one):
                        found.append(
                            await reports.make(caller, _request(form, op, wanted.case, one))
                        )
            except InvalidInput as error:
                wanted.errors, found = errors_of(error, op), []
        text = await asyncio.to_thread(
            compiled_page, View.of(request), form, op, upload, wanted.errors, found
        )
        return page(request, text)

    return router


def _request(form: Form, op: Declared, case: Mapping[str, Any], name: str) -> CompileRequest:
    """The request for the version under a name in the form."""
    given = {
        "op": op["name"],
        "case": case,
        "gpu": form.text("gpu") or GPU,
        "implementation": form.text(name) or None,
        "texts": [_text_name(form)],
    }
    return validated(CompileRequest, given)


def compiled_page(
    view: View,
    form: Form,
    op: Declared,
    upload: ImplementationDetails | None,
    errors: Mapping[str, str],
    found: Sequence[CompileReport],
) -> str:
    """The form and the reports.

    Args:
        upload: the implementation; None for the kernels of the library.
        found: the report, and that of the version that it is compared with; empty without a case.
    """
    report = found[0] if found else None
    old = found[1] if len(found) > 1 else None
    kernels = [] if report is None else pairs(report, old)
    number = form.text("kernel")
    chosen = int(number) if number.isascii() and number.isdigit() and len(number) < 4 else 0
    shown = kernels[chosen] if chosen < len(kernels) else None
    name = _text_name(form)
    files = files_of_op(op["name"]) if upload is None else ()
    source = upload.source if upload is not None else files[0].text if files else ""
    lines: list[DiffLine] | None = None
    both = shown is not None and shown.new is not None and shown.old is not None
    if both and shown is not None and shown.new is not None and shown.old is not None:
        lines = difference(shown.old.texts[name].text, shown.new.texts[name].text)
    one = None if shown is None else shown.new or shown.old
    text = None if one is None else one.texts[name]
    links = [
        None if at == chosen else view.url("compiled", **{**_query(form), "kernel": at})
        for at in range(len(kernels))
    ]
    dtypes = [name for group in new_job.dtypes_of(op) for name in group]
    return render(
        "compiled.html",
        view,
        form=form if form.has("dtype") else new_job.empty(op),
        given=form,
        op=op,
        upload=upload,
        errors=errors,
        report=report,
        old=old,
        kernels=kernels,
        groups=[pair.versions for pair in kernels],
        links=links,
        shown=shown,
        compared=both,
        lines=lines,
        text=text,
        text_code=None if text is None or both else plain(text.text),
        text_name=name,
        text_names=TEXT_NAMES,
        code=highlighted(source) if source and one is not None else None,
        architectures=ARCHITECTURES,
        dtypes=dtypes,
        query=_query(form),
    )


def _text_name(form: Form) -> TextName:
    return next((name for name in TEXT_NAMES if name == form.text("text")), SHOWN)


def _query(form: Form) -> dict[str, str]:
    """What the form asks for, for links that change a part of it."""
    return {name: values[0] for name, values in form.fields.items()}
