"""Benchmark jobs from Python and from a shell, on a real server's CPU lane."""

from __future__ import annotations

import asyncio
import csv
import io
import json
import os
import pty
import re
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from demo.server import Server
from tests.e2e.command import Warpcall
from tests.waiting import until
from warpcall import AsyncClient, Client, InvalidInput, JobFailed, NotFound
from warpcall.jobs import JobPreview
from warpcall.jobs.results import History

pytestmark = pytest.mark.slow

CASE = {"shape": [8, 8], "dtype": "F32", "params": {"dims": [1, 0]}}
LONG = [{**CASE, "shape": [8, n]} for n in range(9, 29)]
BENCH = ("bench", "permute", "--shape", "8x8", "--dtype", "fp32", "--dims", "1,0")
NO_GPU = "no GPU: warpcall runs plain torch here, so nothing can be concluded about its kernels"
QUICK = (*BENCH, "--vs", "copy", "--precision", "quick")


@pytest.fixture
def gpu(server: Server) -> Iterator[Client]:
    with Client(server.url) as gpu:
        yield gpu


@pytest.fixture(scope="module")
def measured(server: Server) -> str:
    """The id of a job that has measured QUICK, submitted and awaited as a program does it."""
    sweep = {"shapes": [(8, 8)], "dtypes": ["F32"], "params": {"dims": [(1, 0)]}}
    with Client(server.url) as gpu:
        job = gpu.jobs.submit(
            "permute", implementations=("warpcall", "copy"), sweep=sweep, precision="quick"
        )
        ours, copy = job.wait().measurements

        assert job.ended
        assert (job.state, job.cases_done) == ("succeeded", 1)
        assert (ours.implementation, ours.ratio) == ("warpcall", None)
        low, median, high = (us or 0 for us in (copy.ci_low_us, copy.median_us, copy.ci_high_us))
        assert 0 < low <= median <= high
        assert copy.share_of_limit == 1
        return job.id


def test_what_was_measured_is_returned_again_and_compared(measured: str, gpu: Client) -> None:
    job = gpu.jobs.get(measured)

    happened = list(job.events())
    late = list(job.events(after=happened[-2].sequence))
    results = gpu.jobs.results(measured, samples=True)
    same = gpu.jobs.compare(measured, measured)
    printed = {str(results), str(same), str(gpu.jobs.board("permute"))}
    alone = job.case(0)
    progress = job.progress()

    assert all("\npermute x=F32[8,8] dims=1,0\n  " in text for text in printed)
    assert [event.sequence for event in happened] == list(range(1, len(happened) + 1))
    assert happened[-1].data["state"] == "succeeded"
    assert "rounds" in {phase.name for phase in progress.phases}
    assert (progress.id, progress.state, progress.now) == (measured, "succeeded", None)
    assert late == happened[-1:]
    case, copied = results.cases[0], results.measurements[1]
    masked = {mask["round"] for mask in case.masked}
    assert case.samples_us is not None
    # The last round has no sample of `copy` if the time was over before its turn.
    taken = [number for number, us in enumerate(case.samples_us["copy"]) if us is not None]
    assert copied.n == len({*taken} - masked)
    assert {*range(len(taken))} - {*taken} == set(), "only the last round may lack a sample"
    assert [(row.ratio, row.why) for row in same.rows] == [(None, "plain torch in a"), (1, "")]
    assert (alone.job, alone.op, alone.case) == (measured, "permute", case.case)
    assert (alone.samples_us, alone.masked) == (case.samples_us, case.masked)
    assert alone.measurements == [row for row in results.measurements if row.position == 0]
    assert {*alone.input_sets} <= {0, 1}
    with pytest.raises(NotFound, match="none of them at position 99"):
        job.case(99)
    with pytest.raises(InvalidInput, match="at least 0"):
        job.case(-1)
    assert measured in [found.id for found in gpu.jobs.list(op="permute", state="succeeded")]
    assert gpu.jobs.list(tag="nobody") == []


def test_a_series_and_what_a_job_would_come_to(
    measured: str, gpu: Client, server: Server, warpcall: Warpcall
) -> None:
    ours = gpu.jobs.results(measured).measurements[0]
    cases = [CASE, {**CASE, "shape": [8, 9]}]

    async def ask() -> tuple[History, JobPreview]:
        async with AsyncClient(server.url) as other:
            series = await other.jobs.history(ours.case)
            return series, await other.jobs.preview("permute", cases=cases, precision="quick")

    series = gpu.jobs.history(ours.case, limit=1)
    copies = gpu.jobs.history(ours.case, implementation="copy")
    preview = gpu.jobs.preview("permute", cases=cases, precision="quick")
    (device,) = gpu.devices()
    board, of_case = gpu.jobs.board("permute"), gpu.jobs.board("permute", case=ours.case)
    shown = warpcall("board", "permute", "--case", ours.case)
    code, out, _ = warpcall("history", ours.case, "--limit", "1")
    nothing = warpcall("history", ours.case, "--implementation", "torch")
    none = warpcall("history", "")
    dry = warpcall(*BENCH, "--shape", "8x8,8x9", "--precision", "quick", "--dry-run")
    again = warpcall(*QUICK, "--dry-run", "--json")

    assert [(p.job, p.measurement) for p in series.points] == [(measured, ours)]
    assert [p.measurement.implementation for p in copies.points] == ["copy"]
    assert (preview.cases, preview.reuses) == (2, None)
    assert asyncio.run(ask()) == (series, preview)
    assert sum(step.blocks_s for step in device.steps) > 0
    assert ours.case in {standing.case for standing in board.standings}
    assert [standing.case for standing in of_case.standings] == [ours.case]
    assert {step.implementation for step in of_case.steps} == {
        entry.implementation for entry in of_case.standings[0].entries
    }
    assert shown[0] == 0
    assert shown[1].splitlines()[2].split()[:3] == ["rank", "median", "of"]
    assert warpcall("board", "conv")[1] == "no job that you may read has a valid result of conv\n"
    assert code == 0
    assert out.splitlines()[0].split()[:4] == ["measured", "job", "user", "us"]
    assert f" {measured} " in out.splitlines()[1]
    assert nothing[:2] == (0, "no job that you may read has measured torch in that case\n")
    assert none[0] != 0
    assert "case must begin with its op, as results have it, got ''" in none[2]
    assert dry[1].startswith("2 cases, some ")
    assert json.loads(again[1])["reuses"] == measured


def test_a_case_is_named_by_the_options_of_bench_and_an_id_by_its_beginning(
    measured: str, warpcall: Warpcall
) -> None:
    key = "permute x=F32[8,8] dims=1,0"
    options = ("--shape", "8x8", "--dtype", "fp32", "--dims", "1,0", "--json")

    whole = warpcall("history", key, "--json")
    bare = warpcall("history", *key.split(), "--json")
    named = warpcall("history", "permute", *options)
    several = warpcall("history", "permute", "--shape", "8x8,8x9", *options[2:-1])
    watched = warpcall("watch", measured[:6])

    assert json.loads(whole[1])["points"]
    assert whole == bare == named
    assert [line for line in several[1].splitlines() if line.startswith("permute")] == [
        key,
        "permute x=F32[8,9] dims=1,0",
    ]
    assert f"\n{measured} succeeded on {socket.gethostname()} " in watched[1]
    assert warpcall("cancel", measured[:6])[1] == f"{measured} had ended before: succeeded\n"


def test_the_history_of_an_op_lists_its_measured_cases(measured: str, warpcall: Warpcall) -> None:
    key = "permute x=F32[8,8] dims=1,0"

    code, out, _ = warpcall("history", "permute")
    cases = json.loads(warpcall("history", "permute", "--json")[1])
    ours = warpcall("history", "permute", "--implementation", "nobody/fast")
    one = warpcall("history", "permute", "--limit", "1")
    unmeasured, unknown = warpcall("history", "conv"), warpcall("history", "permut")
    incomplete = warpcall("history", "permute", "--dtype", "fp32")

    assert code == 0
    assert out.splitlines()[0].split() == ["case", "implementations", "best", "measured"]
    (line,) = [line for line in out.splitlines() if line.startswith(key)]
    assert "warpcall" in line
    assert key in [case["case"] for case in cases]
    assert [line.startswith("permute") for line in one[1].splitlines()].count(True) == 1
    assert one[1].splitlines()[-1].startswith("`warpcall history 'permute x=")
    assert ours[1] == "no job that you may read has a valid result of permute\n"
    assert unmeasured[1] == "no job that you may read has a valid result of conv\n"
    assert unknown[0] == 1
    assert "permut" in unknown[2]
    assert incomplete[0] == 2
    assert measured


def test_results_are_written_to_a_file_in_each_format(
    measured: str, warpcall: Warpcall, tmp_path: Path
) -> None:
    plain = warpcall("export", measured)
    files = [tmp_path / f"results.{ending}" for ending in ("csv", "md", "json")]
    written = [warpcall("export", measured[:8], "-o", file) for file in files]
    other = warpcall("export", measured, "--format", "md", "-o", tmp_path / "notes")
    wrong = warpcall("export", measured, "--format", "cvs")

    rows = list(csv.DictReader(io.StringIO(plain[1])))
    assert [(row["op"], row["shapes"], row["dtypes"], row["params"]) for row in rows] == [
        ("permute", "8x8", "F32", "dims=1,0")
    ] * 2
    assert [result[0] for result in (plain, *written, other)] == [0] * 5
    assert list(csv.DictReader(files[0].read_text().splitlines())) == rows
    assert files[1].read_text() == (tmp_path / "notes").read_text()
    title, remark, *_ = files[1].read_text().split("\n\n")
    assert re.fullmatch(rf"`permute` on .+, quick, job {measured}", title)
    assert remark.startswith("no GPU: ")
    assert "| permute x=F32[8,8] dims=1,0 | copy |" in files[1].read_text()
    assert json.loads(files[2].read_text())["id"] == measured
    assert wrong[0] == 2
    assert "--format must be one of csv, md, json, bencher, github-action-benchmark" in wrong[2]
    tracked = warpcall("export", measured, "--format", "bencher", "-o", tmp_path / "bencher.json")
    assert tracked[0] == 1
    assert "has no time to track" in tracked[2]  # there is no GPU
    assert not (tmp_path / "bencher.json").exists()


def test_jobs_on_a_terminal_show_what_was_measured(measured: str, server: Server) -> None:
    listing, ours = on_terminal(server, "jobs", columns="80")

    shown = re.sub(rb"\x1b\[[0-9;]*m", b"", rest_of(ours)).decode()

    assert listing.wait(30) == 0
    assert max(len(line.rstrip()) for line in shown.splitlines()) <= 80
    assert re.search(
        rf"^{measured}  permute x=F32\[8,8\] dims=1,0  warpcall: right", shown, re.MULTILINE
    )


def test_jobs_are_awaited_and_cancelled_from_asyncio(measured: str, server: Server) -> None:
    async def scenario() -> None:
        async with AsyncClient(server.url) as gpu:
            job = await gpu.jobs.submit("permute", cases=LONG, precision="publish", tags=["async"])
            queue = await gpu.jobs.queue()
            watching = asyncio.create_task(job.wait())
            async for event in job.events():
                if event.kind == "progress":
                    break
            cancelled = await gpu.jobs.cancel(job.id)
            with pytest.raises(JobFailed, match="cancelled") as failure:
                await watching
            listed = await gpu.jobs.list(tag="async")
            again = await gpu.jobs.compare(measured, job.id)
            results = await gpu.jobs.results(job.id)

            assert job.id in [entry.id for entry in queue.entries]
            assert cancelled.cancel_requested
            assert failure.value.job.id == job.id
            assert [found.state for found in listed] == ["cancelled"]
            assert (again.rows, len(again.only_a)) == ([], 2)
            assert results.measurements == []

    asyncio.run(scenario())


def test_mistakes_are_refused_with_the_field(gpu: Client) -> None:
    with pytest.raises(InvalidInput, match="implementations must be of") as refused:
        gpu.jobs.submit("permute", implementations=["nobody's"], cases=[CASE])
    with pytest.raises(NotFound, match="there is no job 'nope'"):
        gpu.jobs.get("nope")

    assert refused.value.field == "implementations"


def test_bench_prints_a_table_between_what_it_found(
    measured: str, server: Server, warpcall: Warpcall
) -> None:
    code, out, err = warpcall(*QUICK)
    watched = warpcall("watch", measured)
    as_json = warpcall(*QUICK, "--json")

    about, page, explained, head, case, ours, copy, *rest = out.splitlines()
    assert (code, err) == (0, "")
    assert about == "warpcall: right, not timed: no GPU"
    assert page == f"{server.url}/jobs/{measured}"
    assert "to warpcall, above 1 takes longer" in explained
    assert head.split()[-3:] == ["verdict", "GB/s", "limit"]
    assert case == "permute x=F32[8,8] dims=1,0"
    assert ours.split()[0] == "warpcall"
    assert (copy.split()[0], copy.split()[-1]) == ("copy", "100%")
    assert rest[0].startswith(f"{measured} succeeded on {socket.gethostname()} ")
    assert "ago (--fresh measures anew), " in rest[0]  # it was measured: it is the same job
    assert re.fullmatch(
        r"waited \S+ s for the device, had it for \S+ s, compiled for \S+ s", rest[1]
    )
    assert rest[2:] == [NO_GPU, "tags of warpcall: plain torch", about, page]
    assert watched[1].splitlines()[:7] == out.splitlines()[:7]
    assert watched[1].splitlines()[8:] == rest[1:]
    assert [m["implementation"] for m in json.loads(as_json[1])["measurements"]] == [
        "warpcall",
        "copy",
    ]


def test_jobs_are_listed_compared_and_shown_in_the_queue(measured: str, warpcall: Warpcall) -> None:
    # The first reading of a device has none: a load is that since the one before.
    until(lambda: "load" in warpcall("devices")[1].split(), "no load was read")
    detached = warpcall(
        *BENCH, "--dims", "0,1", "--precision", "publish", "--tag", "long", "--detach", "--json"
    )
    id_ = json.loads(detached[1])["id"]
    listed = warpcall("jobs", "--tag", "long")
    top, devices = warpcall("top"), warpcall("devices")
    overview = json.loads(warpcall("top", "--json")[1])
    cancelled = warpcall("cancel", id_)
    watched = warpcall("watch", id_)
    again = json.loads(warpcall("cancel", id_, "--json")[1])
    over = warpcall("cancel", id_)
    compared = warpcall("compare", measured, measured)
    rows = json.loads(warpcall("compare", measured, id_, "--json")[1])["rows"]

    assert [line.split()[0] for line in listed[1].splitlines()] == ["id", id_]
    assert top[1].splitlines()[1].startswith("cpu     torch reference  ready")
    assert devices[1].splitlines()[0].split()[:4] == ["device", "state", "load", "memory"]
    assert devices[1].splitlines()[1].startswith("cpu (torch reference)  ready")
    assert json.loads(warpcall("devices", "--json")[1])[0]["name"] == "cpu"
    assert f" {id_} " in top[1]
    assert id_ in [entry["id"] for entry in overview["queue"]["entries"]]
    assert cancelled[1].startswith(f"{id_} is ")
    assert watched[0] == 1
    assert watched[2] == (
        f"warpcall: the job {id_} did not succeed: cancelled: {again['detail']}\n"
    )
    assert again["state"] == "cancelled"
    assert over[1] == f"{id_} had ended before: cancelled\n"
    assert compared[1].count(" 1.000 ") == 1  # of the copy; warpcall has no time that counts
    assert rows == []


def test_a_watcher_sees_the_place_in_the_queue_and_leaves_with_ctrl_c(
    gpu: Client, server: Server
) -> None:
    here = gpu.nodes().node  # so that both wait for one device, also where there are several
    first = gpu.jobs.submit("permute", cases=LONG[:1], precision="publish", fresh=True, node=here)
    job = gpu.jobs.submit("permute", cases=LONG, precision="publish", note="interrupted", node=here)
    watching, ours = on_terminal(server, "watch", job.id)

    queued = shown_until(b"queued, number 1, starts in some", ours)
    first.cancel()
    running = shown_until(b"rounds ", ours)
    watching.send_signal(signal.SIGINT)
    last = rest_of(ours)
    code = watching.wait(30)
    state = job.refresh().state
    job.cancel()

    assert b"0/20 cases" in queued + running
    assert code == 130
    assert f"`warpcall watch {job.id}` comes back to it".encode() in last
    assert state not in ("cancelled", "failed")


def test_top_shows_the_queue_live_until_ctrl_c(gpu: Client, server: Server) -> None:
    watching, ours = on_terminal(server, "top")

    devices = sum(len(node.lanes) for node in gpu.nodes().nodes)
    number = f"{devices} device{'s' if devices > 1 else ''}"
    shown_until(f"0 running, 0 waiting, on {number} for jobs".encode(), ours)
    job = gpu.jobs.submit("permute", cases=LONG, precision="publish")
    shown_until(job.id.encode(), ours)
    job.cancel()
    shown_until(b"0 running, 0 waiting", ours)
    watching.send_signal(signal.SIGINT)
    rest_of(ours)

    assert watching.wait(30) == 0


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("bench", "permute"), "--shape must be shapes such as 4096x4096,8192x8192, got nothing"),
        ((*BENCH, "--shape", "4x"), "--shape must be shapes such as 4096x4096,8192x8192, got '4x'"),
        (
            (*BENCH, "--dtype", "fp31"),
            "--dtype must be of uint64, int64, float64, complex64, float32",
        ),
        ((*BENCH, "--dims", "1,2"), "--dims: dims must name each of the 2 dims of x once"),
        ((*BENCH, "--foo"), "permute has no option --foo, it takes --dims N,N,..."),
        ((*BENCH, "x.npy"), "bench takes one op, then options, got 'x.npy' as well"),
        ((*BENCH, "--vs", "tirch"), "--vs: implementations must be of warpcall, torch"),
        ((*BENCH, "--vs", "torch,torch"), "--vs must be names such as"),
        ((*BENCH, "--precision", "-1"), "--precision must be one of quick, standard, publish"),
        ((*BENCH, "--priority", "0"), "--priority must be one of high, normal, low, got '0'"),
        (
            (*BENCH, "--size", "taps"),
            "--size must be such as taps=3,7 or rows=4096,columns=1000,1024, each name",
        ),
        ((*BENCH, "--size", "taps=3"), "--size: permute has no size 'taps'"),
        ((*BENCH, "--tag", "?"), "--tag: "),
        ((*BENCH, "--shape", "8x8,8x8"), "--shape, --dtype: permute x=F32[8,8] dims=1,0 is there"),
        ((*BENCH, "--shape", "99999999x99999999"), "--shape, --dtype: permute x=F32[99999999"),
        (("jobs", "--state", "well"), "--state must be one of queued, preparing"),
        (("jobs", "--limit", "many"), "--limit must be 1 to 500, got 'many'"),
    ],
)
def test_what_is_typed_wrong_is_one_line_that_names_the_option(
    words: tuple[str, ...], message: str, warpcall: Warpcall
) -> None:
    code, out, err = warpcall(*words)

    assert (code, out, err.count("\n")) == (2, "", 1)
    assert message in err


def on_terminal(
    server: Server, *words: str, columns: str = "200"
) -> tuple[subprocess.Popen[bytes], int]:
    """The command with a terminal of its own, and the end of it on which one sees what it shows."""
    ours, theirs = pty.openpty()
    command = [sys.executable, "-c", "from warpcall._cli.main import main; main()", *words]
    settings = {"WARPCALL_URL": server.url, "COLUMNS": columns, "LINES": "40", "TERM": "xterm"}
    running = subprocess.Popen(command, stdout=theirs, stderr=theirs, env=os.environ | settings)
    os.close(theirs)
    return running, ours


def shown_until(wanted: bytes, terminal: int) -> bytes:
    """What a terminal shows until it has shown this."""
    shown = b""
    while wanted not in shown:
        shown += os.read(terminal, 4096)
    return shown


def rest_of(terminal: int) -> bytes:
    """What a terminal shows until its program leaves it."""
    shown = b""
    while True:
        try:
            piece = os.read(terminal, 4096)
        except OSError:  # EIO: nobody has the other end any more
            piece = b""
        if not piece:
            os.close(terminal)
            return shown
        shown += piece
