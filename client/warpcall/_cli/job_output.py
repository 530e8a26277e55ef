"""Prints what a job would cost, that it was submitted, and what it measured."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict

import typer

from warpcall import JobFailed
from warpcall._cli.check_output import check_json, check_lines, passed
from warpcall._cli.output import human_bytes, plural, print_json, write_lines
from warpcall._cli.tables import (
    ago,
    converged,
    microseconds,
    one_line,
    remarks,
    results_lines,
    undecided_lines,
    where,
)
from warpcall._cli.upload_prints import printed_lines
from warpcall._jobs.job import Job
from warpcall._jobs.progress import span, waiting
from warpcall.artefacts import TopKernels
from warpcall.jobs import JobPreview, SubmittedJob, scores
from warpcall.jobs.outcomes import conclusive, outcomes_of, sentence
from warpcall.jobs.results import Measurement, Results

SANITIZER = "sanitizer-text"  # kind of artefacts
MOST_SANITIZER = 16  # lines
MOST_TABLES = 8  # of top kernels
MOST_TOP = 5  # kernels of each
KERNEL_CHARS = 60


def print_preview(preview: JobPreview, *, as_json: bool) -> None:
    if as_json:
        print_json(asdict(preview))
        return
    text = f"{plural(preview.cases, 'case')}, some {span(preview.estimated_s)}"
    text += f", at most {human_bytes(preview.device_bytes)} on the device"
    if preview.reuses:
        text += f"; {preview.reuses} has measured this already"
    write_lines(text)


def print_detached(job: Job, *, as_json: bool) -> None:
    if as_json:
        print_json(asdict(job.info))
        return
    if job.ended:
        text = f"{job.id} has measured this already; --fresh measures again"
    else:
        text = f"{job.id} {waiting(job)}, takes some {span(job.estimated_s)}"
    write_lines(text, f"warpcall watch {job.id}")
    if (page := job.page_url) is not None:
        write_lines(page)


@contextmanager
def goes_on(job: str) -> Iterator[None]:
    """After Ctrl-C, say how to come back to the job of this id."""
    try:
        yield
    except KeyboardInterrupt:
        sys.stderr.write(
            f"warpcall: {job} goes on: `warpcall watch {job}` comes back to it, "
            f"`warpcall cancel {job}` ends it\n"
        )
        raise


def wait_and_print(job: Job, *, as_json: bool) -> None:
    """Wait for a job and print its results.

    Raises:
        JobFailed: the job did not succeed. What it has measured is printed.
        typer.Exit: with 1 if an implementation failed or is wrong, or compute-sanitizer found an error.
        KeyboardInterrupt: Ctrl-C. Standard error says how to come back to the job.
    """
    failure: JobFailed | None = None
    measured_before = isinstance(job.info, SubmittedJob) and job.info.reused and job.ended
    try:
        with goes_on(job.id):
            results = job.wait()
    except JobFailed as error:
        failure, results = error, job.results()
    only_checked = job.precision == "check"
    if as_json:
        print_json(check_json(results) if only_checked else asdict(results))
    else:
        _print_results(job, results, " (--fresh measures anew)" if measured_before else "")
    if failure is not None:
        raise failure
    rows = results.measurements
    if not all_right(rows, only_checked=only_checked):
        raise typer.Exit(1)


def all_right(rows: Sequence[Measurement], *, only_checked: bool) -> bool:
    """Whether no implementation failed or is wrong, and compute-sanitizer found no error."""
    is_right = passed(rows) if only_checked else all(row.status == "ok" for row in rows)
    return is_right and not any(row.sanitizer_found for row in rows)


def artefact_lines(job: Job) -> list[str]:
    """What was asked for beside times: how many artefacts there are, and why some are missing."""
    asked = getattr(job.info, "request", {})
    if asked.get("profile") is None and not asked.get("sanitize"):
        return []
    found = job.artefacts()
    stored = sum(not one.error for one in found)
    # The rows of the results say why compute-sanitizer was not run.
    failed = [one for one in found if one.error and one.kind != SANITIZER]
    lines = [f"{one.name}: {one_line(one.error)}" for one in failed]
    if asked.get("profile") == "torch":
        lines += top_kernel_lines(job.top_kernels())
    if stored:
        lines.append(f"{plural(stored, 'artefact')}: warpcall artefacts {job.id}")
    return lines


def top_kernel_lines(tables: Sequence[TopKernels]) -> list[str]:
    """The top kernels of traces: a line for each trace, and below it one for each kernel."""
    lines = []
    for one in tables[:MOST_TABLES]:
        of = f"{one.implementation}, case {one.position}, {plural(one.calls, 'call')}"
        lines.append(f"top {one.what} of {one_line(of)}: total us, mean us, launches")
        lines += [
            f"  {kernel.share:>5.1%} {microseconds(kernel.total_us):>9} "
            f"{microseconds(kernel.mean_us):>9} {kernel.launches:>5}  {one_line(kernel.name)[:KERNEL_CHARS]}"
            for kernel in one.kernels[:MOST_TOP]
        ]
    more = len(tables) - MOST_TABLES
    return [*lines, *([f"the pages of the cases have {more} more traces"] if more > 0 else [])]


def sanitizer_lines(rows: Sequence[Measurement]) -> list[str]:
    """What compute-sanitizer found: a line for each tool in each row, those with errors first."""
    ordered = sorted(rows, key=lambda row: not row.sanitizer_found)
    found = [
        f"sanitizer: {row.implementation}, {row.case}: {tool}: {one_line(text)}"
        for row in ordered
        for tool, text in row.sanitizer.items()
    ]
    more = len(found) - MOST_SANITIZER
    return [*found[:MOST_SANITIZER], *([f"sanitizer: {more} more lines"] if more > 0 else [])]


def _print_results(job: Job, results: Results, hint: str) -> None:
    lines = []
    if job.precision == "check":
        asked = getattr(job.info, "request", {})
        lines += check_lines(results, odd=not {"cases", "sweep"} & asked.keys())
        printed = printed_lines(job, results.measurements)
        more = [
            *_times(job),
            *printed,
            *sanitizer_lines(results.measurements),
            *artefact_lines(job),
        ]
        write_lines(*lines, f"{job.id} {_end(job, hint)}", *more)
        return
    about = conclusive(outcomes_of(job.implementations, results.measurements))
    ends = [*map(sentence, about), *([] if (page := job.page_url) is None else [page])]
    lines += ends
    if results.measurements:
        lines += results_lines(results, job.implementations[0])
    lines.append(f"{job.id} {_end(job, hint)}, {converged(results)}")
    lines += [scores.sentence(one.score) for one in about if one.score and one.cases > 1]
    lines += _times(job)
    lines += undecided_lines(results, job.precision)
    lines += remarks(results)
    lines += printed_lines(job, results.measurements)
    lines += sanitizer_lines(results.measurements)
    lines += artefact_lines(job)
    write_lines(*lines, *ends)


def _end(job: Job, hint: str) -> str:
    """How, where and when a job ended."""
    device = f" on {where(job)}" if where(job) else ""
    when = f"{ago(job.finished_at)} ago{hint}" if job.finished_at else "just now"
    return f"{job.state}{device} in {span(job.took_s)}, {when}"


def _times(job: Job) -> list[str]:
    """Where the time of a job went."""
    if (spent := job.times) is None:
        return []
    waited, held, compiled = map(span, (spent.device_wait_s, spent.device_s, spent.compile_s))
    set_up = f", set up for {span(spent.setup_s)}" if spent.setup_s else ""
    return [f"waited {waited} for the device, had it for {held}, compiled for {compiled}{set_up}"]
