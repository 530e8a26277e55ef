"""Results of a job as a table in Markdown: its columns, and texts that would break it."""

from __future__ import annotations

from dataclasses import fields
from typing import Any

from tests.client.job_answers import JOB
from warpcall._jobs.markdown import results_markdown
from warpcall._jobs.parse import parse
from warpcall.jobs import JobInfo
from warpcall.jobs.results import Measurement, Results

JOB_INFO = parse(JobInfo, JOB, "a job")
EMPTY: dict[str, Any] = {field.name: None for field in fields(Measurement)}
TIMED = {
    "median_us": 2.0, "ci_low_us": 1.5, "ci_high_us": 2.25, "gb_per_s": 123.4, "share_of_limit": 0.5
}  # fmt: skip
FASTER = {"ratio": 0.5, "ratio_low": 0.25, "ratio_high": 0.75, "verdict": "faster"}


def lines(
    *rows: dict[str, Any], remarks: tuple[str, ...] = (), on: str | None = "cpu"
) -> list[str]:
    measured = [
        Measurement(**{**EMPTY, "case": "c", "implementation": "torch", "status": "ok", "tags": [], **row})
        for row in rows
    ]  # fmt: skip
    found = Results(
        id="j1", state="running", environment=on, fingerprint=None, remarks=[*remarks],
        measurements=measured, cases=[],
    )  # fmt: skip
    return results_markdown(JOB_INFO, found).splitlines()


def test_each_row_has_its_time_its_ratio_and_its_verdict() -> None:
    suspect = {**TIMED, "tags": ["suspect"]}

    found = lines(
        TIMED, {**TIMED, **FASTER}, {**TIMED, "ratio": 1.0}, suspect, {"status": "oom"}, {}
    )

    title, _, head, _, *rows = found
    assert title == "`permute` on cpu, quick, job j1"
    assert head.startswith(
        "| case | implementation | median us | 95 % interval | ratio | verdict |"
    )
    assert rows == [
        "| c | torch | 2.00 | 1.50 to 2.25 |  |  | 123 | 50 % |",
        "| c | torch | 2.00 | 1.50 to 2.25 | 0.500 (0.250 to 0.750) | faster | 123 | 50 % |",
        "| c | torch | 2.00 | 1.50 to 2.25 | 1.000 |  | 123 | 50 % |",
        "| c | torch | 2.00 | 1.50 to 2.25 |  | none: suspect | 123 | 50 % |",
        "| c | torch | oom |  |  |  |  |  |",
        "| c | torch | right |  |  |  |  |  |",
    ]


def test_a_job_that_has_measured_nothing_yet_has_an_empty_table() -> None:
    title, *_, last = lines(on=None)

    assert title == "`permute` on nothing yet, quick, job j1"
    assert last.startswith("| --- |")


def test_no_text_breaks_the_table() -> None:
    hidden = "a | b\n| c\x1b[2J\u202e"

    found = lines({"case": hidden, "implementation": hidden}, remarks=(hidden,), on=hidden)

    assert len(found) == 7
    assert all(line.isprintable() for line in found)
    assert {line.replace("\\|", "").count("|") for line in found if line.startswith("| ")} == {9}


def test_a_verified_kernel_is_marked() -> None:
    found = lines({**TIMED, "implementation": "ann/fast", "verified": True}, TIMED)

    assert found[-2].startswith("| c | ann/fast (verified) | 2.00 |")
    assert found[-1].startswith("| c | torch | 2.00 |")
