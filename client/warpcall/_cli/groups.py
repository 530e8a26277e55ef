"""Prints what the same job takes on several models of a GPU."""

from __future__ import annotations

from dataclasses import asdict

import typer

from warpcall._cli.files import UsageError
from warpcall._cli.job_output import all_right, goes_on, sanitizer_lines
from warpcall._cli.output import human_bytes, plural, print_json, write_lines
from warpcall._cli.tables import ago, by_case, microseconds, one_line, ratio, where
from warpcall._jobs.groups import JobGroup
from warpcall._jobs.progress import part_state, span
from warpcall.groups import GroupPart, GroupResults
from warpcall.jobs import COMPLETED, JobPreview
from warpcall.jobs.outcomes import LIMIT
from warpcall.jobs.results import Measurement, label_of, status_shown

COLUMNS = ("±", "ratio", "verdict")  # of each model, after its times


def gpus_of(text: str | None) -> list[str]:
    """The models that `--gpu` names: none, one, or several, separated by commas.

    Raises:
        UsageError: one of them is empty, or named twice.
    """
    if text is None:
        return []
    found = [one.strip() for one in text.split(",")]
    if not all(found) or len(set(found)) < len(found):
        raise UsageError(
            f"--gpu must be models separated by commas, each once, such as H100,H200, got {text!r:.60}"
        )
    return found


def print_group_preview(preview: JobPreview, gpus: list[str], *, as_json: bool) -> None:
    if as_json:
        print_json({"gpus": gpus, "job": asdict(preview)})
        return
    text = f"{plural(preview.cases, 'case')} on each of {', '.join(gpus)}"
    text += f", some {span(preview.estimated_s)} on each"
    write_lines(f"{text}, at most {human_bytes(preview.device_bytes)} on the device")


def print_group_detached(group: JobGroup, *, as_json: bool) -> None:
    if as_json:
        print_json(asdict(group.info))
        return
    write_lines(*(f"{part.gpu}: {_stands(part)}" for part in group.parts))
    write_lines(f"warpcall watch {group.id}", *_page(group))


def wait_and_print_group(group: JobGroup, *, as_json: bool) -> None:
    """Wait for the parts of a group, and print a table with columns for each model.

    Raises:
        typer.Exit: with 1 if a part did not succeed or has no device, an implementation failed, or
            compute-sanitizer found an error.
        KeyboardInterrupt: Ctrl-C. Standard error says how to come back to the group.
    """
    with goes_on(group.id):
        results = group.wait()
    if as_json:
        print_json(asdict(results))
    else:
        write_lines(*_page(group), *group_lines(results), *_page(group))
    jobs = [part.job for part in results.parts]
    if not all(job is not None and job.state in COMPLETED for job in jobs):
        raise typer.Exit(1)
    rows = [one for row in results.rows for one in row.times if one is not None]
    only_checked = all(job is not None and job.precision == "check" for job in jobs)
    if not all_right(rows, only_checked=only_checked):
        raise typer.Exit(1)


def group_lines(found: GroupResults) -> list[str]:
    """A line for each case, below it a row for each implementation with columns for each model, and
    what the models typically take."""
    lines = []
    if found.rows:
        names, rows = _table(found)
        lines += [
            f"times in us by GPU; ratio and verdict: to {found.rows[0].implementation} on the same one",
            *by_case(names, rows),
        ]
    lines += [one.sentence() for one in found.typical()]
    lines += [f"{part.gpu}: {_stands(part)}" for part in found.parts]
    for n, part in enumerate(found.parts):
        rows_there = [one for row in found.rows if (one := row.times[n]) is not None]
        lines += [f"{part.gpu}: {line}" for line in sanitizer_lines(rows_there)]
    lines += map(one_line, found.remarks)
    return lines + _errors(found)


def _table(found: GroupResults) -> tuple[list[str], list[tuple[str, str, list[str]]]]:
    """The names of the columns and the rows, without columns that are empty."""
    names = [name for part in found.parts for name in (part.gpu, *COLUMNS)]
    whole = [
        [
            cell
            for part, one in zip(found.parts, row.times, strict=True)
            for cell in _cells(part, one)
        ]
        for row in found.rows
    ]
    kept = [n for n in range(len(names)) if any(cells[n] for cells in whole)]
    rows = []
    for row, cells in zip(found.rows, whole, strict=True):
        is_verified = any(one is not None and one.verified for one in row.times)
        label = label_of(row.implementation, verified=is_verified)
        rows.append((row.case, label, [cells[n] for n in kept]))
    return [names[n] for n in kept], rows


def _cells(part: GroupPart, one: Measurement | None) -> tuple[str, str, str, str]:
    """The cells of a row for one model."""
    if one is None:
        return ("waiting" if part.waits_for_device else "-", "", "", "")
    if status := status_shown(one.status, one.median_us):
        return (status, "", "", "")
    verdict = "limit" if one.implementation == LIMIT else one.verdict or ""
    return microseconds(one.median_us), _width(one), ratio(one.ratio), verdict


def _width(row: Measurement) -> str:
    """The larger side of the interval of a time, over the time."""
    us, low, high = row.median_us, row.ci_low_us, row.ci_high_us
    if not us or low is None or high is None:
        return ""
    return f"{max(us - low, high - us) / us:.1%}"


def _stands(part: GroupPart) -> str:
    """Where a part stands: how its job ended, or what it waits for."""
    job = part.job
    if job is None:
        return part_state(part)
    if part.waits_for_device:
        return (
            f"{part_state(part)}, which no server that runs has; {job.id} begins when there is one"
        )
    if job.finished_at is None:
        return f"{job.id} {part_state(part)}"
    device = f" on {where(job)}" if where(job) else ""
    detail = f": {one_line(job.detail)}" if job.detail else ""
    return f"{job.id} {job.state}{device} in {span(job.took_s)}, {ago(job.finished_at)} ago{detail}"


def _errors(found: GroupResults) -> list[str]:
    return [
        f"{row.implementation} on {part.gpu}, {row.case}: {one_line(one.error)}"
        for row in found.rows
        for part, one in zip(found.parts, row.times, strict=True)
        if one is not None and one.error
    ]


def _page(group: JobGroup) -> list[str]:
    return [] if (page := group.page_url) is None else [page]
