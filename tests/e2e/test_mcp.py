"""`warpcall mcp`, driven by the client of the package `mcp` against a real server."""

from __future__ import annotations

import asyncio
import json
import os
import sys
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from contextlib import asynccontextmanager
from typing import Any

import pytest

from tests.e2e.lab import Lab
from tests.service.uploads.problem_sources import SCALE
from tests.service.uploads.sources import TRITON

mcp = pytest.importorskip("mcp", reason="the extra `mcp` is not installed")

pytestmark = pytest.mark.slow

RIGHT = "def permute(x, dims):\n    return x.permute(dims).contiguous()\n"
CASE = {"shape": [16, 16], "dtype": "F32", "params": {"dims": [1, 0]}}
MOST_CHARACTERS = 3000  # of an answer

Call = tuple[str, Mapping[str, Any]]
Answers = list[tuple[bool, str]]  # whether each call failed, and its text
Called = Callable[..., Answers]


@asynccontextmanager
async def started(lab: Lab, key: str) -> AsyncIterator[Any]:
    """The command, and a client that is connected to it."""
    environment = {**os.environ, "WARPCALL_URL": lab.server.url, "WARPCALL_API_KEY": key}
    command = mcp.StdioServerParameters(
        command=sys.executable, args=["-m", "warpcall", "mcp"], env=environment
    )
    async with mcp.Client(command) as client:
        yield client


async def answered(client: Any, *calls: Call) -> Answers:
    answers = [await client.call_tool(name, dict(given)) for name, given in calls]
    return [(bool(one.is_error), one.content[0].text) for one in answers]


@pytest.fixture(scope="module")
def called(lab: Lab) -> Iterator[Called]:
    """Calls tools of one process, which has ann's key: its start takes 2 s of CPU."""
    with asyncio.Runner() as runner:
        calls: asyncio.Queue[tuple[Call, ...]] = asyncio.Queue()
        answers: asyncio.Queue[Answers] = asyncio.Queue()

        async def serve() -> None:
            """Start, use and end the client in one task, as its library asks for."""
            async with started(lab, lab.keys["ann"]) as client:
                while asked := await calls.get():
                    await answers.put(await answered(client, *asked))

        async def ask(*asked: Call) -> Answers:
            await calls.put(asked)
            found = asyncio.create_task(answers.get())
            await asyncio.wait([found, serving], return_when=asyncio.FIRST_COMPLETED)
            if serving.done():
                await serving  # raises what has ended it
            return await found

        async def start() -> asyncio.Task[None]:
            return asyncio.create_task(serve())

        serving = runner.run(start())
        yield lambda *asked: runner.run(ask(*asked))
        runner.run(calls.put(()))
        runner.run(asyncio.wait_for(serving, 60))


def test_a_source_becomes_a_verdict_and_a_failure_says_how_to_mend_it(called: Called) -> None:
    given = {"op": "permute", "cases": [CASE], "baseline": "torch"}
    broken = RIGHT.replace("dims)", "dims", 1)

    answers = called(
        ("list_ops", {}),
        ("list_ops", {"name": "permute"}),
        ("evaluate", {**given, "source": broken}),
        ("evaluate", {**given, "source": RIGHT.replace("()", "() + 1")}),
        ("evaluate", {**given, "source": RIGHT}),
        ("evaluate", {**given, "cases": [CASE, {**CASE, "shape": [3, 5]}], "source": RIGHT}),
    )

    assert [failed for failed, _ in answers] == 6 * [False], answers
    assert all(len(text) <= MOST_CHARACTERS for _, text in answers[2:])
    ops, op, syntax, wrong, right, two = (json.loads(text) for _, text in answers)
    assert "permute" in [one["name"] for one in ops["ops"]]
    assert [one["name"] for one in op["params"]] == ["dims"]
    assert syntax["failure"]["kind"] == "import_error"
    assert "line 1" in syntax["failure"]["text"]
    assert "Mend the line" in syntax["failure"]["next"]
    assert (wrong["compiled"], wrong["failure"]["kind"]) == (True, "wrong_result")
    assert (right["compiled"], right["right"], right["case"].split()[0]) == (True, True, "permute")
    assert "failure" not in right
    assert [one["right"] for one in two["cases"]] == [True, True]

    known = {"implementation": right["implementation"], "case": right["case"]}
    history, problems, none = called(
        ("history", known),
        ("list_problems", {}),
        ("history", {**known, "implementation": "ann/nothing"}),
    )

    assert json.loads(history[1])["points"][0]["job"] in right["id"] + two["id"]
    assert json.loads(none[1]) == {"points": []}
    assert isinstance(json.loads(problems[1])["problems"], list)


def test_a_problem_is_listed_and_evaluated(lab: Lab, called: Called) -> None:
    with lab.client("ann") as gpu:
        name = gpu.problems.add(SCALE, name="of-mcp").name
    try:
        listed, found = called(
            ("list_problems", {}),
            ("evaluate", {"op": name, "cases": [{}], "implementation": "torch", "baseline": "copy",
                          "precision": "check"}),
        )  # fmt: skip
    finally:
        with lab.client("ann") as gpu:
            gpu.problems.remove(name)

    assert name in [one["name"] for one in json.loads(listed[1])["problems"]]
    assert json.loads(found[1])["op"] == name


def test_kernels_are_explained(called: Called) -> None:
    ((failed, text),) = called(("explain", {"op": "permute", "case": CASE, "gpu": "sm_90"}))

    assert not failed, text
    report = json.loads(text)
    assert report["kernels"][0]["registers"] > 0
    assert "texts" not in report["kernels"][0]


SLEEPS = """
import time


def permute(x, dims):
    time.sleep({})
    return x.permute(dims).contiguous()
"""


def test_sources_race_and_are_not_kept(lab: Lab, called: Called) -> None:
    sources = [
        SLEEPS.format(0.2),
        RIGHT.replace("()", "() + 1"),
        SLEEPS.format(0.02),
        "def x(:\n",
    ]
    given = {"op": "permute", "cases": [CASE], "sources": sources}

    (failed, text), (of_two_failed, of_two) = called(
                ("race", given),
        ("race", {**given, "cases": [CASE, {**CASE, "shape": [9, 7]}], "sources": sources[:1],
                  "implementations": ["torch"]}),
    )  # fmt: skip

    assert not failed, text
    assert len(text) <= MOST_CHARACTERS
    found = json.loads(text)
    assert (found["outcome"], found["winner"]) == ("winner", {"source": 2})
    assert [(one["source"], one["rank"]) for one in found["ranking"]] == [(2, 1), (0, 2)]
    assert found["ranking"][1]["ratio_low"] > 1
    assert {one["source"]: one["status"] for one in found["failed"]} == {
        1: "wrong_result",
        3: "refused",
    }
    assert "line 1" in found["failed"][1]["error"]
    assert "evaluate" in found["next"]
    assert not of_two_failed, of_two
    assert json.loads(of_two)["never_best"] == [0]
    assert [one["fastest"] for one in json.loads(of_two)["cases"]] == [["torch"], ["torch"]]
    with lab.client("ann") as gpu:
        stored = [one.name for one in gpu.implementations.list(user="ann").implementations]
    assert "ann/permute" not in stored


def test_a_verified_kernel_without_a_gpu_is_unchecked(called: Called) -> None:
    given = {"op": "permute", "cases": [CASE], "source": TRITON, "verified": True}

    ((failed, text),) = called(("evaluate", given))

    assert not failed, text
    found = json.loads(text)
    assert (found["verified"], found["failure"]["kind"]) == (True, "unchecked")
    assert "compiled for sm_" in found["failure"]["text"]
    assert "a server with a GPU" in found["failure"]["next"]


def test_a_profile_needs_a_gpu_and_says_what_needs_none(lab: Lab, called: Called) -> None:
    ((failed, text),) = called(("profile", {"op": "permute", "case": CASE, "source": RIGHT}))

    assert failed
    assert text.endswith("next: Use explain, which needs neither a GPU nor Nsight Compute.")
    with lab.client("ann") as gpu:
        stored = [one.name for one in gpu.implementations.list(user="ann").implementations]
    assert "ann/permute" not in stored


# Calls that fail, and a part of what each says.
WRONG: tuple[tuple[Call, str], ...] = (
    (("evaluate", {"op": "nothing", "cases": [CASE], "source": RIGHT}), "op must be one of"),
    (("evaluate", {"op": "permute", "cases": [{"shape": [2]}], "source": RIGHT}), "cases.0"),
    (("list_ops", {"name": "nothing"}), "list_ops"),
    (("race", {"op": "permute", "cases": [CASE], "sources": [RIGHT]}), "a race needs 2"),
    (
        ("profile", {"op": "permute", "case": CASE, "implementation": "torch", "kernels": "("}),
        "profile_options.kernels: must be a regular expression",
    ),
)


@pytest.mark.parametrize(("call", "part"), WRONG)
def test_an_error_says_what_to_do_next(call: Call, part: str, called: Called) -> None:
    ((is_error, text),) = called(call)

    assert is_error
    assert part in text
    assert "\nnext: " in text


def test_a_wrong_key_says_where_to_get_one(lab: Lab) -> None:
    async def run() -> Answers:
        async with started(lab, "wc_00000000_wrong") as client:
            return await answered(client, ("list_problems", {}))

    ((failed, text),) = asyncio.run(run())

    assert failed
    assert "next: Set WARPCALL_API_KEY" in text
