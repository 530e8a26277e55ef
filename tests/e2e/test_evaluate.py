"""Evaluations from Python and from a shell, on a real server: only its address and keys."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import pytest

from tests.e2e.command import Warpcall, command_for
from tests.e2e.lab import Lab
from tests.service.uploads.sources import TRITON
from warpcall import AsyncClient, Evaluation, InvalidInput

pytestmark = pytest.mark.slow

RIGHT = "def permute(x, dims):\n    return x.permute(dims).contiguous()\n"
WRONG = "def permute(x, dims):\n    return x.permute(dims).contiguous() + 1\n"
BROKEN = "def permute(x, dims:\n    pass\n"
CASES = [{"shape": [16, 16], "dtype": "float32", "params": {"dims": [1, 0]}}]
CUDA = """
/* warpcall-launches {"launches": [{"kernel": "move", "grid": [1], "block": [32],
   "arguments": ["x", "out"]}]} */
extern "C" __global__ void move(const float* x, float* out) { out[threadIdx.x] = x[threadIdx.x]; }
"""
OPTIONS = ("--shape", "16x16", "--dtype", "fp32", "--dims", "1,0", "--vs", "torch")


@pytest.fixture
def warpcall(
    lab: Lab, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Warpcall:
    """The command as ann, in a folder that has her files."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("WARPCALL_API_KEY", lab.keys["ann"])
    Path("right.py").write_text(RIGHT)
    Path("wrong.py").write_text(WRONG)
    Path("broken.py").write_text(BROKEN)
    Path("bare.cu").write_text("__global__ void bare() {}\n")
    return command_for(lab.server, monkeypatch, capsys)


def test_one_candidate_has_one_verdict(lab: Lab) -> None:
    with lab.client("ann") as gpu:
        found = gpu.evaluate("permute", RIGHT, cases=CASES, baseline="torch")
        again = gpu.evaluate("permute", RIGHT, cases=CASES, baseline="torch")
        broken = gpu.evaluate("permute", BROKEN, cases=CASES)

        assert isinstance(found, Evaluation)
        assert (found.ok, found.right, found.compiled) == (True, True, True)
        assert (again.id, again.reused) == (found.id, True)
        assert (broken.ok, broken.id) == (False, None)
        assert broken.failure is not None
        assert "line 1" in broken.failure.text
        with pytest.raises(InvalidInput, match="either cases or sweep"):
            gpu.evaluate("permute", RIGHT)


def test_many_candidates_have_their_verdicts_in_the_order_in_which_these_are_known(
    lab: Lab, tmp_path: Path
) -> None:
    file = tmp_path / "wrong.py"
    file.write_text(WRONG)
    candidates: list[str | Path | dict[str, str]] = [
        BROKEN,
        file,
        {"implementation": "warpcall"},
        RIGHT,
        RIGHT,
    ]

    with lab.client("ann") as gpu:
        found = [*gpu.evaluate_many("permute", candidates, cases=CASES, baseline="torch")]

    order = [one.index for one in found]
    assert order.index(0) < order.index(1), "a source that cannot be imported needs no job"
    by_index = {one.index: one.right for one in found}
    assert [by_index[number] for number in range(5)] == [False, False, True, True, True]


def test_the_same_for_asyncio(lab: Lab) -> None:
    async def run() -> list[Evaluation]:
        async with AsyncClient(lab.server.url, api_key=lab.keys["ann"]) as gpu:
            one = await gpu.evaluate("permute", RIGHT, cases=CASES, baseline="torch")
            many = gpu.evaluate_many("permute", [WRONG, RIGHT], cases=CASES, baseline="torch")
            return [one, *sorted([each async for each in many], key=lambda each: each.index)]

    assert [one.right for one in asyncio.run(run())] == [True, False, True]


def test_files_are_evaluated_by_the_command(warpcall: Warpcall) -> None:
    code, out, err = warpcall("evaluate", "wrong.py", "right.py", "permute", *OPTIONS)
    all_right, _, _ = warpcall("evaluate", "permute", "right.py", *OPTIONS)

    assert (code, err, all_right) == (1, "", 0)
    head, *rows = out.splitlines()
    assert head.split()[:3] == ["file", "right", "time"]
    assert {row.split()[0]: row.split()[1] for row in rows[:2]} == {
        "right.py": "right",
        "wrong.py": "wrong_result",
    }

    code, out, err = warpcall("evaluate", "broken.py", "right.py", "permute", *OPTIONS, "--json")

    assert (code, err) == (1, "")
    lines = [json.loads(line) for line in out.splitlines()]
    assert {one["file"]: one["right"] for one in lines} == {"broken.py": False, "right.py": True}


def test_verified_files_need_a_gpu_to_be_timed(warpcall: Warpcall) -> None:
    Path("kernel.py").write_text(TRITON)
    Path("kernel.cu").write_text(CUDA)

    code, out, err = warpcall(
        *("evaluate", "--verified", "kernel.py", "kernel.cu", "permute", *OPTIONS, "--json")
    )

    assert (code, err) == (1, "")
    found = {one["file"]: one for one in map(json.loads, out.splitlines())}
    assert {name: one["verified"] for name, one in found.items()} == {
        "kernel.py": True,
        "kernel.cu": True,
    }
    assert {one["failure"]["kind"] for one in found.values()} == {"unchecked"}

    code, out, err = warpcall(
        *(
            "race",
            "permute",
            "kernel.py",
            "kernel.cu",
            "torch",
            "--verified",
            *OPTIONS[:6],
            "--json",
        )
    )

    assert (code, err) == (0, ""), out
    race = json.loads(out)
    assert (race["outcome"], race["winner"], race["refused"]) == ("winner", "torch", {})
    assert {one["implementation"]: one["status"] for one in race["entries"]} == {
        "torch": "ok",
        **{one["implementation"]: "unchecked" for one in race["entries"][1:]},
    }
    assert all("GPU" in one["error"] for one in race["entries"][1:])


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("permute", *OPTIONS), "files and one op"),
        (("right.py", *OPTIONS), "files and one op"),
        (("right.py", "permute", *OPTIONS, "--precision", "long"), "--precision must be one of"),
        (("right.py", "permute", *OPTIONS[:4], "--dims", "0,0"), "--dims"),
        (("none.py", "permute", *OPTIONS), "there is no such file"),
        (("bare.cu", "permute", *OPTIONS), "has no declaration of its launches"),
        (("right.py", "permute", *OPTIONS[:-1], "ann/nothing"), "--vs"),
    ],
)
def test_wrong_use_of_the_command_is_said(
    words: tuple[str, ...], said: str, warpcall: Warpcall
) -> None:
    code, out, err = warpcall("evaluate", *words)

    assert (code, out) == (2, "")
    assert said in err
