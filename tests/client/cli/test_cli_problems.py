"""`warpcall problems`, and the other commands on problems, with a scripted server."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.client.command import Command
from tests.client.implementations.scripted_lab import row
from tests.client.problems.answers import DECLARATION, SOURCE
from tests.client.problems.scripted_problems import ProblemsServer
from warpcall.errors import InvalidInput

OP = "ann/row-norm"


@pytest.fixture
def lab() -> Iterator[ProblemsServer]:
    with ProblemsServer() as server:
        yield server


@pytest.fixture
def warpcall(
    lab: ProblemsServer,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
) -> Command:
    """The command in a folder with the files of a problem and of an implementation of it."""
    monkeypatch.chdir(tmp_path)
    Path("row_norm.py").write_text(SOURCE)
    Path("fast.py").write_text("def row_norm(x, eps):\n    return x\n")
    return Command(lab, monkeypatch, capsys)


@pytest.fixture
def added(warpcall: Command) -> str:
    """The version of a problem that the server has."""
    version = json.loads(warpcall("problems", "add", "row_norm.py", "--json").out)["version"]
    assert isinstance(version, str)
    return version


def test_a_problem_is_added_listed_shown_and_removed(
    lab: ProblemsServer, warpcall: Command
) -> None:
    empty = warpcall("problems", "list")
    added = warpcall("problems", "add", "row_norm.py")
    again = json.loads(warpcall("problems", "add", "row_norm.py", "--json").out)
    lab.next = "n7"
    listed = warpcall("problems", "list", "--user", "ann")
    page = json.loads(warpcall("problems", "list", "--json").out)
    shown = warpcall("problems", "show", OP)
    details = json.loads(warpcall("problems", "show", OP, "--json").out)
    removed = warpcall("problems", "remove", OP)
    absent = warpcall("problems", "show", OP)

    version = again["version"]
    assert empty.out == "no problems\n"
    assert added.out == f"row_norm.py is ann/row-norm@{version}, uploaded now\n"
    assert again["created"] is False
    head, one, more = listed.out.splitlines()
    assert head.split()[:4] == ["name", "inputs", "sizes", "version"]
    assert one.split()[:5] == ["ann/row-norm", "x", "rows,", "values", version]
    assert more == "--before n7 shows more"
    assert [one["name"] for one in page["problems"]] == [OP]
    assert shown.out.startswith(
        f"ann/row-norm@{version}: readable by all users\nEach row over its length.\n"
    )
    assert shown.out.endswith(f"\n\n{SOURCE}")
    assert details["source"] == SOURCE
    assert (removed.code, removed.out) == (0, "ann/row-norm is deleted\n")
    assert (absent.code, absent.err) == (1, "warpcall: there is no problem 'ann/row-norm'\n")


def test_a_name_and_privacy_are_taken_from_the_command_line(
    lab: ProblemsServer, warpcall: Command
) -> None:
    warpcall("problems", "add", "row_norm.py", "--name", "best", "--private")

    assert lab.seen.params == {"source": SOURCE, "name": "best", "private": True}


def test_a_name_that_is_refused_is_not_the_files(lab: ProblemsServer, warpcall: Command) -> None:
    lab.refusal = InvalidInput("name: it is too long", field="name")

    by_option = warpcall("problems", "add", "row_norm.py", "--name", "x" * 49)
    by_function = warpcall("problems", "add", "row_norm.py")

    assert (by_option.code, by_option.err) == (2, "warpcall: --name: it is too long\n")
    assert (by_function.code, by_function.err) == (2, "warpcall: row_norm.py: it is too long\n")


def test_a_refused_problem_names_the_file(lab: ProblemsServer, warpcall: Command) -> None:
    Path("latin.py").write_bytes(b"# caf\xe9\n")
    lab.refusal = InvalidInput("source: line 2: \x1b[2Jinvalid\nsyntax", field="source")

    refused = warpcall("problems", "add", "row_norm.py")
    latin = warpcall("problems", "add", "latin.py")
    absent = warpcall("problems", "add", "absent.py")

    assert (refused.code, refused.err) == (
        2,
        "warpcall: row_norm.py: line 2: \\x1b[2Jinvalid syntax\n",
    )
    assert latin.code == 2
    assert latin.err.startswith("warpcall: latin.py, line 1: source must be UTF-8")
    assert (absent.code, absent.err) == (1, "warpcall: absent.py: No such file or directory\n")


def test_kernels_describes_a_problem_with_what_bench_takes(warpcall: Command, added: str) -> None:
    shown = warpcall("kernels", OP)
    at_version = warpcall("kernels", f"{OP}@{added}")
    as_json = json.loads(warpcall("kernels", OP, "--json").out)

    assert shown.out.splitlines() == [
        "ann/row-norm: Each row over its length.",
        "",
        "  x [4096, 1024]  with default sizes (float32, bfloat16)",
        "  [--eps X]  added below the root (default 1e-06)",
        "  -> out [4096, 1024]  with default sizes",
        "options of `warpcall bench`:",
        "  --size rows=N  number of rows (default 4096)",
        "  --size values=normal,special  what to draw (default normal)",
        "  --dtype float32,bfloat16  (default float32)",
    ]
    assert at_version.out == shown.out
    assert as_json["sizes"][0]["name"] == "rows"


@pytest.mark.parametrize(
    ("options", "sweep", "implementations"),
    [
        ([], {}, ["torch"]),
        (
            ["--size", "rows=4096,values=normal,special", "--dtype", "bf16", "--eps", "1e-5"],
            {
                "sizes": {"rows": [4096], "values": ["normal", "special"]},
                "dtypes": ["BF16"],
                "params": {"eps": [1e-5]},
            },
            ["torch"],
        ),
        (["--mine", "fast.py"], {}, ["torch", "ann/fast"]),
        (["--mine", "fast.py", "--vs", "copy"], {}, ["copy", "ann/fast"]),
        (["--vs", "ann/fast,copy"], {}, ["torch", "ann/fast", "copy"]),
    ],
)
def test_bench_submits_a_job_on_a_problem(
    options: list[str],
    sweep: dict[str, object],
    implementations: list[str],
    lab: ProblemsServer,
    warpcall: Command,
    added: str,
) -> None:
    lab.rows = [row(implementations[0])]

    result = warpcall("bench", OP, *options)

    assert (result.code, result.err) == (0, "")
    [job] = lab.jobs
    assert (job["op"], job["sweep"], job["implementations"]) == (OP, sweep, implementations)


def test_an_upload_is_for_the_problem_and_the_job_for_the_version_that_is_named(
    lab: ProblemsServer, warpcall: Command, added: str
) -> None:
    result = warpcall("bench", f"{OP}@{added}", "--mine", "fast.py")

    assert result.out.startswith("fast.py is ann/fast@")
    assert lab.seen.params["op"] == OP
    assert [job["op"] for job in lab.jobs] == [f"{OP}@{added}"]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (
            ("--shape", "8x8"),
            "ann/row-norm has --size rows=N --size values=normal,special",
        ),
        (("--rows", "8"), "rows is a size of ann/row-norm: --size rows=..."),
        (("--rows=8",), "rows is a size of ann/row-norm: --size rows=..."),
        (("--alpha", "8"), "ann/row-norm has no option --alpha, it takes --eps X"),
        (("--dtype", "half"), "--dtype must be of "),
        (("--size", "rows"), "--size must be such as"),
    ],
)
def test_what_is_typed_wrong_uploads_nothing(
    words: tuple[str, ...], message: str, lab: ProblemsServer, warpcall: Command, added: str
) -> None:
    result = warpcall("bench", OP, "--mine", "fast.py", *words)

    assert (result.code, result.out, result.err.count("\n")) == (2, "", 1)
    assert message in result.err
    assert lab.uploads == lab.jobs == []


def test_a_size_of_an_op_of_the_server_is_explained_too(warpcall: Command) -> None:
    result = warpcall(
        "bench", "conv", "--shape", "2x8", "--dtype", "fp32", "--size", "taps=3", "--taps", "3"
    )

    assert (result.code, result.err) == (2, "warpcall: taps is a size of conv: --size taps=...\n")


@pytest.mark.parametrize(
    ("field", "option"),
    [
        ("sweep", "--size, --dtype"),
        ("sweep.sizes.rows", "--size"),
        ("sweep.eps", "--eps"),
        ("implementations", "--vs"),
    ],
)
def test_what_the_server_refuses_is_named_by_its_option(
    field: str, option: str, lab: ProblemsServer, warpcall: Command, added: str
) -> None:
    lab.job_refusal = InvalidInput("it is wrong", field=field)

    result = warpcall("bench", OP)

    assert (result.code, result.err) == (2, f"warpcall: {option}: it is wrong\n")


def test_a_parameter_that_is_named_like_an_option_of_bench_is_not_set_by_it(
    lab: ProblemsServer, warpcall: Command, added: str
) -> None:
    param = {**DECLARATION["params"][0], "name": "dry_run"}
    lab.problems = [{**lab.problems[0], "declaration": {**DECLARATION, "params": [param]}}]

    taken = warpcall("bench", OP, "--dry-run")
    left_out = warpcall("bench", OP)

    assert taken.code == 2
    assert taken.err == (
        "warpcall: --dry-run is an option of bench and a parameter of ann/row-norm: give the "
        "parameter from Python\n"
    )
    assert left_out.code == 0
    assert len(lab.jobs) == 1


def test_a_problem_without_its_user_is_explained(warpcall: Command) -> None:
    for command in ("bench", "kernels"):
        result = warpcall(command, "row-norm")

        assert result.code == 1
        assert result.err == (
            "warpcall: there is no op 'row-norm'; problems have the name of their user, such as "
            "ann/row-norm: `warpcall problems list`\n"
        )


def test_history_is_of_torch(warpcall: Command) -> None:
    problem = warpcall("history", f"{OP} x=F32[8,8]")
    named = warpcall("history", f"{OP} x=F32[8,8]", "--implementation", "ann/fast")

    assert problem.out == "no job that you may read has measured torch in that case\n"
    assert named.out == "no job that you may read has measured ann/fast in that case\n"


def test_a_problem_cannot_be_called(lab: ProblemsServer, warpcall: Command) -> None:
    result = warpcall("run", OP, "x.npy")

    assert (result.code, result.err) == (
        2,
        "warpcall: ann/row-norm is a problem, which only `warpcall bench` runs\n",
    )
    assert lab.targets == []
