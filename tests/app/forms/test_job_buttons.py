"""The buttons on the page of a job: cancel it, measure again, submit one like it."""

from __future__ import annotations

import json

from tests.app.forms.conftest import FormsApp
from tests.forms.fields import fields_of
from tests.service.job_requests import show, submit

LONG = [{"shape": [64, 64], "dtype": "F32", "params": {"dims": [1, 0]}}]


def test_a_job_is_cancelled_by_its_button(lab: FormsApp) -> None:
    with lab.client("bench") as http:
        job = submit(http, precision="publish", cases=LONG, fresh=True)
        page = lab.bench.get(f"/jobs/{job['id']}")

        answer = lab.bench.post(f"/jobs/{job['id']}/cancel")

        assert f"jobs/{job['id']}/cancel" in page.text
        assert f"jobs/{job['id']}/again" not in page.text
        assert (answer.status_code, answer.headers["location"]) == (303, f"../{job['id']}")
        assert show(http, job)["state"] == "cancelled"
    assert f"jobs/{job['id']}/cancel" not in lab.bench.get(f"/jobs/{job['id']}").text


def test_nobody_else_cancels_a_job(lab: FormsApp) -> None:
    with lab.client("bench") as http:
        job = submit(http, precision="publish", cases=LONG, fresh=True)
        path = f"/jobs/{job['id']}/cancel"

        refused = [
            lab.browsers[name].post(path).status_code for name in ("other", "upload", "call")
        ]
        shown = [path in lab.browsers[name].get(path[:-7]).text for name in ("other", "call")]
        state = lab.bench.get(f"/v1/jobs/{job['id']}").json()["state"]
        by_admin = lab.admin.post(path)

        assert all(status in (403, 404) for status in refused)
        assert shown == [False, False]
        assert state != "cancelled"
        assert by_admin.status_code == 303
        assert show(http, job)["state"] == "cancelled"


def test_a_job_is_measured_again_once_for_each_page(lab: FormsApp) -> None:
    with lab.client("bench") as http:
        case = {**LONG[0], "shape": [7, 13]}  # that no other test measures
        job = lab.complete(submit(http, note="first", tags=["buttons"], cases=[case]))
        page = lab.bench.get(f"/jobs/{job['id']}")
        fields = {"token": fields_of(page)["token"]}

        path = f"/jobs/{job['id']}/again"
        first, second = (lab.bench.post(path, data=fields) for _ in range(2))
        later = lab.bench.post(path, data={"token": "0123456789abcdef"})

        again = show(http, {"id": first.headers["location"][-12:]})
        assert (again["note"], again["tags"], again["request"]["fresh"]) == (
            "first",
            ["buttons"],
            True,
        )
        assert again["id"] != job["id"]
        assert second.headers["location"] == first.headers["location"]
        assert later.headers["location"] not in (first.headers["location"], f"../{job['id']}")
    assert f"new?like={job['id']}" in page.text


def test_a_job_is_made_private_and_its_repetition_stays_so(lab: FormsApp) -> None:
    other = lab.browsers["other"]
    with lab.client("bench") as http:
        job = lab.complete(submit(http, fresh=True))
        path = f"/jobs/{job['id']}"
        shown = [other.get(path), other.post(f"{path}/private", data={"private": "yes"})]

        made = lab.bench.post(f"{path}/private", data={"private": "yes"})
        hidden = [other.get(path), other.post(f"{path}/again", data={"token": ""})]
        hidden.append(other.get("/new", params={"like": job["id"]}))
        form = fields_of(lab.bench.get("/new", params={"like": job["id"]}))
        again = lab.bench.post(f"{path}/again", data={"token": ""}).headers["location"][-12:]
        repeated = show(http, {"id": again})
        opened = lab.bench.post(f"{path}/private", data={"private": "no"})

    assert shown[0].status_code == 200
    assert f"{path[1:]}/private" not in shown[0].text
    assert shown[1].status_code in (403, 404)
    assert (made.status_code, opened.status_code) == (303, 303)
    assert [page.status_code for page in hidden] == [404] * 3
    assert (form["private"], repeated["private"]) == (["yes"], True)
    assert other.get(path).status_code == 200


def test_a_job_on_a_problem_that_is_gone_has_no_form(lab: FormsApp) -> None:
    with lab.client("bench") as http:
        job = lab.complete(submit(http, fresh=True))
    request = json.dumps({**job["request"], "op": "ann/row-norm"})
    change = f"UPDATE jobs SET op = 'ann/row-norm', request = '{request}' WHERE id = '{job['id']}'"
    lab.database.sql(change)

    page = lab.bench.get(f"/jobs/{job['id']}")

    assert page.status_code == 200
    assert f"jobs/{job['id']}/again" in page.text
    assert lab.bench.get("/new", params={"like": job["id"]}).status_code == 404


def test_a_job_that_may_not_be_read_has_no_buttons(lab: FormsApp) -> None:
    paths = ["/jobs/0123456789ab/again", "/jobs/0123456789ab/cancel", "/jobs/x/cancel"]

    answers = [lab.bench.post(path, data={"token": ""}) for path in paths]

    assert [answer.status_code for answer in answers] == [404, 404, 404]
    assert lab.bench.get("/new", params={"like": "0123456789ab"}).status_code == 404
