"""Jobs that ask for a GPU or a server, and jobs that were interrupted: where they may run."""

from __future__ import annotations

import os
import signal
from contextlib import AbstractContextManager
from pathlib import Path

import httpx
import pytest
import sqlalchemy as sa

from tests.servers import Server
from tests.service.databases import Database
from tests.service.job_requests import Job, client, ended, reached, show, submit
from tests.service.job_rows import caller, checked, claim, request
from tests.service.job_rows import submit as submit_row
from tests.service.jobs.test_two_servers import WAITS, beside, measured_once, states
from tests.service.nodes.test_nodes import killed
from tests.service.requests import problem_of
from tests.waiting import until
from warpcall_bench.jobs import lifecycle, queue, submissions
from warpcall_bench.jobs.placement import Device
from warpcall_bench.jobs.tables import Job as Row
from warpcall_bench.jobs.tables import JobShare
from warpcall_service.store.database import Store

pytestmark = pytest.mark.slow

MODELS = Path(__file__).parents[1] / "models"
H200 = Device("a" * 16, "gpu-1", "NVIDIA H200")
H100 = Device("b" * 16, "gpu-2", "NVIDIA H100 80GB HBM3")


@pytest.mark.parametrize(
    ("gpu", "node", "fits"),
    [
        (None, None, True),
        ("H100", None, True),
        ("h100 80gb", None, True),
        ("NVIDIA H100 80GB HBM3", None, True),
        ("H200", None, False),
        ("H10", None, False),
        ("100", None, False),
        ("NVIDIA 80GB", None, False),
        ("HBM3 H100", None, False),
        (None, "gpu-2", True),
        (None, "b" * 16, True),
        (None, "gpu-1", False),
        (None, "gpu", False),
        ("H100", "gpu-2", True),
        ("H100", "gpu-1", False),
        ("H200", "gpu-2", False),
    ],
)
def test_a_device_fits_by_words_of_its_model_and_by_its_server(
    gpu: str | None, node: str | None, fits: bool
) -> None:
    assert H100.fits(gpu, node) is fits


def test_a_server_claims_only_jobs_that_may_run_on_its_device(store: Store) -> None:
    asked = [
        submit_row(store, "alice", gpu="H200"),
        submit_row(store, "alice", node="gpu-1"),
        submit_row(store, "alice", node=H200.node, gpu="H100"),
        submit_row(store, "alice", gpu="h100"),
        submit_row(store, "alice"),
    ]

    on_h100 = [claim(store, device=H100) for _ in range(3)]
    on_h200 = [claim(store, device=H200) for _ in range(3)]

    assert [job and job.id for job in on_h100] == [asked[3], asked[4], None]
    assert [job and job.id for job in on_h200] == [asked[0], asked[1], None]


def interrupted(store: Store, *cases_done: int) -> list[str]:
    """Jobs that ran on an H200 and measured so many cases of two until their server was lost."""
    for _ in cases_done:
        submit_row(store, "alice", cases=2)
    jobs = [claim(store, device=H200) for _ in cases_done]
    with store.write() as session:
        for job, number in zip(jobs, cases_done, strict=True):
            assert job is not None
            row = session.get_one(Row, job.number)
            for position in range(number):
                lifecycle.save_case(session, row, position, {"limit": None, "implementations": []})
            assert lifecycle.take_over(session, row.number, queue.heartbeats(session)[row.number])
    return [job.id for job in jobs if job is not None]


def test_a_job_that_has_measured_a_case_goes_on_only_on_the_same_model(store: Store) -> None:
    bound, free = interrupted(store, 1, 0)

    on_h100 = [claim(store, device=H100) for _ in range(2)]
    on_h200 = claim(store, device=Device("c" * 16, "gpu-3", H200.model))

    assert [job and (job.id, job.model) for job in on_h100] == [(free, H100.model), None]
    assert on_h200 is not None
    assert (on_h200.id, on_h200.model) == (bound, H200.model)


def test_a_job_from_before_there_were_models_goes_on_anywhere(store: Store) -> None:
    (bound,) = interrupted(store, 1)
    with store.write() as session:
        session.execute(sa.update(Row).values(model=None))

    job = claim(store, device=H100)

    assert job is not None
    assert job.id == bound


def test_a_job_that_may_not_run_here_does_not_hold_the_clock_of_the_queue_back(
    store: Store,
) -> None:
    submit_row(store, "alice", gpu="H200")
    for _ in range(3):
        submit_row(store, "bob")
        assert claim(store, device=H100) is not None

    with store.write() as session:
        clock, ends = queue.lock(session), session.get_one(JobShare, "bob").end_us

    assert 0 < clock < ends


def test_a_job_on_another_server_does_not_answer_a_request_for_one(store: Store) -> None:
    done = submit_row(store, "alice")
    job = claim(store, runner=H200.node, device=H200)
    assert job is not None
    with store.write() as session:
        row = session.get_one(Row, job.number)
        row.environment = checked()["environment"]
        lifecycle.end_job(session, row, "succeeded", "ok", "")

    found = []
    for nodes in ({}, {"nodes": [H200.node]}, {"nodes": [H100.node]}):
        with store.write() as session:
            known = {**checked(), **nodes}
            answer = submissions.submit(session, caller("alice"), request(), known, None, 10)  # type: ignore[arg-type]
            found.append(answer[0].id == done)
            session.rollback()

    assert found == [True, True, False]


def with_model(database: Database, folder: Path, model: str) -> AbstractContextManager[Server]:
    """A server whose CPU has this model."""
    path = os.pathsep.join([str(MODELS), str(Path(__file__).parents[3])])
    lease = {"WARPCALL_JOB_LEASE_S": "3"}
    return beside(database, folder, MODEL=model, **lease, PYTHONPATH=path)


def model_of(http: httpx.Client, job: Job) -> str:
    """The model of the device that a job ran on, once it has succeeded."""
    found = ended(http, job)
    assert found["state"] == "succeeded", found
    return str(found["fingerprint"]["device"])


@pytest.mark.parametrize("database", ["postgresql"], indirect=True)
def test_jobs_run_where_they_ask_and_never_on_two_models(
    database: Database, tmp_path: Path
) -> None:
    one, two = "Acme One 40GB", "Acme Two"
    with with_model(database, tmp_path / "b", two) as b, client(b) as http:
        with killed(), with_model(database, tmp_path / "a", one) as a:
            until(lambda: len(http.get("/v1/nodes").json()["nodes"]) == 2)
            refused = http.post("/v1/jobs/preview", json={**WAITS, "op": "permute", "gpu": "Three"})
            by_model = submit(http, gpu="one", fresh=True)
            with client(a) as other:
                own = other.get("/v1/nodes").json()["node"]
                by_node = submit(other, node=http.get("/v1/nodes").json()["node"], fresh=True)
            assert (model_of(http, by_model), model_of(http, by_node)) == (one, two)
            job = submit(http, **WAITS, node=own)
            reached(http, job, lambda found: found["cases_done"] == 1)
            store = database.store()
            with store.write() as session:  # so that only its model decides who goes on
                session.execute(sa.update(Row).where(Row.id == job["id"]).values(node=None))
            store.close()
            os.kill(a.process.pid, signal.SIGKILL)
            (tmp_path / "continue_file").touch()
            reached(http, job, lambda found: found["state"] == "queued")
            assert model_of(http, submit(http, fresh=True)) == two
            waiting = show(http, job)["state"]
        with with_model(database, tmp_path / "c", one):
            assert model_of(http, job) == one
            done = show(http, job)
            states(http, done)
            assert measured_once(http, done)

    said = problem_of(refused, 422, "invalid-input", "gpu")
    assert "no server here has a device of the model 'Three'; there are Acme One 40GB on" in said
    assert waiting == "queued"
