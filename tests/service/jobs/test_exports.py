"""Results in parts: each format, whatever its parts, shows one state of the job and all of it."""

from __future__ import annotations

import csv
import io
import itertools
import json
import zlib
from typing import Any

import pytest
import sqlalchemy as sa

from tests.service.job_rows import caller
from tests.service.stored import IMPLEMENTATIONS, SHOWN, finished, number, result
from warpcall.jobs.results import Results
from warpcall_bench.jobs import exports, lifecycle
from warpcall_bench.jobs.tables import Job, JobCase
from warpcall_bench.jobs.tables import Measurement as Row
from warpcall_service.formats.payloads import checked, to_json
from warpcall_service.store.database import Store

CASES = 5


def export(store: Store, job_id: str, form: str, *, samples: bool = False) -> list[bytes]:
    """Each part of an export, rendered in a transaction of its own."""
    with store.read() as session:
        steps = exports.begin(session, caller("alice"), job_id, form, samples)
    parts = []
    for step in steps:
        with store.read() as session:
            parts.append(step(session))
    return parts


@pytest.mark.parametrize(("cases", "nbytes"), [(1, 1 << 30), (2, 1 << 30), (16, 1), (16, 1 << 30)])
def test_every_format_is_the_same_whatever_its_parts(
    cases: int, nbytes: int, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    job_id = finished(store, "alice", CASES)
    whole = {form: b"".join(export(store, job_id, form, samples=True)) for form in exports.MEDIA}
    monkeypatch.setattr(exports, "PART_CASES", cases)
    monkeypatch.setattr(exports, "PART_BYTES", nbytes)

    parts = {form: export(store, job_id, form, samples=True) for form in exports.MEDIA}

    for form in exports.MEDIA:
        assert b"".join(parts[form]) == whole[form]
    assert len(parts["json"]) == 3 + -(-CASES // cases) + (
        CASES if nbytes == 1 else -(-CASES // cases)
    )
    payload = json.loads(whole["json"])
    assert whole["json"] == to_json(checked(Results, payload))
    rows = [(row["position"], row["implementation"]) for row in payload["measurements"]]
    assert rows == list(itertools.product(range(CASES), IMPLEMENTATIONS))
    table = list(csv.DictReader(io.StringIO(whole["csv"].decode())))
    assert [(int(row["position"]), row["implementation"]) for row in table] == rows
    assert {row["tags"] for row in table} == {"a b"}
    assert {(row["op"], row["shapes"], row["dtypes"]) for row in table} == {("case", "", "")}
    assert [row["params"] for row in table] == [
        row["case"].removeprefix("case ") for row in payload["measurements"]
    ]
    for case in payload["cases"]:
        expected = result(3, case["position"] % 3)
        assert case["samples_us"] == {
            i["name"]: i["samples_us"] for i in expected["implementations"]
        }
        assert {name: case[name] for name in SHOWN if name in case} == {
            name: value for name, value in SHOWN.items() if name in case
        }


@pytest.mark.parametrize(
    ("key", "columns"),
    [
        ("permute x=BF16[8,4] dims=1,0", ("permute", "8x4", "BF16", "dims=1,0")),
        ("isin elements=I64[100]:0..99 test_elements=I32[]", ("isin", "100 scalar", "I64 I32", "")),
        ("ann/row-norm x=F8_E4M3[2,3]:ones:strided eps=1e-05 causal=true",
         ("ann/row-norm", "2x3", "F8_E4M3", "eps=1e-05 causal=true")),
    ],
)  # fmt: skip
def test_a_case_is_columns_of_csv(key: str, columns: tuple[str, ...]) -> None:
    assert exports.case_columns(key) == dict(
        zip(("op", "shapes", "dtypes", "params"), columns, strict=True)
    )


@pytest.mark.parametrize("form", exports.MEDIA)
def test_a_job_that_has_measured_nothing_yet_is_exported(form: str, store: Store) -> None:
    job_id = finished(store, "alice", 0, of=2)

    whole = b"".join(export(store, job_id, form))

    if form == "json":
        payload = json.loads(whole)
        assert payload["measurements"] == payload["cases"] == []
    else:
        assert len(whole.decode().strip().splitlines()) == 1


def test_an_export_shows_one_state_although_the_job_goes_on(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    job_id = finished(store, "alice", 2, of=4)
    monkeypatch.setattr(exports, "PART_CASES", 1)

    with store.read() as session:
        steps = exports.begin(session, caller("alice"), job_id, "json", False)
    parts: list[bytes] = []
    for step in steps:
        with store.read() as session:
            parts.append(step(session))
        if len(parts) in (1, 3):
            with store.write() as session:
                job = session.get_one(Job, number(store, job_id))
                lifecycle.save_case(session, job, 2 + len(parts) // 3, result(3, 0))

    payload: dict[str, Any] = json.loads(b"".join(parts))
    assert [case["position"] for case in payload["cases"]] == [0, 1]
    assert {row["position"] for row in payload["measurements"]} == {0, 1}
    assert len(json.loads(b"".join(export(store, job_id, "json")))["cases"]) == 4


@pytest.mark.parametrize("form", exports.MEDIA)
def test_no_export_has_a_character_on_which_a_program_acts(form: str, store: Store) -> None:
    hidden = "\x00\x1b[2J\u202e\x9b\u2066"
    job_id = finished(store, "alice", 1)
    with store.write() as session:
        row = session.scalars(sa.select(Row)).first()
        assert row is not None
        changes = {"error": f"a{hidden}b", "tags": [f"c{hidden}d"], "method": f"e{hidden}f\tg\r\nh"}
        row.summary = json.dumps({**json.loads(row.summary), **changes})
        case = session.scalars(sa.select(JobCase)).one()
        case.result = zlib.compress(json.dumps(result(3, 0, tags=[f"i{hidden}j"])).encode())
        session.scalars(
            sa.select(Job)
        ).one().detail = f"k{hidden[1:]}l"  # a database may refuse NUL
        session.scalars(sa.select(Job)).one().environment = "m | n\no"

    whole = b"".join(export(store, job_id, form))

    if form == "csv":
        texts = [value for line in csv.reader(io.StringIO(whole.decode())) for value in line]
    else:
        texts = whole.decode().splitlines()
    for text in texts:
        assert "".join(text.split("\n")).isprintable(), text


def test_no_cell_of_csv_is_a_formula(store: Store) -> None:
    job_id = finished(store, "alice", 1)
    formulas = ['=HYPERLINK("http://x")', "+1", "-1+2", "@SUM(A1)", "  =1", "\t=1"]
    with store.write() as session:
        rows = session.scalars(sa.select(Row).order_by(Row.implementation)).all()
        for row, formula in zip(rows, formulas, strict=False):
            row.summary = json.dumps(
                {**json.loads(row.summary), "error": formula, "tags": [formula], "host_us": -0.0}
            )

    table = list(csv.DictReader(io.StringIO(b"".join(export(store, job_id, "csv")).decode())))

    found = {row["error"] for row in table if row["error"]}
    assert len(found) == len(formulas)
    assert all(text.startswith("'") for text in found)
    assert {row["tags"][:1] for row in table} == {"'", "a"}
    assert {row["median_us"] for row in table} == {"2.0"}
