"""What pages show of profiles: the texts of Nsight Compute and of compute-sanitizer, and the kernels
of a compile report.

The files are made where code of users runs, so none of them is trusted: each is read up to a bound,
a report must have the form of reports, and texts are made printable.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Annotated

from pydantic import AfterValidator, ConfigDict, Field, StringConstraints, ValidationError

from warpcall.compile_reports import CompileReport, KernelReport
from warpcall.errors import NodeGone, OnOtherNode, Problem, sizes
from warpcall_bench.artefacts.service import Artefacts
from warpcall_bench.artefacts.tables import ArtefactRow
from warpcall_bench.json_body import structure_nbytes
from warpcall_bench.runs.results import Strict
from warpcall_bench.uploads.answers import MAX_KERNELS, KernelNumbers, Line, one_line

TEXT = "ncu-text"
REPORT = "compile-report"
SANITIZER = "sanitizer-text"
SHOWN_KINDS = (TEXT, REPORT, SANITIZER)
# That a page shows of a text. Nsight Compute prints some 8 KB for a kernel.
MAX_TEXT_BYTES = 64 << 10
# `warpcall_kernels.compile.launches` keeps 2 MiB of texts, which are longer as JSON.
MAX_REPORT_BYTES = 4 << 20
MAX_STRUCTURE_BYTES = 128 << 10  # without the content of texts; the largest report has 72 KB


@dataclass(frozen=True, slots=True, kw_only=True)
class Content:
    """An artefact as a page shows it: a text, a report, or a reason why there is none.

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

    @property
    def groups(self) -> list[list[tuple[str, KernelReport]]]:
        """The kernels of the report, each as the only version of itself."""
        return [] if self.report is None else [[("", one)] for one in self.report.kernels]


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


async def contents(artefacts: Artefacts, rows: Sequence[ArtefactRow]) -> list[Content]:
    """What these artefacts contain. All of them are of SHOWN_KINDS.

    They are read in threads, and at once, because each may wait for news of another server.
    """
    return await asyncio.gather(*(_content(artefacts, row) for row in rows))


async def _content(artefacts: Artefacts, row: ArtefactRow) -> Content:
    shown = Content(
        name=row.name, kind=row.kind, implementation=row.implementation, error=row.error
    )
    if row.error:
        return shown
    try:
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
        trouble = "its file is no compile report"
    return replace(shown, trouble=trouble)


async def _with_text(artefacts: Artefacts, row: ArtefactRow, shown: Content) -> Content:
    content = await artefacts.read(row, MAX_TEXT_BYTES)
    lines = content.decode(errors="replace").split("\n")
    return replace(shown, text="\n".join(map(one_line, lines)), cut=row.nbytes > len(content))


async def _with_report(artefacts: Artefacts, row: ArtefactRow, shown: Content) -> Content:
    if row.nbytes > MAX_REPORT_BYTES:
        limit, got = sizes(MAX_REPORT_BYTES, row.nbytes)
        return replace(shown, trouble=f"its file has {got}, and a page reads at most {limit}")
    content = await artefacts.read(row, MAX_REPORT_BYTES)
    report = await asyncio.to_thread(_report, content, row.implementation)
    if report is None:
        return replace(shown, trouble="its file is no compile report")
    return replace(shown, report=report)


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
