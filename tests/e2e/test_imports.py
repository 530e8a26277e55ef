"""Files of KernelBench and of gpu-mode, from the file to the verdict by one command."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from demo.server import Server
from tests.e2e.command import Warpcall, command_for
from tests.e2e.imported_files import SCORE_SUBMISSION, write_all
from tests.servers import running_server
from tests.service.uploads.requests import SETTINGS

pytestmark = pytest.mark.slow

QUICK = ("--bench", "--precision", "quick")


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    with running_server(SETTINGS) as running:
        yield running


@pytest.fixture
def warpcall(
    server: Server,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
) -> Warpcall:
    monkeypatch.chdir(tmp_path)
    write_all(tmp_path)
    return command_for(server, monkeypatch, capsys)


@pytest.mark.parametrize(
    ("words", "problem", "candidate", "case"),
    [
        (
            ("3_Activation.py", "--size", "batch_size=8,dim=33", "--dtype", "bf16"),
            *("activation", "activation.new", "x=BF16[8,33]:uniform*4-2 batch_size=8 dim=33"),
        ),
        (
            ("linear.py", "linear_new.py", "--size", "batch=4,in_features=32"),
            *("linear", "linear.linear_new", "x=F32[4,32] batch=4 in_features=32"),
        ),
        (
            ("softmax.py", "softmax_new.py"),
            *("softmax", "softmax.softmax_new", "x=F16[32,100] length=100"),
        ),
        (("add_py",), "add", "add.submission", "a=F16[64,64] b=F16[64,64] size=64"),
        (
            ("score_py/task.yml", "mine.py"),
            *("score", "score.mine"),
            "x=F32[64,64]:uniform*2-1 which=I64[64]:0..63 rows=64 kind=1 bias=1",
        ),
    ],
    ids=["activation", "linear", "softmax", "add", "score"],
)
def test_a_file_gets_its_verdict_by_one_command(
    warpcall: Warpcall, words: tuple[str, ...], problem: str, candidate: str, case: str
) -> None:
    code, out, err = warpcall("import", *words, *QUICK)

    lines = out.splitlines()
    assert (code, err) == (0, "")
    assert f"local/{problem}@" in lines[0]
    assert f"local/{candidate}@" in lines[1]
    assert "assumed:" in lines
    assert f"local/{problem} {case}" in lines
    after = out.partition(f"local/{problem} {case}\n")[2]
    assert re.search(rf"^ +local/{candidate}\s+[\d.,]+ ", after, re.MULTILINE), out
    assert ", set up for " in out


def test_a_wrong_submission_is_found_by_the_tests_and_not_timed(warpcall: Warpcall) -> None:
    Path("mine.py").write_text(SCORE_SUBMISSION.replace("is not None", "is None and False"))

    code, out, _ = warpcall("import", "score_py", "mine.py", "--name", "wrong", *QUICK)

    assert code == 1
    assert "right  local/wrong x=F32[5,64]:uniform*2-1 which=I64[5]:0..63 rows=5" in out
    assert "wrong  local/wrong x=F32[6,64]:uniform*2-1 which=I64[6]:0..63 rows=6" in out
    assert "median" not in out


def test_an_error_of_a_model_names_the_line_of_its_file(warpcall: Warpcall) -> None:
    broken = Path("linear_new.py")
    broken.write_text(broken.read_text().replace("super().__init__()", "super().__init__(1, 2, 3)"))
    words = ("linear.py", "linear_new.py", "--size", "batch=4,in_features=32")

    code, out, _ = warpcall("import", *words, "--name", "broken", *QUICK)

    assert code == 1
    assert 'File "linear_new.py", line 8, in __init__' in out


def test_a_problem_that_the_server_cannot_draw_is_refused(warpcall: Warpcall) -> None:
    text = Path("softmax.py").read_text().replace(".half()]", ".softmax(dim=1)]")
    Path("softmax.py").write_text(text)

    code, out, err = warpcall("import", "softmax.py", "softmax_new.py", "--name", "drawn")

    assert (code, out) == (2, "")
    assert "softmax.py" in err
    assert "the server cannot draw x: its random values are made by torch's softmax" in err


def test_an_import_says_how_to_time_it(warpcall: Warpcall) -> None:
    code, out, err = warpcall("import", "softmax.py", "softmax_new.py", "--name", "later")
    last = out.splitlines()[-1]

    assert (code, err) == (0, "")
    assert "bench local/later --vs torch,local/later.softmax_new" in last
    timed, out, _ = warpcall(
        *["bench", "local/later", "--vs", "torch,local/later.softmax_new", "--precision", "quick"],
        *("--size", "length=64"),
    )
    assert timed == 0
    assert "local/later x=F16[32,64] length=64" in out
    described = warpcall("ops", "local/later")[1]
    assert described.startswith("local/later: softmax.py, a problem of KernelBench.")
    assert "[--length" not in described
