"""What a job has measured as a table in Markdown, of the columns that a reader compares."""

from __future__ import annotations

from warpcall.groups import GroupResults, GroupRow
from warpcall.jobs import JobInfo
from warpcall.jobs.results import Measurement, Results, label_of, status_shown, why_no_verdict

HEAD = """\
| case | implementation | median us | 95 % interval | ratio | verdict | GB/s | of the limit |
| --- | --- | --: | --: | --: | --- | --: | --: |
"""


def results_markdown(job: JobInfo, found: Results) -> str:
    """A title, the remarks, and a line for each implementation of each case."""
    environment = _text(found.environment or "nothing yet")
    host = (found.fingerprint or {}).get("host")
    on = f" on the host {_text(str(host))}" if host else ""
    title = f"`{job.op}` on {environment}{on}, {job.precision}, job {job.id}\n\n"
    remarks = "".join(f"{_text(remark)}\n\n" for remark in found.remarks)
    return title + remarks + HEAD + "".join(map(_line, found.measurements))


def group_markdown(found: GroupResults) -> str:
    """A title, the remarks, and a line for each implementation of each case, with columns by model."""
    jobs = [part.job for part in found.parts if part.job is not None]
    gpus = [part.gpu for part in found.parts]
    title = f"`{jobs[0].op}` on {', '.join(map(_text, gpus))}, group {found.id}\n\n" if jobs else ""
    said = [*(one.sentence() for one in found.typical()), *found.remarks]
    remarks = "".join(f"{_text(one)}\n\n" for one in said)
    columns = "".join(f" {_text(gpu)} us | ratio | verdict |" for gpu in gpus)
    head = f"| case | implementation |{columns}\n| --- | --- |{' --: | --: | --- |' * len(gpus)}\n"
    return title + remarks + head + "".join(map(_group_line, found.rows))


def _group_line(row: GroupRow) -> str:
    cells = []
    for one in row.times:
        if one is None:
            cells += ["", "", ""]
            continue
        status = status_shown(one.status, one.median_us)
        why = "" if status else why_no_verdict(one.status, one.tags)
        median = status or ("" if one.median_us is None else f"{one.median_us:.2f}")
        ratio = "" if one.ratio is None else f"{one.ratio:.3f}"
        cells += [median, ratio, one.verdict or (f"none: {why}" if why else "")]
    return f"| {_text(row.case)} | {_text(row.implementation)} | {' | '.join(cells)} |\n"


def _line(row: Measurement) -> str:
    status = status_shown(row.status, row.median_us)
    why = "" if status else why_no_verdict(row.status, row.tags)
    verdict = row.verdict or (f"none: {why}" if why else "")
    ratio = "" if row.ratio is None else f"{row.ratio:.3f}"
    if row.ratio is not None and row.ratio_low is not None and row.ratio_high is not None:
        ratio += f" ({row.ratio_low:.3f} to {row.ratio_high:.3f})"
    interval = ""
    if row.ci_low_us is not None and row.ci_high_us is not None:
        interval = f"{row.ci_low_us:.2f} to {row.ci_high_us:.2f}"
    share = "" if row.share_of_limit is None else f"{100 * row.share_of_limit:.0f} %"
    median = status or ("" if row.median_us is None else f"{row.median_us:.2f}")
    speed = "" if row.gb_per_s is None else f"{row.gb_per_s:.0f}"
    return (
        f"| {_text(row.case)} | {_text(label_of(row.implementation, verified=row.verified))} | {median} | {interval} | {ratio} "
        f"| {verdict} | {speed} | {share} |\n"
    )


def _text(text: str) -> str:
    """A text on one line that ends no cell of a table."""
    line = "".join(char if char.isprintable() else " " for char in text)
    return line.replace("|", "\\|")
