"""Regression checks from the command and the SDK, through a real server."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from pathlib import Path

import httpx
import pytest

from tests.e2e.command import command_for
from tests.e2e.lab import Lab
from warpcall import AsyncClient, InvalidInput, Regression

pytestmark = pytest.mark.slow

# Both take so long that the server's own clock confirms their times on a CPU. They sleep, which
# leaves the CPU to other tests.
QUICK = """
import time

def permute(x, dims):
    time.sleep(0.005)
    return x.permute(dims).contiguous()
"""
SLOW = QUICK.replace("0.005", "0.020")
WRONG = """
def permute(x, dims):
    return x.permute(dims).contiguous() + 1
"""
CASES = ("--shape", "256x256,512x256", "--dtype", "fp32", "--dims", "1,0")
SWEEP = {"shapes": [[256, 256]], "dtypes": ["F32"], "params": {"dims": [[1, 0]]}}

Command = Callable[..., tuple[int, str, str]]


@pytest.fixture
def warpcall(
    lab: Lab, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Command:
    """The command as ann, in a folder that has her files."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("WARPCALL_API_KEY", lab.keys["ann"])
    for name, source in (("quick", QUICK), ("slow", SLOW), ("wrong", WRONG)):
        Path(f"{name}.py").write_text(source)
    return command_for(lab.server, monkeypatch, capsys)


def test_a_slower_head_is_found_by_two_jobs(warpcall: Command, lab: Lab) -> None:
    code, out, err = warpcall(
        "regression", "permute", "--base", "quick.py", "--head", "slow.py", *CASES,
        "--markdown", "check.md",
    )  # fmt: skip

    assert (code, err) == (1, "")
    lines = out.splitlines()
    assert lines[0].startswith("quick.py is ann/quick@")
    assert lines[2] == "base: ann/quick, head: ann/slow; times in us"
    assert lines[-1] == "slower: ann/slow is slower than ann/quick in 2 of 2 cases."
    jobs = lines[-2].removeprefix("jobs: ").split()
    assert len(jobs) == 2
    assert all(len(line) <= 80 for line in lines)
    with lab.client("ann") as gpu:
        found = [gpu.jobs.get(job) for job in jobs]
    tags = [job.tags for job in found]
    assert tags == [["regression"], ["regression", f"repeats-{jobs[0]}"]]
    assert [job.implementations for job in found] == [
        ["ann/quick", "ann/slow"],
        ["ann/slow", "ann/quick"],
    ]
    markdown = Path("check.md").read_text()
    assert markdown.startswith("### Warpcall: permute slower\n")
    assert f"[{jobs[0]}]({lab.server.url}/jobs/{jobs[0]})" in markdown
    headers = {"authorization": f"Bearer {lab.keys['ann']}"}
    path = f"{lab.server.url}/v1/jobs/{jobs[1]}/regression"
    stored = httpx.get(path, headers=headers, params={"format": "markdown"})
    assert stored.headers["content-type"].startswith("text/markdown")
    assert [row.split(" | ")[:4] for row in stored.text.splitlines() if "x=F32" in row] == [
        row.split(" | ")[:4] for row in markdown.splitlines() if "x=F32" in row
    ]


def test_a_faster_head_passes_after_one_job(warpcall: Command) -> None:
    code, out, err = warpcall(
        "regression", "permute", "--base", "slow.py", "--head", "quick.py", *CASES, "--json"
    )

    found = json.loads(out)
    assert (code, err, found["outcome"], len(found["jobs"])) == (0, "", "passed", 1)
    assert [row["outcome"] for row in found["rows"]] == ["passed", "passed"]


def test_a_wrong_head_fails_and_the_same_source_passes(warpcall: Command) -> None:
    wrong = warpcall(
        "regression", "permute", "--base", "torch", "--head", "wrong.py", *CASES, "--markdown", "-"
    )
    same = warpcall("regression", "permute", "--base", "quick.py", "--head", "quick.py", *CASES)

    assert wrong[0] == 1
    assert wrong[1].startswith("### Warpcall: permute failed\n\nann/wrong has no time in 2 of 2")
    assert same[0] == 0
    assert "is compared with itself, so nothing was measured." in same[1]


def test_a_job_is_compared_with_a_stored_one(warpcall: Command, lab: Lab) -> None:
    with lab.client("ann") as gpu:
        stored = gpu.jobs.submit("permute", implementations=["torch"], sweep=SWEEP, fresh=True)
        stored.wait()

    code, out, err = warpcall("regression", "permute", "--baseline", stored.id, "--json")
    other = warpcall("regression", "isin", "--baseline", stored.id)
    not_timed = warpcall("regression", "permute", "--baseline", stored.id, "--head", "warpcall")

    found = json.loads(out)
    assert err == ""
    assert code == {"passed": 0, "slower": 1, "undecided": 3}[found["outcome"]]
    assert (found["base"], found["head"]) == (f"the job {stored.id}", "torch")
    assert [row["case"] for row in found["rows"]] == ["permute x=F32[256,256] dims=1,0"]
    assert stored.id not in found["jobs"]
    assert 1 <= len(found["jobs"]) <= 3
    assert other[0] == not_timed[0] == 1
    assert "baseline must be a job of isin" in other[2]
    assert "head must be timed in the job" in not_timed[2]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--base", "torch"], "--base and --head must both be given, or --baseline"),
        (["--base", "torch", "--baseline", "3f2a"], "cannot be given together"),
        (["--base", "torch", "--head", "warpcall", "--allow", "0"], "--allow must be above 0"),
        (["--base", "torch", "--head", "warpcall", "--allow", "101"], "at most 100 percent"),
        (["--base", "none.py", "--head", "torch", *CASES], "none.py: No such file"),
    ],
)
def test_what_is_compared_must_be_said(warpcall: Command, words: list[str], message: str) -> None:
    code, out, err = warpcall("regression", "permute", *words)

    assert code in (1, 2)
    assert out == ""
    assert message in err


def test_the_async_client_checks_as_well(lab: Lab) -> None:
    async def check() -> Regression:
        async with AsyncClient(lab.server.url, api_key=lab.keys["ann"]) as gpu:
            with pytest.raises(InvalidInput, match="allowed must be above 0"):
                await gpu.regressions.check("permute", base="torch", head="x", allowed=0)
            return await gpu.regressions.check(
                "permute", base="torch", head="torch", sweep=SWEEP, allowed=0.02
            )

    assert asyncio.run(check()).outcome == "passed"
