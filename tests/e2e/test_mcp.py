"""`warpcall mcp`, driven by the client of the package `mcp` against a real server."""

from __future__ import annotations

import asyncio
import json
import os
import sys
from collections.abc import Mapping
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


def called(lab: Lab, *calls: Call, key: str | None = None) -> list[tuple[bool, str]]:
    """Whether each call failed, and its text."""
    environment = {
        **os.environ,
        "WARPCALL_URL": lab.server.url,
        "WARPCALL_API_KEY": lab.keys["ann"] if key is None else key,
    }
    command = mcp.StdioServerParameters(
        command=sys.executable, args=["-m", "warpcall", "mcp"], env=environment
    )

    async def run() -> list[tuple[bool, str]]:
        async with mcp.Client(command) as client:
            answers = [await client.call_tool(name, dict(given)) for name, given in calls]
        return [(bool(one.is_error), one.content[0].text) for one in answers]

    return asyncio.run(run())


def test_a_source_becomes_a_verdict_and_a_failure_says_how_to_mend_it(lab: Lab) -> None:
    given = {"op": "permute", "cases": [CASE], "baseline": "torch"}
    broken = RIGHT.replace("dims)", "dims", 1)

    answers = called(
        lab,
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
        lab,
        ("history", known),
        ("list_problems", {}),
        ("history", {**known, "implementation": "ann/nothing"}),
    )

    assert json.loads(history[1])["points"][0]["job"] in right["id"] + two["id"]
    assert json.loads(none[1]) == {"points": []}
    assert isinstance(json.loads(problems[1])["problems"], list)


def test_a_problem_is_listed_and_evaluated(lab: Lab) -> None:
    with lab.client("ann") as gpu:
        name = gpu.problems.add(SCALE, name="of-mcp").name
    try:
        listed, found = called(
            lab,
            ("list_problems", {}),
            ("evaluate", {"op": name, "cases": [{}], "implementation": "torch.compile",
                          "precision": "check"}),
        )  # fmt: skip
    finally:
        with lab.client("ann") as gpu:
            gpu.problems.remove(name)

    assert name in [one["name"] for one in json.loads(listed[1])["problems"]]
    assert json.loads(found[1])["op"] == name


def test_kernels_are_explained(lab: Lab) -> None:
    ((failed, text),) = called(lab, ("explain", {"op": "permute", "case": CASE, "gpu": "sm_90"}))

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


def test_sources_race_and_are_not_kept(lab: Lab) -> None:
    sources = [
        SLEEPS.format(0.2),
        RIGHT.replace("()", "() + 1"),
        SLEEPS.format(0.02),
        "def x(:\n",
    ]
    given = {"op": "permute", "cases": [CASE], "sources": sources}

    (failed, text), (of_two_failed, of_two) = called(
        lab,
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


def test_a_verified_kernel_without_a_gpu_is_unchecked(lab: Lab) -> None:
    given = {"op": "permute", "cases": [CASE], "source": TRITON, "verified": True}

    ((failed, text),) = called(lab, ("evaluate", given))

    assert not failed, text
    found = json.loads(text)
    assert (found["verified"], found["failure"]["kind"]) == (True, "unchecked")
    assert "compiled for sm_" in found["failure"]["text"]
    assert "a server with a GPU" in found["failure"]["next"]


def test_a_profile_needs_a_gpu_and_says_what_needs_none(lab: Lab) -> None:
    ((failed, text),) = called(lab, ("profile", {"op": "permute", "case": CASE, "source": RIGHT}))

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


@pytest.fixture(scope="module")
def failed(lab: Lab) -> list[tuple[bool, str]]:
    """The answers to the calls that fail. One process answers them all: its start takes 2 s of CPU."""
    return called(lab, *(call for call, _ in WRONG))


@pytest.mark.parametrize("number", range(len(WRONG)))
def test_an_error_says_what_to_do_next(number: int, failed: list[tuple[bool, str]]) -> None:
    is_error, text = failed[number]

    assert is_error
    assert WRONG[number][1] in text
    assert "\nnext: " in text


def test_a_wrong_key_says_where_to_get_one(lab: Lab) -> None:
    ((failed, text),) = called(lab, ("list_problems", {}), key="wc_00000000_wrong")

    assert failed
    assert "next: Set WARPCALL_API_KEY" in text
