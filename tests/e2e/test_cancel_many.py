"""`warpcall cancel` of several jobs: by their ids, by a tag, and all."""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest

from tests.e2e.command import Warpcall
from tests.servers import Server, running_server
from warpcall import Client

pytestmark = pytest.mark.slow

CASES = [{"shape": [8, n], "dtype": "F32", "params": {"dims": [1, 0]}} for n in range(9, 29)]


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    """A server whose jobs are all of these tests, also where others use one that runs already.

    Its jobs take minutes, so that none ends before it is cancelled.
    """
    with running_server() as running:
        yield running


@pytest.fixture
def gpu(server: Server) -> Iterator[Client]:
    with Client(server.url) as gpu:
        yield gpu
        for job in gpu.jobs.list(limit=500):
            job.cancel()


def submit(gpu: Client, *tags: str) -> str:
    return gpu.jobs.submit("permute", cases=CASES, precision="publish", tags=tags, fresh=True).id


def states(gpu: Client, *ids: str) -> set[str]:
    return {"cancelled" if gpu.jobs.get(id_).cancel_requested else "left" for id_ in ids}


def test_several_ids_are_cancelled_though_one_of_them_is_unknown(
    gpu: Client, warpcall: Warpcall
) -> None:
    left, a, b = submit(gpu), submit(gpu), submit(gpu)  # the first one keeps the device

    both = warpcall("cancel", a, "ffffffffffff", b)
    again = warpcall("cancel", a, b)
    as_json = json.loads(warpcall("cancel", b, left, "--json")[1])

    assert both[0] == 1
    first, second, count = both[1].splitlines()
    assert first.startswith(f"{a} is cancelled; 0 of 20 cases measured")
    assert second.startswith(f"{b} is cancelled; 0 of 20 cases measured")
    assert count == "2 jobs cancelled"
    assert "ffffffffffff" in both[2]
    assert states(gpu, a, b, left) == {"cancelled"}
    assert again[0] == 0
    assert again[1].splitlines()[1] == f"{b} had ended before: cancelled"
    assert [job["id"] for job in as_json] == [b, left]


def test_unknown_ids_do_not_say_that_there_are_no_jobs(warpcall: Warpcall) -> None:
    code, out, err = warpcall("cancel", "ffffffffffff", "eeeeeeeeeeee")

    assert (code, out) == (1, "0 jobs cancelled\n")
    assert "ffffffffffff" in err
    assert "eeeeeeeeeeee" in err


def test_jobs_with_a_tag_are_cancelled_and_then_all(gpu: Client, warpcall: Warpcall) -> None:
    night, other, third = submit(gpu, "night"), submit(gpu, "day"), submit(gpu)

    tagged = warpcall("cancel", "--tag", "night")
    assert states(gpu, other, third) == {"left"}
    every = warpcall("cancel", "--all")
    for id_ in (night, other, third):
        warpcall("watch", id_)
    none, untagged = warpcall("cancel", "--all"), warpcall("cancel", "--tag", "night")

    assert [result[0] for result in (tagged, every, none, untagged)] == [0, 0, 0, 0]
    assert tagged[1].splitlines()[-1] == "1 job cancelled"
    assert tagged[1].startswith(f"{night} is ")
    assert {other, third} <= {line.split()[0] for line in every[1].splitlines()}
    assert every[1].splitlines()[-1].endswith(" jobs cancelled")
    assert none[1] == "you have no unfinished jobs\n"
    assert untagged[1] == "you have no unfinished jobs with the tag night\n"
    assert states(gpu, night, other, third) == {"cancelled"}


def test_what_to_cancel_is_given_in_one_way(warpcall: Warpcall) -> None:
    for words in ((), ("j1", "--all"), ("--tag", "night", "--all"), ("j1", "--tag", "night")):
        assert warpcall("cancel", *words) == (
            *(2, ""),
            "warpcall: cancel takes either ids of jobs, or --tag TAG, or --all\n",
        )
