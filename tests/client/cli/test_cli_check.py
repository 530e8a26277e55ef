"""`warpcall check` and `bench --check-only`, with a scripted server."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.client.command import Command
from tests.client.implementations.scripted_lab import LabServer, row
from warpcall._cli.check_output import SMALL
from warpcall_kernels.op import odd_cases

SOURCE = "def permute(x, dims):\n    return x.permute(dims).contiguous()\n"
BENCH = ("bench", "permute", "--shape", "8x8", "--dtype", "fp32", "--dims", "1,0", "--check-only")
ODD = {"op": "permute", "implementations": ["ann/mine"], "precision": "check"}


def checked(case: str, status: str = "ok", **fields: Any) -> dict[str, Any]:
    return row("ann/mine", case=f"permute {case}", status=status, **{"median_us": None, **fields})


RIGHT = [checked("x=F32[8,8]"), checked("x=BF16[31,33]:special")]
OTHERS = [
    checked("x=F32[8,8]:strided", "wrong_result", error="out[0,1] is 2, should be 1"),
    checked("x=F32[0,3]", "error", error="ZeroDivisionError: zero", traceback="File mine.py\nboom"),
    checked("x=F32[0,5]", "error", error="ZeroDivisionError: zero", traceback="File mine.py\nboom"),
    checked("x=F16[8,8]", "crashed", error="SIGSEGV"),
    checked("x=U8[8,8]", "unchecked"),
]


@pytest.fixture
def lab() -> Iterator[LabServer]:
    with LabServer() as server:
        server.end = {"precision": "check", "request": ODD}
        yield server


@pytest.fixture
def warpcall(
    lab: LabServer,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
) -> Command:
    monkeypatch.chdir(tmp_path)
    Path("mine.py").write_text(SOURCE)
    return Command(lab, monkeypatch, capsys)


def test_a_check_asks_for_the_odd_cases_of_the_upload_alone(
    lab: LabServer, warpcall: Command
) -> None:
    lab.rows = RIGHT

    done = warpcall("check", "permute", "--mine", "mine.py")

    assert lab.jobs == [ODD]
    assert done.code == 0
    uploaded, *lines, end = done.out.splitlines()
    assert uploaded.startswith("mine.py is ann/mine@")
    assert lines == [
        "ann/mine",
        "  right  permute x=F32[8,8]",
        "  right  permute x=BF16[31,33]:special",
        "ann/mine: 2 cases, 2 right",
    ]
    assert end.startswith("j1 succeeded on cpu in ")


def test_what_is_not_right_stands_there_with_its_reason(lab: LabServer, warpcall: Command) -> None:
    lab.rows = [*RIGHT, *OTHERS]

    done = warpcall("check", "permute", "--mine", "mine.py")

    assert done.code == 1
    assert done.out.splitlines()[2:-1] == [
        "  right        permute x=F32[8,8]",
        "  right        permute x=BF16[31,33]:special",
        "  wrong        permute x=F32[8,8]:strided",
        "               out[0,1] is 2, should be 1",
        "  error        permute x=F32[0,3]",
        "               ZeroDivisionError: zero",
        "                 File mine.py",
        "                 boom",
        "  error        permute x=F32[0,5]",
        "               ZeroDivisionError: zero",
        "  crashed      permute x=F16[8,8]",
        "               SIGSEGV",
        "  not checked  permute x=U8[8,8]",
        "               it needs a GPU",
        "ann/mine: 7 cases, 2 right, 1 crashed, 2 error, 1 not checked, 1 wrong",
    ]


def test_json_has_the_results_and_their_numbers(lab: LabServer, warpcall: Command) -> None:
    lab.rows = [*RIGHT, *OTHERS]

    done = warpcall("check", "permute", "--mine", "mine.py", "--json")

    found = json.loads(done.out)
    assert (done.code, found["passed"], found["state"]) == (1, False, "succeeded")
    assert found["counts"]["ann/mine"]["right"] == 2
    assert found["checks"][2] == {
        "implementation": "ann/mine",
        "case": "permute x=F32[8,8]:strided",
        "result": "wrong",
        "reason": "out[0,1] is 2, should be 1",
        "traceback": None,
        "sanitizer": {},
    }


@pytest.mark.parametrize(("rows", "code"), [([*RIGHT, OTHERS[-1]], 0), ([OTHERS[-1]], 1), ([], 1)])
def test_what_needs_a_gpu_is_not_wrong_but_something_must_be_checked(
    rows: list[dict[str, Any]], code: int, lab: LabServer, warpcall: Command
) -> None:
    lab.rows = rows

    assert warpcall("check", "permute", "--mine", "mine.py").code == code


def test_an_upload_that_could_be_checked_nowhere_has_not_passed_because_another_has(
    lab: LabServer, warpcall: Command
) -> None:
    lab.rows = [*RIGHT, row("ann/other", case="permute x=U8[8,8]", status="unchecked")]

    assert warpcall("check", "permute", "--mine", "mine.py").code == 1


def test_a_benchmark_checks_its_own_cases_of_the_upload_alone(
    lab: LabServer, warpcall: Command
) -> None:
    lab.rows = RIGHT

    mine = warpcall(*BENCH, "--mine", "mine.py")
    others = warpcall(*BENCH, "--mine", "mine.py", "--vs", "torch")

    assert (mine.code, others.code) == (0, 0)
    first, second = lab.jobs
    assert first["precision"] == second["precision"] == "check"
    assert first["sweep"]["shapes"] == [[8, 8]]
    assert (first["implementations"], second["implementations"]) == (
        ["ann/mine"],
        ["torch", "ann/mine"],
    )


def test_a_check_without_a_file_says_what_it_needs(warpcall: Command) -> None:
    done = warpcall("check", "permute")

    assert (done.code, done.err) == (
        2,
        "warpcall: check needs a file: --mine my_kernel.py\n",
    )


def test_the_note_on_what_is_left_out_has_the_numbers_of_the_server() -> None:
    assert f"{odd_cases.MOST_ELEMENTS_IF_SMALL:,}" in SMALL
    assert f"{odd_cases.LONG_IF_SMALL:,}" in SMALL
