"""What `print` and `repr` show of jobs and results, and a notebook of lists."""

from __future__ import annotations

import copy
import pickle
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from tests.client.first_sight.test_discovery import MEASURED, RESULTS
from tests.client.flavours import Flavour
from tests.client.job_answers import DETAILS
from tests.client.scripted import Script, ScriptedServer
from tests.client.scripted_ops import say
from warpcall._extras.tables import Listed, html_table
from warpcall.health import Health
from warpcall.jobs.results import Board, BoardEntry, Comparison, History, HistoryPoint, Standing

CASE = "permute x=F32[8,8] dims=1,0"
NOW = "2026-01-01T00:00:00.000Z"


def saying(answer: dict[str, Any]) -> Script:
    """A script of a server that answers with JSON."""
    return lambda visit: say(visit, 200, answer)


def test_results_are_printed_as_the_command_line_prints_them() -> None:
    torch = replace(MEASURED, implementation="torch", ratio=2.0, verdict="slower", tags=[])
    results = replace(
        RESULTS, measurements=[MEASURED, torch], remarks=["no GPU:\x1b[31m red"], state="partial"
    )

    lines = str(results).splitlines()

    assert lines[0].startswith("times in us; ratio and verdict: to warpcall, above 1 takes longer")
    assert lines[1].split()[:4] == ["median", "95", "%", "CI"]
    assert lines[2] == "<script>"
    assert lines[3].split() == ["warpcall", "1.235"]
    assert lines[4].split() == ["torch", "1.235", "2.000", "slower"]
    assert lines[5] == "j1 partial, 0 of 0 cases converged"
    assert lines[6] == r"no GPU:\x1b[31m red"
    assert repr(results) == "Results of 2 rows: see to_rows() or to_pandas()"
    assert str(replace(RESULTS, measurements=[])).startswith("j1 succeeded, ")


def test_other_results_are_printed_as_tables_too() -> None:
    entry = BoardEntry(
        rank=1,
        implementation="warpcall",
        median_us=2.5,
        relative=1.25,
        relative_low=1.2,
        relative_high=1.3,
        job="j1",
        user="ann",
        finished_at=NOW,
    )
    standing = Standing(case=CASE, entries=[entry])
    board = Board(op="permute", device="cpu", devices=["cpu"], standings=[standing], steps=[])
    point = HistoryPoint(
        job="j1",
        user="ann",
        finished_at=NOW,
        environment="e",
        changed=[],
        measurement=MEASURED,
    )
    history = History(op="permute", implementation="warpcall", case=CASE, points=[point])
    compared = Comparison(
        a="j1",
        b="j2",
        same_environment=True,
        differences={},
        rows=[],
        only_a=[CASE],
        only_b=[],
    )

    assert str(board).splitlines()[0].startswith("permute on cpu; times in us")
    assert str(board).splitlines()[-1].split()[:3] == ["warpcall", "1", "2.5"]
    assert board.to_rows()[0]["case"] == CASE
    assert repr(board) == "Board of 1 row: see to_rows() or to_pandas()"
    assert f"<td>{CASE}</td><td>1</td><td>warpcall</td>" in board._repr_html_()
    assert str(replace(board, standings=[])) == repr(replace(board, standings=[]))
    assert str(history).splitlines()[0] == f"warpcall, {CASE}"
    assert "  j1   ann   1.235" in str(history).splitlines()[2]
    assert str(compared).splitlines() == [
        "they have measured nothing in common",
        f"only in a: {CASE}",
    ]


def test_a_job_says_what_it_measures_its_state_and_its_server(direct: Flavour) -> None:
    one = {**DETAILS, "first_case": CASE, "cases_total": 1}
    many = {**one, "cases_total": 1201, "state": "partial", "detail": "bad\x1b"}
    old = {**DETAILS, "first_case": "", "cases_total": 1, "op": "isin"}

    scripts = [saying(job) for job in (one, many, old)]
    with ScriptedServer(*scripts) as server:
        found = direct.ask(server, *[lambda gpu: gpu.jobs.get("j1")] * 3)
        texts = [repr(job) for job in found]

    kind = "AsyncJob" if direct.asynchronous else "Job"
    state = DETAILS["state"]
    assert texts[0] == f"{kind}('{one['id']}', {CASE}, {state} on {server.url})"
    assert f", {CASE} + 1,200 more, partial on {server.url}: bad\\x1b)" in texts[1]
    assert f", isin, {state} on " in texts[2]


def test_lists_of_a_client_are_tables_in_a_notebook(direct: Flavour) -> None:
    job = {**DETAILS, "first_case": "<b>"}
    device: dict[str, Any] = {"name": "cpu", "label": "cpu", "state": "ready", "reason": ""}
    device |= {"queued": 0, "in_flight": 0, "restarts": 0, "step_s": 10.0, "steps": []}
    node: dict[str, Any] = {
        "id": "n1",
        "host": "gpu-box",
        "state": "alive",
        "url": "http://gpu-box:8000",
    }
    node |= {"started_at": NOW, "beat_at": NOW, "gone_since": None, "version": "1"}
    node |= {"versions": {}, "ops_sha256": None, "lanes": []}
    entry: dict[str, Any] = {"name": "warpcall", "kind": "shipped", "doc": "ours"}
    entry |= dict.fromkeys(
        ("op", "user", "version", "sha256", "function", "private", "nbytes", "created_at")
    )
    answers: list[tuple[dict[str, Any], Any, str]] = [
        ({"jobs": [job], "next": None}, lambda gpu: gpu.jobs.list(), "<td>&lt;b&gt;</td>"),
        ({"devices": [device]}, lambda gpu: gpu.devices(), "<td>ready</td>"),
        (
            {"node": "n1", "read_s_ago": 0.0, "nodes": [node]},
            lambda gpu: gpu.nodes(),
            "<td>gpu-box</td>",
        ),
        (
            {"implementations": [entry], "errors": [], "next": None},
            lambda gpu: gpu.implementations.list(),
            "<td>ours</td>",
        ),
    ]

    for answer, question, expected in answers:
        with ScriptedServer(saying(answer)) as server:
            (found,) = direct.ask(server, question)
        assert expected in found._repr_html_()


def test_an_empty_list_is_shown_as_python_shows_it(direct: Flavour) -> None:
    with ScriptedServer(saying({"jobs": [], "next": None})) as server:
        (found,) = direct.ask(server, lambda gpu: gpu.jobs.list())

    assert found._repr_html_() is None
    assert found == []
    assert repr(found) == "[]"


def test_a_list_that_is_shown_is_a_list() -> None:
    class Thing:
        name = "<x>"

    things = Listed([Thing] * 300, ("name",))

    page = things._repr_html_()
    assert page is not None
    assert page.count("<td>&lt;x&gt;</td>") == 200
    assert page.endswith("<p>and 100 more rows</p>")
    assert things == [Thing] * 300
    assert type(things[:2]) is list
    names = Listed([np.dtype("float64")], ("name",))
    for same in (copy.copy(names), pickle.loads(pickle.dumps(names))):
        assert same == names
        assert same._repr_html_() == names._repr_html_()


@pytest.mark.parametrize("value", [np.dtype("float64"), 0, "", False])
def test_a_column_with_such_a_value_is_shown(value: object) -> None:
    assert "<th>a</th>" in html_table(("a",), [{"a": value}])


def test_health_shows_why_a_server_is_not_ready() -> None:
    health = Health(status="unready", reasons=["<no lane>"], uploads="off", lanes=[])

    assert health._repr_html_() == "<p>unready; &lt;no lane&gt;</p>"
