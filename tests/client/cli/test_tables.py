"""Tables of results stay readable on a terminal of 80 columns."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from rich.console import Console
from rich.table import Table

from tests.client.implementations.scripted_lab import RESULTS, row
from tests.client.job_answers import JOB
from warpcall._cli.output import human_bytes, plural
from warpcall._cli.tables import (
    MAX_TRACEBACK,
    MOST_UNDECIDED,
    board_lines,
    comparison_lines,
    devices_table,
    history_table,
    jobs_table,
    loads_table,
    queue_table,
    ratio,
    remarks,
    results_lines,
    undecided_lines,
)
from warpcall._jobs.parse import parse
from warpcall.devices import Device, DeviceReading, DeviceStep
from warpcall.jobs import JobInfo, Queue, QueueEntry
from warpcall.jobs.results import Board, ComparedRow, Comparison, History, Results

FULL = {
    "median_us": 1234.5, "ci_low_us": 1233.0, "ci_high_us": 1235.0, "ratio": 12.345,
    "ratio_low": 12.344, "ratio_high": 12.346, "gb_per_s": 4123.4, "share_of_limit": 1.01,
}  # fmt: skip


def lines_of(names: list[str], verdict: str) -> list[str]:
    rows = [row(name, **FULL, verdict=verdict) for name in names]
    return results_lines(parse(Results, {**RESULTS, "measurements": rows}, "results"), names[0])[1:]


@pytest.mark.parametrize("verdict", ["same", "undecided"])
def test_rows_fit_into_80_columns_whatever_the_names(verdict: str) -> None:
    names = [
        "torch.compile",
        "ann/my_permute@3f2a91c0",
        "ann@lab.org/" + "x" * 48 + "@3f2a91c0ffee",
    ]

    lines = lines_of(names, verdict)

    assert max(map(len, lines)) <= 80
    assert [line.rpartition(verdict)[2].split() for line in lines if verdict in line] == [
        ["4123", "101%"]
    ] * 3


@pytest.mark.parametrize(
    ("nbytes", "shown"),
    [
        (0, "0 bytes"), (1, "1 byte"), (1023, "1,023 bytes"), (1024, "1 KiB"), (1536, "1.5 KiB"),
        (147_456, "144 KiB"), (1023 * 1024 + 1000, "1 MiB"), (512 << 20, "512 MiB"),
        (3 << 29, "1.5 GiB"), (1 << 40, "1 TiB"), (1 << 51, "2,048 TiB"),
    ],
)  # fmt: skip
def test_sizes_are_written_for_people(nbytes: int, shown: str) -> None:
    assert human_bytes(nbytes) == shown


def test_a_noun_is_plural_unless_there_is_one() -> None:
    assert [plural(n, "case") for n in (0, 1, 2, 1000)] == [
        "0 cases", "1 case", "2 cases", "1,000 cases",
    ]  # fmt: skip


def test_what_top_shows_fits_into_80_columns(capsys: pytest.CaptureFixture[str]) -> None:
    reading = DeviceReading(
        load=0.97, memory_bytes=34 << 30, memory_total_bytes=140 << 30, sm_clock_mhz=1980,
        power_w=612.3, temperature_c=61, throttled="", power_capped=False, other_processes=None,
    )  # fmt: skip
    step = DeviceStep(started_at="", calls=9, calls_s=1.0, blocks_s=0.0, reading=reading)
    device = Device(
        name="cuda:7", label="cuda:7 (NVIDIA H200)", state="ready", reason="", queued=1200,
        in_flight=2, restarts=0, step_s=10.0, steps=[step],
    )  # fmt: skip
    entry = QueueEntry(
        id="bac0a87aa76b", user="benedict", op="masked-softmax-backward", state="running",
        cases_done=120, cases_total=1000, priority="low", position=0, starts_in_s=0.0,
        ends_in_s=7000.0, device="cuda:7", precision="publish", estimated_s=7200.0,
    )  # fmt: skip

    console = Console(width=80)
    console.print(loads_table([device]))
    console.print(queue_table(Queue(devices=1, entries=[entry])))

    head, load, names, *queue = capsys.readouterr().out.splitlines()
    words = "cuda:7 NVIDIA H200 ready 97% 34 GiB of 140 GiB 612 1202"
    assert head.split()[0] == "device"
    assert load.split() == words.split(), "one line"
    assert names.split() == ["id", "user", "title", "state", "cases", "when"]
    shown = " ".join(queue)
    assert max(map(len, [head, load, names, *queue])) <= 80
    assert "> bac0a87aa76b benedict" in " ".join(shown.split())
    for text in ("120/1000", "1.9 h left", "running, low"):
        assert text in " ".join(shown.split())


@pytest.mark.parametrize("table", [loads_table, devices_table])
def test_devices_of_several_servers_are_shown_with_their_hosts(
    table: Callable[[list[Device]], Table], capsys: pytest.CaptureFixture[str]
) -> None:
    def device(node: str, host: str) -> Device:
        return Device(
            name="cpu", label="cpu (x)", state="ready", reason="", queued=0, in_flight=0,
            restarts=0, step_s=10.0, steps=[], node=node, host=host,
        )  # fmt: skip

    console = Console(width=80)
    for devices in (
        [device("aaaa1", "one"), device("bbbb1", "two")],
        [device("aaaa1", "one"), device("bbbb1", "one")],
        [device("aaaa1", "one")],
    ):
        console.print(table(devices))

    shown = capsys.readouterr().out.splitlines()
    begins = [line.partition(" cpu")[0].strip() for line in shown if "cpu" in line]
    assert begins[:4] == ["one", "two", "one aaaa", "one bbbb"]
    assert shown[-1].startswith("cpu")


def test_devices_are_shown_without_columns_that_are_empty(
    capsys: pytest.CaptureFixture[str],
) -> None:
    nothing = dict.fromkeys(("sm_clock_mhz", "power_w", "temperature_c", "other_processes"))
    of_cpu = {"load": 1, "memory_bytes": 2**31, "memory_total_bytes": 2**34, **nothing}
    reading = parse(DeviceReading, {**of_cpu, "throttled": "", "power_capped": False}, "")
    step = DeviceStep(started_at="", calls=9, calls_s=1.0, blocks_s=0.0, reading=reading)
    device = Device(
        name="cpu", label="cpu (torch reference)", state="ready", reason="", queued=0,
        in_flight=0, restarts=0, step_s=10.0, steps=[step],
    )  # fmt: skip

    Console(width=80).print(devices_table([device]))

    head, cells = capsys.readouterr().out.splitlines()
    assert head.split() == ["device", "state", "load", "memory", "calls", "blocks"]
    assert cells.split() == [
        "cpu",
        "(torch",
        "reference)",
        "ready",
        "100%",
        "2.1/17",
        "GB",
        "9",
        "0",
        "s",
    ]
    assert "steps" not in repr(device)


def test_a_long_name_has_a_line_of_its_own_above_its_times() -> None:
    head, _case, short, name, times = lines_of(["warpcall", "ann/my_permute@3f2a91c0"], "slower")

    assert name == "  ann/my_permute@3f2a91c0"
    assert times.split()[0] == "1,234"
    assert len(head) == len(short) == len(times) <= 80
    assert short.startswith("  warpcall ")


def test_a_name_that_fits_stands_beside_its_times() -> None:
    _, _, ours, theirs = lines_of(["warpcall", "ann/permute"], "slower")

    assert theirs.startswith("  ann/permute ")
    assert len(ours) == len(theirs)


def test_a_table_of_long_names_only_is_aligned() -> None:
    head, _case, name, times = lines_of(["bob/somebody-elses-permute@3f2a91c0"], "faster")

    assert name.strip() == "bob/somebody-elses-permute@3f2a91c0"
    assert len(head) == len(times)


def test_remarks_and_tracebacks_follow_each_once() -> None:
    error = {"status": "error", "error": "KeyError: 'x'", "median_us": None}
    deep = {**error, "traceback": "my.py, line 3\n\tx['x']\nKeyError: 'x'"}
    other = {**deep, "traceback": "my.py, line 9"}
    rows = [row("ann/a", case="1", **deep), row("ann/a", case="2", **deep),
            row("ann/a", case="3", **other), row("ann/b", case="1", **error)]  # fmt: skip
    payload = {**RESULTS, "measurements": rows, "remarks": ["no GPU: so nothing"]}

    assert remarks(parse(Results, payload, "results")) == [
        "no GPU: so nothing",
        "ann/a, 1: KeyError: 'x'",
        "  my.py, line 3",
        "          x['x']",
        "  KeyError: 'x'",
        "ann/a, 2: KeyError: 'x'",
        "ann/a, 3: KeyError: 'x'",
        "  my.py, line 9",
        "ann/b, 1: KeyError: 'x'",
    ]


def test_the_tags_of_each_implementation_are_listed_once() -> None:
    rows = [row("ann/a", case="1", tags=["suspect"]), row("torch", case="1", tags=[]),
            row("ann/a", case="2", tags=["interpreted", "suspect"])]  # fmt: skip

    found = remarks(parse(Results, {**RESULTS, "measurements": rows}, "results"))

    assert "tags of ann/a: interpreted, suspect" in found
    assert not any("torch" in line for line in found)


def test_a_large_ratio_has_few_digits() -> None:
    assert [ratio(value) for value in (None, 0.5, 99.9994, 100, 215.9081, 12345.6)] == [
        "", "0.500", "99.999", "100", "215.9", "12,346",
    ]  # fmt: skip


def test_a_traceback_is_short_however_long_the_servers_is() -> None:
    endless = row("ann/a", status="error", error="no", traceback="x\n" * 1_000_000)

    lines = remarks(parse(Results, {**RESULTS, "measurements": [endless]}, "results"))

    assert len(lines) <= 1 + MAX_TRACEBACK


def test_a_comparison_names_what_is_no_basis_for_a_verdict() -> None:
    row = ComparedRow(
        case="permute x=F32[8,8] dims=1,0", implementation="ann/mine", a_us=1.0, b_us=2.0,
        ratio=None, ratio_low=None, ratio_high=None, verdict=None, relative_to_copy=True,
        margin=0.01, repeats=6, why="suspect in b",
    )  # fmt: skip
    found = Comparison(
        a="a", b="b", same_environment=True, differences={}, rows=[row], only_a=[], only_b=[]
    )

    *_, cells, why = comparison_lines(found)

    assert cells.split() == ["ann/mine", "1", "2", "1.0%", "none"]
    assert why == "no verdict on ann/mine, permute x=F32[8,8] dims=1,0: suspect in b"


def test_a_history_marks_what_is_no_basis_for_a_verdict() -> None:
    given: list[dict[str, Any]] = [
        {},
        {"tags": ["suspect"]},
        {"status": "invalid"},
        {"median_us": None},
    ]
    points = [
        {
            "job": "j1", "user": "ann", "finished_at": "2026-01-01T00:00:00.000Z",
            "environment": "", "changed": [], "measurement": row("ann/mine", **change),
        }
        for change in given
    ]  # fmt: skip
    found = parse(
        History,
        {"op": "permute", "implementation": "ann/mine", "case": "c", "points": points},
        "a history",
    )

    table = history_table(found)

    assert [str(cell) for cell in table.columns[3].cells] == [
        "10",
        "10 suspect",
        "invalid",
        "right",
    ]


def test_a_board_lists_results_without_a_rank_below_the_others() -> None:
    entry = {
        "rank": 1, "implementation": "torch", "median_us": 2.0, "relative": 1.0,
        "relative_low": 1.0, "relative_high": 1.0, "job": "j1", "user": "ann", "finished_at": "",
    }  # fmt: skip
    other = {**entry, "rank": None, "implementation": "ann/mine", "tags": ["suspect"]}
    standings = [
        {"case": "c", "entries": [entry], "unranked": [other]},
        {"case": "d", "entries": [entry]},  # as an older server answers
    ]
    board = {"op": "permute", "device": "H200", "devices": [], "steps": [], "standings": standings}

    lines = board_lines(parse(Board, board, "a board"))

    rows = [line.split()[:2] for line in lines if line.startswith("  ")]
    assert rows[1:] == [["torch", "1"], ["ann/mine", "-"], ["torch", "1"]]
    assert lines[-1] == "no rank for ann/mine, c: suspect"


def test_verified_kernels_are_marked_and_a_board_says_why_other_uploads_have_no_rank() -> None:
    entry = {
        "rank": 1, "implementation": "ann/fast", "median_us": 2.0, "relative": 1.0,
        "relative_low": 1.0, "relative_high": 1.0, "job": "j1", "user": "ann", "finished_at": "",
        "verified": True,
    }  # fmt: skip
    plain = {"implementation": "bob/plain", "rank": None, "tags": ["not verified"]}
    standings = [
        {"case": "c", "entries": [entry], "unranked": [{**entry, **plain, "verified": False}]}
    ]
    board = {"op": "permute", "device": "H200", "devices": [], "steps": [], "standings": standings}
    results = {**RESULTS, "measurements": [row("torch"), row("ann/fast", verified=True)]}

    lines = board_lines(parse(Board, board, "a board"))
    table = results_lines(parse(Results, results, "results"), "torch")

    assert "of uploads only verified kernels have a rank; --all ranks all of them" in lines
    assert any(line.startswith("  ann/fast (verified) ") for line in lines)
    assert lines[-1] == "no rank for bob/plain, c: not verified"
    assert any(line.startswith("  ann/fast (verified) ") for line in table)
    assert any(line.startswith("  torch  ") for line in table)


def test_a_comparison_shows_its_margin_and_how_to_learn_one() -> None:
    def lines(margin: float | None) -> list[str]:
        row = ComparedRow(
            case="permute x=F32[8,8] dims=1,0", implementation="torch.compile",
            a_us=1234.5, b_us=1296.2, ratio=1.05, ratio_low=1.049, ratio_high=1.051,
            verdict="slower", relative_to_copy=True, margin=margin, repeats=6,
        )  # fmt: skip
        found = Comparison(
            a="a", b="b", same_environment=True, differences={}, rows=[row], only_a=[], only_b=[]
        )
        return comparison_lines(found)

    known, unknown = lines(0.0123), lines(None)

    assert known[-1].split()[-2:] == ["1.2%", "slower"]
    assert unknown[-2].split()[-2] == "unknown"
    assert "--fresh" in unknown[-1]
    assert max(map(len, [*known[2:], *unknown[2:-1]])) <= 80


@pytest.mark.parametrize("users", [["alice"], ["alice", "bob"]])
def test_a_list_of_jobs_says_what_each_found(
    users: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    counts = {"faster": 1, "undecided": 3}
    found: dict[str, Any] = {"implementation": "alice/mine", "against": "torch", "counts": counts}
    ended = {"state": "succeeded", "outcome": {**found, "typical": 0.92}, "name": "try 3"}
    jobs = [parse(JobInfo, {**JOB, **ended, "user": user}, "a job") for user in users]
    running = parse(JobInfo, {**JOB, "cases_total": 2}, "a job")

    Console(width=140).print(jobs_table([*jobs, running], short=True))

    head, *rows = capsys.readouterr().out.splitlines()
    columns = ["id", "job", "outcome", *(["user"] if len(users) > 1 else []), "age"]
    assert head.split() == columns
    for line in rows[: len(users)]:
        assert "try 3 [a]   " in line
        assert "mine 0.92x of torch, faster in 1 of 4, undecided" in line
    rest = " ".join(" ".join(rows[len(users) :]).split())
    assert f"{JOB['first_case']} + 1 more: warpcall, torch [a]" in rest
    assert " running " in rest


def test_undecided_rows_say_why_but_not_all_of_many() -> None:
    bounds = {"ratio": 1.2, "ratio_low": 1.196, "ratio_high": 1.26, "verdict": "undecided"}
    rows = [row("torch", **bounds, position=number) for number in range(10)]
    results = parse(Results, {**RESULTS, "measurements": rows}, "results")

    lines = undecided_lines(results, "quick")

    assert len(lines) == MOST_UNDECIDED + 1
    assert lines[0].endswith(
        "undecided: the interval 1.196 to 1.260 crosses the margin of ± 0.0 %; "
        "--precision standard measures longer"
    )
    assert lines[-1] == "undecided in 2 more rows"
