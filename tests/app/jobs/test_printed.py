"""What uploads printed in a job: its answer, and how the page of a case shows it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import httpx
import pytest

from tests.app.harness import running_app
from tests.service.databases import Database
from tests.service.stored import IMPLEMENTATIONS, finished, number
from warpcall_bench.jobs import printed
from warpcall_bench.jobs.tables import Job
from warpcall_bench.runs.events import Printed

FIRST, SECOND = IMPLEMENTATIONS[:2]
HTML = "<script>alert(1)</script>"
LONG = "y" * 100_000


@dataclass(frozen=True)
class Lab:
    http: httpx.Client
    job: str
    other: str


@pytest.fixture(scope="module")
def lab(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lab]:
    folder = tmp_path_factory.mktemp("data")
    store = Database("sqlite", {"WARPCALL_DATA_DIR": str(folder)}).store()
    store.migrate()
    job, other = finished(store, "local", 2), finished(store, "local", 1)
    with store.write() as session:
        row = session.get_one(Job, number(store, job))
        printed.store(session, row, Printed(1, FIRST, "of an attempt before"))
        session.flush()
        for position, name, text in ((1, FIRST, HTML), (1, SECOND, LONG), (0, FIRST, "a\tb\n")):
            printed.store(session, row, Printed(position, name, text))
    store.close()
    with running_app(data_dir=Path(folder), arena_bytes="16MiB") as app, app.client() as http:
        yield Lab(http, job, other)


def test_the_texts_of_a_job_are_answered_case_by_case(lab: Lab) -> None:
    found = lab.http.get(f"/v1/jobs/{lab.job}/printed").json()

    assert found["id"] == lab.job
    assert [(one["position"], one["implementation"], one["text"]) for one in found["printed"]] == [
        (0, FIRST, "a\tb\n"),
        *sorted([(1, FIRST, HTML), (1, SECOND, LONG)]),
    ]
    assert found["printed"][0]["case"] == "case 0"


def test_a_job_in_which_nothing_was_printed_has_an_empty_list(lab: Lab) -> None:
    answer = lab.http.get(f"/v1/jobs/{lab.other}/printed")

    assert answer.json() == {"id": lab.other, "printed": []}


def test_the_page_of_a_case_shows_what_was_printed_in_it_as_text(lab: Lab) -> None:
    headers = {"accept": "text/html"}
    page = lab.http.get(f"/jobs/{lab.job}/cases/1", headers=headers).text
    without = lab.http.get(f"/jobs/{lab.other}/cases/0", headers=headers).text

    assert f"What {FIRST} printed" in page
    assert "&lt;script&gt;alert(1)&lt;/script&gt;" in page
    assert HTML not in page
    assert "printed" not in without
