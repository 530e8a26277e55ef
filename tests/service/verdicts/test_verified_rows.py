"""Rows of verified kernels: boards rank them, and what shows results says which they are."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Mapping
from typing import Any

import pytest

from tests.pages import lab
from tests.service.job_rows import caller, checked, request
from tests.service.stored import implementation, result
from warpcall.jobs.results import Board
from warpcall_bench.jobs import answers, exports, lifecycle, measurements, submissions
from warpcall_bench.pages.board import board_page
from warpcall_bench.pages.view import View
from warpcall_bench.summaries.board import NOT_VERIFIED, board, leader
from warpcall_service.store.database import Store

pytestmark = pytest.mark.slow

# What the author of the error of a failed row would have a query find.
FORGED = '"verified": true, \\"verified\\": true'
VIEW = View("./", "/board", caller("bob"))


def stored(store: Store, **rows: Mapping[str, Any]) -> str:
    """The id of a job with these rows, by implementation; "__" stands for the "/" in a name."""
    by_name = {name.replace("__", "/"): change for name, change in rows.items()}
    for name in filter(lambda name: "/" in name, by_name):
        lab.upload(store, "ann", "permute", name.partition("/")[2], "a source")
    with store.write() as session:
        asked = request(fresh=True, implementations=[*by_name])
        job, _ = submissions.submit(session, caller("ann"), asked, checked(), None, 1000)
        session.flush()
        job.environment = "NVIDIA H200 / 1"
        made = [
            {
                **implementation(name, [2.0] * 9),
                "relative": None,
                "verified": False,
                "tags": [],
                **dict.fromkeys(("ci_low_us", "ci_high_us"), change.get("median_us", 2.0)),
                **change,
            }
            for name, change in by_name.items()
        ]
        limit = implementation("copy", [2.0] * 9)
        lifecycle.save_case(session, job, 0, result(9, 0, implementations=made, limit=limit))
        lifecycle.end_job(session, job, "succeeded", "ok", "")
        return job.id


def board_of(store: Store, case: str = "", *, ranks_all: bool = False) -> Board:
    with store.read() as session:
        return board(session, caller("bob"), "permute", "", case, ranks_all=ranks_all)


def ranks(found: Board) -> list[tuple[int | None, str, list[str]]]:
    (standing,) = found.standings
    entries = (*standing.entries, *standing.unranked)
    return [(one.rank, one.implementation, one.tags) for one in entries]


def test_of_uploads_only_verified_kernels_are_ranked(store: Store) -> None:
    stored(
        store,
        torch={},
        ann__plain={"median_us": 1.0, "error": FORGED},
        ann__fast={"median_us": 1.5, "verified": True},
    )

    found, everything = board_of(store), board_of(store, ranks_all=True)

    plain = (None, "ann/plain", [NOT_VERIFIED])
    assert ranks(found) == [(1, "ann/fast", []), (2, "torch", []), plain]
    assert [one.verified for one in found.standings[0].entries] == [True, False]
    assert not found.ranks_all
    assert ranks(everything) == [(1, "ann/plain", []), (2, "ann/fast", []), (3, "torch", [])]
    assert everything.ranks_all


def test_a_verified_result_counts_even_if_a_better_one_is_not_verified(store: Store) -> None:
    stored(store, torch={}, ann__fast={"median_us": 1.0})
    stored(store, torch={}, ann__fast={"median_us": 1.5, "verified": True})
    stored(store, torch={}, ann__fast={"median_us": 1.4, "verified": True})

    found, everything = (board_of(store, "case 0", ranks_all=value) for value in (False, True))

    assert [one.median_us for one in found.standings[0].entries] == [1.4, 2.0]
    steps = [one.relative for one in found.steps if one.implementation == "ann/fast"]
    assert steps == [0.75, 0.7]
    assert [one.median_us for one in everything.standings[0].entries] == [1.0, 2.0]
    assert [one.relative for one in everything.steps if one.implementation == "ann/fast"] == [0.5]
    with store.read() as session:
        first = leader(session, caller("bob"), "permute")
    assert first is not None
    assert first.entry.median_us == 1.4
    assert [*first.shares] == pytest.approx([2 / 1.5, 2 / 1.4])


def test_a_suspect_time_has_no_rank_although_it_is_verified(store: Store) -> None:
    suspect = {"median_us": 1.0, "verified": True, "tags": ["suspect"]}
    stored(store, torch={}, ann__fast=suspect, ann__plain={"tags": ["suspect"]})

    first, *others = ranks(board_of(store))

    assert first == (1, "torch", [])
    assert others == [
        (None, "ann/fast", ["suspect"]),
        (None, "ann/plain", ["suspect", NOT_VERIFIED]),
    ]


def test_the_page_of_a_board_says_what_is_ranked_and_can_rank_all(store: Store) -> None:
    stored(store, torch={}, ann__plain={"median_us": 1.0})

    with store.read() as session:
        found, everything, case = (
            board_page(session, VIEW, ["permute"], "permute", "", case, ranks_all=ranks_all)
            for case, ranks_all in (("", False), ("", True), ("case 0", False))
        )

    assert "other code could fake its own time" in found
    assert "all=1" in found
    assert "torch leads alone in 1 of 1 case" in found
    assert "ann/plain leads alone in 1 of 1 case" in everything
    assert "Rank verified ones only" in everything
    assert "not verified" in case


def test_rows_exports_and_histories_say_which_are_verified(store: Store) -> None:
    job_id = stored(store, torch={}, ann__fast={"verified": True})

    with store.read() as session:
        job = submissions.find(session, caller("ann"), job_id)
        rows = measurements.measurements(session, job)
        (point,) = answers.history(
            session, caller("ann"), "permute", "ann/fast", "case 0", 10
        ).points
        texts = {
            kind: b"".join(
                step(session) for step in exports.begin(session, caller("ann"), job_id, kind, False)
            ).decode()
            for kind in ("csv", "json")
        }

    assert [row.verified for row in rows] == [False, True]
    assert point.measurement.verified
    written = [row["verified"] for row in csv.DictReader(io.StringIO(texts["csv"]))]
    assert written == ["False", "True"]
    assert [row["verified"] for row in json.loads(texts["json"])["measurements"]] == [False, True]
