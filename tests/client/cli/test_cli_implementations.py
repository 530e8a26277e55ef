"""`warpcall implementations` and `warpcall bench --mine`, with a scripted server."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.client.command import Command
from tests.client.implementations.scripted_lab import REMARK, LabServer, row
from warpcall.errors import Forbidden, InvalidInput
from warpcall.jobs.outcomes import STATUS_WORDS

SOURCE = "def permute(x, dims):\n\treturn x.permute(dims).contiguous()\n"
BENCH = ("bench", "permute", "--shape", "8x8", "--dtype", "fp32", "--dims", "1,0")


@pytest.fixture
def lab() -> Iterator[LabServer]:
    with LabServer() as server:
        yield server


@pytest.fixture
def warpcall(
    lab: LabServer, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Command:
    return Command(lab, monkeypatch, capsys)


@pytest.fixture
def mine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """The name of a file in the working directory that holds SOURCE."""
    monkeypatch.chdir(tmp_path)
    Path("mine.py").write_text(SOURCE)
    return "mine.py"


def test_an_upload_is_added_listed_shown_and_removed(warpcall: Command, mine: str) -> None:
    added = warpcall("implementations", "add", "permute", mine)
    again = json.loads(warpcall("implementations", "add", "permute", mine, "--json").out)
    listed = warpcall("implementations", "list")
    page = json.loads(warpcall("implementations", "list", "--json").out)
    shown = warpcall("implementations", "show", "ann/mine")
    details = json.loads(warpcall("implementations", "show", "ann/mine", "--json").out)
    removed = warpcall("implementations", "remove", "ann/mine")
    absent = warpcall("implementations", "show", "ann/mine")

    version = again["version"]
    assert added.out == f"mine.py is ann/mine@{version}, uploaded now\n"
    assert again["created"] is False
    assert [line.split()[:3] for line in listed.out.splitlines()[1:]] == [
        ["torch", "shipped", "any"],
        ["ann/mine", "uploaded", "permute"],
    ]
    assert [one["name"] for one in page["implementations"]] == ["torch", "ann/mine"]
    assert shown.out.splitlines()[0] == (
        f"ann/mine@{version}: permute for permute, readable by all users"
    )
    assert shown.out.splitlines()[-2:] == [
        "def permute(x, dims):",
        "        return x.permute(dims).contiguous()",
    ]
    assert details["source"] == SOURCE
    assert (removed.code, removed.out) == (0, "ann/mine is deleted\n")
    assert (absent.code, absent.err) == (1, "warpcall: there is no implementation 'ann/mine'\n")


def test_what_was_found_in_odd_cases_is_shown(warpcall: Command, lab: LabServer, mine: str) -> None:
    warpcall("implementations", "add", "permute", mine)
    counts = dict.fromkeys(("right", "wrong", "failed", "raised", "not_checked"), 1)
    first = {"first_case": "permute x=F32[4,6]:strided", "first_reason": "out differs"}
    lab.uploads[-1]["odd_cases"] = [{"device": "gpu", **counts, **first}]

    shown = warpcall("implementations", "show", "ann/mine")

    assert (
        "on a GPU it is wrong in 1, crashes or hangs in 1 and raises an exception in 1 of 4 odd "
        "cases (1 more were not checked), first: permute x=F32[4,6]:strided: out differs"
    ) in " ".join(shown.out.split())


def test_the_environment_is_shown(warpcall: Command) -> None:
    shown = warpcall("implementations", "environment")
    as_json = json.loads(warpcall("implementations", "environment", "--json").out)

    assert shown.out.splitlines()[:-1] == [
        "uploads: sandboxed",
        "device: NVIDIA H200, CUDA 12.9",
        "Python 3.11.9, torch 2.11.0, Triton 3.6.0",
        "tools: ptxas /usr/bin/ptxas, nvcc none",
        "packages: numpy 2.3.1, torch 2.11.0",
    ]
    assert shown.out.splitlines()[-1] == (
        "limits: 256 KiB of source, 20 s to import it; a job has 512 processes, 16384 MiB of memory "
        "and 1024 MiB of temporary files"
    )
    assert as_json["packages"] == [["numpy", "2.3.1"], ["torch", "2.11.0"]]


def test_a_function_and_a_name_are_taken_from_the_command_line(
    lab: LabServer, warpcall: Command, mine: str
) -> None:
    warpcall("implementations", "add", "permute", f"{mine}:permute", "--name", "best", "--private")

    assert lab.seen.params == {
        "op": "permute", "source": SOURCE, "function": "permute", "name": "best", "private": True,
    }  # fmt: skip


def test_a_file_whose_name_has_a_colon_is_a_file(
    lab: LabServer, warpcall: Command, mine: str
) -> None:
    Path(mine).rename("a:b.py")

    result = warpcall("implementations", "add", "permute", "a:b.py")

    assert result.out.startswith("a:b.py is ann/permute@")
    assert lab.seen.params.get("function") is None


@pytest.mark.parametrize(
    ("options", "implementations", "said"),
    [
        ([], ["warpcall", "ann/mine", "torch"], "slower than warpcall; it takes 1.25x the time"),
        (
            ["--vs", "warpcall,torch,copy"],
            ["warpcall", "ann/mine", "torch", "copy"],
            "slower than warpcall; it takes 1.25x the time",
        ),
        (["--vs", "copy"], ["copy", "ann/mine"], "timed; it reaches 80% of the limit"),
        (
            ["--vs", "bob/theirs@3f2a91c0,torch"],
            ["bob/theirs@3f2a91c0", "ann/mine", "torch"],
            "slower than bob/theirs@3f2a91c0; it takes 1.25x the time",
        ),
    ],
)
def test_bench_times_an_upload_against_the_first_of_vs(
    options: list[str],
    implementations: list[str],
    said: str,
    lab: LabServer,
    warpcall: Command,
    mine: str,
) -> None:
    lab.rows = [row(implementations[0]), row("ann/mine", ratio=1.25, verdict="slower")]

    result = warpcall(*BENCH, "--mine", mine, *options)

    first, *said_first, head = result.out.splitlines()[:4]
    assert (result.code, result.err) == (0, "")
    assert said_first == [f"ann/mine: {said}", f"{lab.url}/jobs/j1"]
    assert result.out.splitlines()[-2:] == said_first
    assert first.startswith("mine.py is ann/mine@")
    assert first.endswith(", uploaded now")
    assert f"to {implementations[0]}, above 1 takes longer" in head
    assert [job["implementations"] for job in lab.jobs] == [implementations]


@pytest.mark.parametrize(
    ("options", "implementations"),
    [
        ([], ["warpcall", "torch"]),
        (["--vs", "copy,warpcall"], ["warpcall", "copy"]),
        (["--vs", "ann/mine"], ["warpcall", "ann/mine"]),
    ],
)
def test_bench_without_an_upload_compares_with_ours(
    options: list[str], implementations: list[str], lab: LabServer, warpcall: Command
) -> None:
    warpcall(*BENCH, *options)

    assert [job["implementations"] for job in lab.jobs] == [implementations]


def test_a_job_times_the_file_as_it_is_now(lab: LabServer, warpcall: Command, mine: str) -> None:
    warpcall(*BENCH, "--mine", mine)
    Path(mine).write_text(f"{SOURCE}# faster\n")
    warpcall(*BENCH, "--mine", mine)
    Path(mine).write_text(SOURCE)
    result = warpcall(*BENCH, "--mine", mine)

    latest = lab.uploads[-1]
    assert [job["implementations"][1] for job in lab.jobs] == ["ann/mine"] * 3
    assert latest["source"] == SOURCE
    assert result.out.startswith(f"mine.py is ann/mine@{latest['version']}, uploaded before\n")


def test_two_files_whose_uploads_have_one_name_are_timed_by_their_versions(
    lab: LabServer, warpcall: Command, mine: str
) -> None:
    Path("other").mkdir()
    Path("other/mine.py").write_text(f"{SOURCE}# another\n")

    warpcall(*BENCH, "--mine", mine, "--mine", "other/mine.py")
    versions = [one["version"] for one in lab.uploads]
    twice = warpcall(*BENCH, "--mine", mine, "--mine", mine)

    assert lab.jobs[0]["implementations"] == [
        "warpcall", *(f"ann/mine@{version}" for version in versions), "torch",
    ]  # fmt: skip
    assert twice.code == 2
    assert "--mine and --vs must name each implementation once" in twice.err


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("--mine", "mine.py:2x"), "such as my_permute.py or my_permute.py:fast, got 'mine.py:2x'"),
        (("--mine", ":permute"), "such as my_permute.py or my_permute.py:fast, got ':permute'"),
        (("--mine", "latin.py"), "latin.py, line 1: source must be UTF-8, got the byte 0xe9"),
        (("--mine", "mine.py", "--vs", "a,,b"), "--vs must be names such as"),
    ],
)
def test_what_is_typed_wrong_uploads_nothing(
    words: tuple[str, ...], message: str, lab: LabServer, warpcall: Command, mine: str
) -> None:
    Path("latin.py").write_bytes(b"# caf\xe9\n")

    result = warpcall(*BENCH, *words)

    assert (result.code, result.out, result.err.count("\n")) == (2, "", 1)
    assert message in result.err
    assert lab.uploads == []


def test_an_absent_file_is_an_error(lab: LabServer, warpcall: Command) -> None:
    result = warpcall(*BENCH, "--mine", "absent.py")

    assert (result.code, result.err) == (1, "warpcall: absent.py: No such file or directory\n")
    assert lab.uploads == []


def test_a_refused_upload_names_the_file_and_ends_the_command(
    lab: LabServer, warpcall: Command, mine: str
) -> None:
    lab.refusal = InvalidInput("source: line 2: \x1b[2Jinvalid\nsyntax", field="source")
    bench, add = warpcall(*BENCH, "--mine", mine), warpcall("implementations", "add", "isin", mine)
    lab.refusal = Forbidden("uploads are off: the operator must set WARPCALL_UPLOADS")
    off = warpcall(*BENCH, "--mine", mine)

    message = "warpcall: mine.py: line 2: \\x1b[2Jinvalid syntax\n"
    assert (bench.code, bench.err) == (add.code, add.err) == (2, message)
    assert (off.code, off.err) == (
        1,
        "warpcall: uploads are off: the operator must set WARPCALL_UPLOADS\n",
    )
    assert lab.jobs == []


def test_private_uploads_are_sent_as_such(lab: LabServer, warpcall: Command, mine: str) -> None:
    privacy = []

    for options in ([], ["--private"], ["--public"]):
        warpcall(*BENCH, "--mine", mine, *options)
        privacy.append(lab.seen.params.get("private"))
        assert lab.jobs[-1].get("private") == privacy[-1], "the job is as private"
    for options in ([], ["--private"], ["--public"]):
        warpcall("implementations", "add", "permute", mine, *options)
        privacy.append(lab.seen.params.get("private"))

    assert privacy == [None, True, False, None, True, False]


def test_json_has_only_the_results(lab: LabServer, warpcall: Command, mine: str) -> None:
    lab.rows = [row("warpcall"), row("ann/mine")]

    results = json.loads(warpcall(*BENCH, "--mine", mine, "--json").out)

    assert [one["implementation"] for one in results["measurements"]] == ["warpcall", "ann/mine"]


@pytest.mark.parametrize(
    "status",
    ["error", "wrong_result", "compile_error", "cuda_error", "timeout", "crashed", "unchecked"],
)
def test_an_implementation_without_a_time_is_explained_and_makes_the_exit_code_1(
    status: str, lab: LabServer, warpcall: Command, mine: str
) -> None:
    failed = {"status": status, "error": "first\x1b[2J line", "median_us": None}
    traceback = "mine.py, line 2, in permute\n\traise \x1b]0;owned\x07\u202eerror\r\x9b31m"
    lab.rows = [row("warpcall"), row("ann/mine", **failed, traceback=traceback)]

    bench = warpcall(*BENCH, "--mine", mine)
    watched = warpcall("watch", "j1")
    as_json = warpcall("watch", "j1", "--json")

    assert (bench.code, watched.code, as_json.code) == (1, 1, 1)
    assert bench.err == ""
    *_, summary, _, error, frame, line, escape, sentence, page = bench.out.splitlines()
    assert (sentence, page) == (f"ann/mine: {STATUS_WORDS[status]}", f"{lab.url}/jobs/j1")
    assert summary.startswith("j1 succeeded")
    assert error == r"ann/mine, permute x=F32[8,8] dims=1,0: first\x1b[2J line"
    assert frame == "  mine.py, line 2, in permute"
    assert line == r"          raise \x1b]0;owned\x07\u202eerror"
    assert escape == r"  \x9b31m"
    assert any(line.split() == ["ann/mine", status] for line in bench.out.splitlines())
    assert json.loads(as_json.out)["measurements"][1]["traceback"] == traceback


def test_what_uploads_printed_is_shown_below_the_results(
    lab: LabServer, warpcall: Command, mine: str
) -> None:
    lab.rows = [row("warpcall"), row("ann/mine"), row("ann/other", status="error", error="no")]
    texts = {
        "ann/mine": "a\tb\n\x1b]0;owned\x07",
        "ann/other": "".join(f"{n}\n" for n in range(12)),
    }
    lab.printed = [
        {"position": 0, "case": "permute", "implementation": name, "text": text}
        for name, text in texts.items()
    ]

    bench = warpcall(*BENCH, "--mine", mine)
    whole = warpcall("printed", "j1", "--implementation", "ann/mine")
    as_json = warpcall("printed", "j1", "--json")

    lines = bench.out.splitlines()
    begin = lines.index("ann/other printed in permute:")  # the one that failed comes first
    assert lines[begin + 1 : begin + 4] == ["  (2 lines before)", "  2", "  3"]
    begin = lines.index("ann/mine printed in permute:")
    assert lines[begin + 1 : begin + 3] == ["  a   b", r"  \x1b]0;owned\x07"]
    assert lines[begin + 3] == "2 printed texts: warpcall printed j1"
    assert whole.out.splitlines() == lines[begin : begin + 3]
    assert [one["text"] for one in json.loads(as_json.out)] == [*texts.values()]
    lab.printed = []
    assert warpcall("printed", "j1").out == "nothing was printed\n"


def test_a_partial_job_is_no_error_but_says_so_and_its_exit_code_is_1(
    lab: LabServer, warpcall: Command, mine: str
) -> None:
    lab.end = {"state": "partial", "exit_class": "timeout", "detail": "ann/mine has no time"}
    lab.rows = [row("warpcall"), row("ann/mine", status="timeout", median_us=None)]

    bench = warpcall(*BENCH, "--mine", mine)

    assert (bench.code, bench.err) == (1, "")
    assert any(line.startswith("j1 partial") for line in bench.out.splitlines())
    assert any(line.split() == ["ann/mine", "timeout"] for line in bench.out.splitlines())


def test_a_result_that_was_only_checked_is_right(
    lab: LabServer, warpcall: Command, mine: str
) -> None:
    lab.rows = [row("warpcall", median_us=None), row("ann/mine", median_us=None)]

    bench = warpcall(*BENCH, "--mine", mine)

    assert bench.code == 0
    assert any(line.split() == ["ann/mine", "right"] for line in bench.out.splitlines())


def test_a_time_that_cannot_be_true_is_not_shown_as_a_time(
    lab: LabServer, warpcall: Command, mine: str
) -> None:
    lab.rows = [row("warpcall"), row("ann/mine", status="invalid", error="1 us is too short")]

    bench = warpcall(*BENCH, "--mine", mine)

    assert bench.code == 1
    assert any(line.split() == ["ann/mine", "invalid"] for line in bench.out.splitlines())


def test_what_is_to_be_known_of_all_rows_is_printed_once(lab: LabServer, warpcall: Command) -> None:
    lab.rows = [row("warpcall"), row("torch")]

    result = warpcall(*BENCH)

    assert result.code == 0
    assert result.out.count(REMARK) == 1
