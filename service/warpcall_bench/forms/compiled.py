"""The page of compile reports: what kernels need on a GPU, their texts, and two versions compared."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from fastapi import APIRouter, Request, Response
from markupsafe import Markup

from warpcall.compile_reports import (
    ARCHITECTURES,
    GPU,
    TEXT_NAMES,
    CompileReport,
    KernelReport,
    TextName,
    paired,
)
from warpcall.errors import InvalidInput
from warpcall.implementations import ImplementationDetails
from warpcall_bench.compile_reports.models import CompileRequest
from warpcall_bench.compile_reports.service import CompileReports
from warpcall_bench.drawing.sources import (
    DiffLine,
    SourceFile,
    definition,
    difference,
    files_of_op,
    highlighted,
    plain,
)
from warpcall_bench.forms import new_job
from warpcall_bench.forms.ops import Declared, Ops
from warpcall_bench.forms.uploads import validated
from warpcall_bench.pages.view import View, page, render
from warpcall_bench.uploads.database import REFERENCE
from warpcall_bench.uploads.service import IMPLEMENTATION, UploadService
from warpcall_service.formats.form import Form
from warpcall_service.http.caller import CurrentCaller
from warpcall_service.identity import Caller

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


@dataclass(frozen=True, slots=True)
class Source:
    """The source of a kernel.

    Attributes:
        path: of the file in the library; empty for an upload.
        kernel: the kernel's definition; None if the file has no function of its name.
    """

    path: str
    kernel: Markup | None
    whole: Markup


def source_of(files: Sequence[SourceFile], name: str) -> Source | None:
    """The source of a kernel in one of these files; the first file if none defines it."""
    for one in files:
        found = definition(one.text, name)
        if found is not None:
            number, text = found
            return Source(one.path, highlighted(text, number), highlighted(one.text))
    return Source(files[0].path, None, highlighted(files[0].text)) if files else None


def routes(ops: Ops, uploads: UploadService, reports: CompileReports) -> APIRouter:
    """The page, whose form asks for itself with a query."""
    router = APIRouter(include_in_schema=False)

    async def versions(caller: Caller, name: str) -> ImplementationDetails | None:
        parts = REFERENCE.fullmatch(name)
        if parts is None:
            return None
        named = parts.group("user", "name", "version")
        return await uploads.find(IMPLEMENTATION, caller, *named)

    async def sources_of(caller: Caller, upload: ImplementationDetails | None) -> list[SourceFile]:
        if upload is None or not upload.files:
            return [] if upload is None else [SourceFile("", upload.source)]
        user, _, name = upload.name.partition("/")
        files = await uploads.read_files(caller, user, name, upload.sha256)
        paths = sorted(files, key=lambda path: (path != upload.entry, path))
        return [
            SourceFile(path, files[path].decode(errors="replace"))
            for path in paths
            if path.endswith(".py")
        ]

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
            compiled_page,
            *(View.of(request), form, op, upload, wanted.errors, found),
            await sources_of(caller, upload),
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
    sources: Sequence[SourceFile],
) -> str:
    """The form and the reports.

    Args:
        upload: the implementation; None for the kernels of the library.
        found: the report, and that of the version that it is compared with; empty without a case.
        sources: the Python files of the upload.
    """
    report = found[0] if found else None
    old = found[1] if len(found) > 1 else None
    kernels = [] if report is None else _pairs(report, old)
    number = form.text("kernel")
    chosen = int(number) if number.isascii() and number.isdigit() and len(number) < 4 else 0
    shown = kernels[chosen] if chosen < len(kernels) else None
    name = _text_name(form)
    lines: list[DiffLine] | None = None
    both = shown is not None and shown.new is not None and shown.old is not None
    if both and shown is not None and shown.new is not None and shown.old is not None:
        texts = ("\n".join(one.comparable_lines(name)) for one in (shown.old, shown.new))
        lines = difference(*texts)
    one = None if shown is None else shown.new or shown.old
    text = None if one is None else one.texts[name]
    files = files_of_op(op["name"]) if upload is None else sources
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
        changed=_source_difference(view, report, old),
        source=None if one is None or both else source_of(files, one.name),
        architectures=ARCHITECTURES,
        dtypes=dtypes,
        query=_query(form),
    )


def _pairs(report: CompileReport, old: CompileReport | None) -> list[Pair]:
    if old is None:
        return [Pair(one, None) for one in report.kernels]
    return [Pair(*both) for both in paired(report, old)]


def _source_difference(
    view: View, new: CompileReport | None, old: CompileReport | None
) -> str | None:
    """The page with the difference of the sources of two versions; None if they are of two uploads."""
    names = [(one.implementation or "").partition("@") for one in (new, old) if one is not None]
    if len(names) < 2 or names[0][0] != names[1][0] or "/" not in names[0][0]:
        return None
    name, versions = names[0][0], [version for _, _, version in names]
    return view.url("implementations", *name.split("/"), version=versions[0], against=versions[1])


def _text_name(form: Form) -> TextName:
    return next((name for name in TEXT_NAMES if name == form.text("text")), SHOWN)


def _query(form: Form) -> dict[str, str]:
    """What the form asks for, for links that change a part of it."""
    return {name: values[0] for name, values in form.fields.items()}
