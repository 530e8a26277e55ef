"""What pages show of profiles: the texts of Nsight Compute and of compute-sanitizer, the kernels of a
compile report, and the top kernels of a trace.

The files are made where code of users runs, so none of them is trusted: each is read up to a bound,
a report must have the form of reports, and texts are made printable.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Annotated, Literal

from pydantic import AfterValidator, ConfigDict, Field, StringConstraints, ValidationError

from warpcall.artefacts import TopKernel, TopKernels
from warpcall.compile_reports import CompileReport, KernelReport
from warpcall.errors import NodeGone, OnOtherNode, Problem, sizes
from warpcall_bench.artefacts.service import Artefacts
from warpcall_bench.artefacts.tables import ArtefactRow
from warpcall_bench.json_body import structure_nbytes
from warpcall_bench.runs.results import Strict
from warpcall_bench.runs.stored_results import MAX_COUNT, MOST
from warpcall_bench.uploads.answers import MAX_KERNELS, KernelNumbers, Line, one_line

TEXT = "ncu-text"
REPORT = "compile-report"
SANITIZER = "sanitizer-text"
KERNELS = "torch-kernels"
TRACE = "torch-profile"  # which another program shows
SHOWN_KINDS = (TEXT, REPORT, SANITIZER, KERNELS)
# That a page shows of a text. Nsight Compute prints some 8 KB for a kernel.
MAX_TEXT_BYTES = 64 << 10
# `warpcall_kernels.compile.launches` keeps 2 MiB of texts, which are longer as JSON.
MAX_REPORT_BYTES = 4 << 20
MAX_TABLE_BYTES = 64 << 10  # of the top kernels of a trace; the largest table has 10 KB
MAX_TOP = 20  # kernels of it
MAX_STRUCTURE_BYTES = 128 << 10  # without the content of texts; the largest report has 72 KB


@dataclass(frozen=True, slots=True, kw_only=True)
class Content:
    """An artefact as a page shows it: a text, a report, the top kernels of a trace, or a reason why
    there is none. Of a trace it has the name only.

    Attributes:
        error: why there is no file, as the artefact says.
        trouble: why the file is not shown.
        cut: whether the text is longer than `text`.
    """

    name: str
    kind: str
    implementation: str
    error: str = ""
    trouble: str = ""
    text: str = ""
    cut: bool = False
    report: CompileReport | None = None
    top: TopKernels | None = None

    @property
    def groups(self) -> list[list[tuple[str, KernelReport]]]:
        """The kernels of the report, each as the only version of itself."""
        return [] if self.report is None else [[("", one)] for one in self.report.kernels]


_Number = Annotated[float, Field(ge=0, le=MOST, allow_inf_nan=False)]


class _Kernel(KernelNumbers):
    model_config = ConfigDict(extra="ignore")  # the texts


class _Report(Strict):
    """What a page shows of a stored report. Its other fields are passed over."""

    model_config = ConfigDict(extra="ignore")

    op: Line
    case: Annotated[str, StringConstraints(max_length=4096), AfterValidator(one_line)]
    gpu: Line
    triton: Line
    ptxas: Line
    kernels: Annotated[list[_Kernel], Field(max_length=MAX_KERNELS, fail_fast=True)]
    failures: Annotated[list[Line], Field(max_length=MAX_KERNELS, fail_fast=True)]
    stopped: Line


class _TopKernel(Strict):
    name: Line
    launches: Annotated[int, Field(ge=0, le=MAX_COUNT)]
    total_us: _Number
    mean_us: _Number
    share: Annotated[float, Field(ge=0, le=1)]


class _TopKernels(Strict):
    what: Literal["kernels", "operators"]
    calls: Annotated[int, Field(ge=0, le=MAX_COUNT)]
    total_us: _Number
    kernels: Annotated[list[_TopKernel], Field(max_length=MAX_TOP, fail_fast=True)]
    others: Annotated[int, Field(ge=0, le=MAX_COUNT)]
    position: None
    implementation: Literal[""]


async def contents(artefacts: Artefacts, rows: Sequence[ArtefactRow]) -> list[Content]:
    """What these artefacts contain. All of them are of SHOWN_KINDS, or traces.

    They are read in threads, and at once, because each may wait for news of another server.
    """
    return await asyncio.gather(*(_content(artefacts, row) for row in rows))


async def _content(artefacts: Artefacts, row: ArtefactRow) -> Content:
    shown = Content(
        name=row.name, kind=row.kind, implementation=row.implementation, error=row.error
    )
    if row.error or row.kind == TRACE:
        return shown
    try:
        if row.kind == KERNELS:
            return await _with_table(artefacts, row, shown)
        if row.kind != REPORT:
            return await _with_text(artefacts, row, shown)
        return await _with_report(artefacts, row, shown)
    except OnOtherNode:
        trouble = "its file is on another server"
    except NodeGone:
        trouble = "its file is on a server that is gone"
    except Problem:
        trouble = "its file is lost or damaged"
    except OSError:
        trouble = "its file cannot be read"
    except ValidationError:
        what = "table of kernels" if row.kind == KERNELS else "compile report"
        trouble = f"its file is no {what}"
    return replace(shown, trouble=trouble)


async def _with_text(artefacts: Artefacts, row: ArtefactRow, shown: Content) -> Content:
    content = await artefacts.read(row, MAX_TEXT_BYTES)
    lines = content.decode(errors="replace").split("\n")
    return replace(shown, text="\n".join(map(one_line, lines)), cut=row.nbytes > len(content))


async def _with_table(artefacts: Artefacts, row: ArtefactRow, shown: Content) -> Content:
    """With the top kernels of a trace.

    Raises:
        ValidationError: the file does not have their form.
    """
    if row.nbytes > MAX_TABLE_BYTES:
        return replace(shown, trouble=_too_large(MAX_TABLE_BYTES, row.nbytes))
    content = await artefacts.read(row, MAX_TABLE_BYTES)
    found = _TopKernels.model_validate_json(content).model_dump()
    kernels = [TopKernel(**one) for one in found.pop("kernels")]
    return replace(shown, top=TopKernels(**found, kernels=kernels))


async def _with_report(artefacts: Artefacts, row: ArtefactRow, shown: Content) -> Content:
    if row.nbytes > MAX_REPORT_BYTES:
        return replace(shown, trouble=_too_large(MAX_REPORT_BYTES, row.nbytes))
    content = await artefacts.read(row, MAX_REPORT_BYTES)
    report = await asyncio.to_thread(_report, content, row.implementation)
    if report is None:
        return replace(shown, trouble="its file is no compile report")
    return replace(shown, report=report)


def _too_large(most: int, nbytes: int) -> str:
    limit, got = sizes(most, nbytes)
    return f"its file has {got}, and a page reads at most {limit}"


def _report(content: bytes, implementation: str) -> CompileReport | None:
    """A stored report without the texts of its kernels; None if a parser would take too long.

    Raises:
        ValidationError: it does not have the form of a report.
    """
    if structure_nbytes(content, MAX_STRUCTURE_BYTES) > MAX_STRUCTURE_BYTES:
        return None
    found = _Report.model_validate_json(content)
    kernels = [KernelReport(**one.model_dump(), texts={}) for one in found.kernels]
    fields = found.model_dump(exclude={"kernels"})
    return CompileReport(**fields, implementation=implementation, kernels=kernels)
