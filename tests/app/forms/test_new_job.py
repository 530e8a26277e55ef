"""The form of a new job: what it asks for, what it refuses and where it says so."""

from __future__ import annotations

import json
import re
from dataclasses import fields
from typing import Any

import httpx
import pytest

from tests.app.forms.conftest import FormsApp
from tests.forms.fields import MARKUP, errors_of, fields_of, filled, new_word
from tests.service.job_requests import submit
from warpcall.jobs.request import OPTIONS, JobRequest
from warpcall_bench.jobs import models

ROWS = {"shape": "8x8 9x7", "params.dims": "1,0"}


def form(lab: FormsApp, op: str = "permute") -> httpx.Response:
    page = lab.bench.get("/new", params={"op": op})
    assert page.status_code == 200, page.text
    return page


def send(lab: FormsApp, action: str = "submit", **changes: Any) -> httpx.Response:
    fields = {**ROWS, "precision": "quick", "tags": new_word()}
    given = {**filled(form(lab)), **fields, "action": action}
    return lab.bench.post("/new", data={**given, **changes})


def job_of(lab: FormsApp, answer: httpx.Response) -> dict[str, Any]:
    assert answer.status_code == 303, errors_of(answer)
    path = answer.headers["location"]
    assert re.fullmatch(r"(\.\./)?(jobs/)?[0-9a-f]{12}", path)
    found = lab.bench.get(f"/v1/jobs/{path[-12:]}")
    assert found.status_code == 200
    job: dict[str, Any] = found.json()
    return job


def test_the_first_page_names_every_op(lab: FormsApp) -> None:
    page = lab.bench.get("/new")

    ops = [one["name"] for one in lab.bench.get("/v1/kernels").json()["kernels"]]
    assert [op for op in ops if f'href="./new?op={op}"' not in page.text] == []


def test_the_form_has_a_field_for_everything_that_the_op_declares(lab: FormsApp) -> None:
    for op in lab.bench.get("/v1/kernels").json()["kernels"]:
        page = form(lab, op["name"]).text

        wanted = [f"params.{one['name']}" for one in op["params"]]
        wanted += [f"sizes.{one['name']}" for one in op["sizes"]]
        assert [name for name in wanted if f'name="{name}"' not in page] == []
        dtypes = re.findall(r'name="dtype" value="(\w+)"', page)
        assert sorted(dtypes) == sorted(op["inputs"][0]["dtypes"])


def test_the_form_has_a_field_for_every_option_with_a_label(lab: FormsApp) -> None:
    page = form(lab).text

    labelled = {name: option for name, option in OPTIONS.items() if option.label}
    assert [name for name in labelled if f'name="{name}"' not in page] == []
    assert [one.label for one in labelled.values() if one.label not in page] == []


def test_the_server_knows_the_fields_of_the_sdk() -> None:
    assert {*models.JobRequest.model_fields} == {field.name for field in fields(JobRequest)}


def test_a_submitted_form_becomes_a_job(lab: FormsApp) -> None:
    answer = send(
        lab, dtype=["BF16", "F32"], implementation=["warpcall", "copy"], note="hello", tags="a, b"
    )

    job = job_of(lab, answer)
    assert (job["op"], job["user"], job["note"], job["tags"]) == (
        "permute",
        "bench",
        "hello",
        ["a", "b"],
    )
    assert job["implementations"] == ["warpcall", "copy"]
    assert job["request"]["sweep"] == {
        "shapes": [[8, 8], [9, 7]],
        "dtypes": ["BF16", "F32"],
        "params": {"dims": [[1, 0]]},
    }


def test_a_check_without_a_shape_has_the_odd_cases_of_the_op(lab: FormsApp) -> None:
    odd = {"shape": "", "params.dims": "", "precision": "check"}

    previewed = send(lab, "preview", **odd)
    job = job_of(lab, send(lab, **odd))
    page = lab.bench.get("/new", params={"like": job["id"]})
    again = job_of(lab, lab.bench.post("/new", data={**fields_of(page), "action": "submit"}))

    assert re.search(r"About .* for \d\d cases", previewed.text)
    for one in (job, again):
        assert {"cases", "sweep"} & {*one["request"]} == set()
        assert (one["precision"], one["cases_total"]) == ("check", job["cases_total"])


def test_the_baseline_comes_first_and_names_that_are_typed_last(lab: FormsApp) -> None:
    answer = send(
        lab,
        baseline="torch",
        implementation=["warpcall", "torch"],
        others="copy",
        fresh="yes",
        priority="low",
    )

    job = job_of(lab, answer)
    assert job["implementations"] == ["torch", "warpcall", "copy"]
    assert (job["request"]["fresh"], job["priority"]) == (True, "low")


@pytest.mark.parametrize(("choice", "private"), [("", False), ("no", False), ("yes", True)])
def test_the_form_says_who_may_read_the_job(lab: FormsApp, choice: str, private: bool) -> None:
    answer = send(lab, private=choice, fresh="yes")

    job = job_of(lab, answer)
    assert job["private"] is private
    assert job["request"].get("private") == {"": None, "no": False, "yes": True}[choice]
    assert lab.browsers["other"].get(f"/jobs/{job['id']}").status_code == (404 if private else 200)


def test_a_preview_says_the_cases_and_queues_nothing(lab: FormsApp) -> None:
    before = len(lab.bench.get("/v1/jobs").json()["jobs"])

    page = send(lab, "preview", dtype="F32")

    assert page.status_code == 200
    assert "About" in page.text
    assert "2 cases" in page.text
    assert "permute x=F32[8,8] dims=1,0" in page.text
    assert len(lab.bench.get("/v1/jobs").json()["jobs"]) == before
    assert fields_of(page)["shape"] == [ROWS["shape"]]


@pytest.mark.parametrize(
    ("changes", "field", "text"),
    [
        ({"shape": ""}, "shape", "at least one shape"),
        ({"shape": "8x"}, "shape", "got '8x'"),
        ({"shape": "8x99999999999999999999"}, "shape", "shapes must be such as"),
        ({"shape": "8x" * 20 + "8 " + MARKUP}, "shape", MARKUP[:4]),
        ({"shape": "8x8x8"}, "params.dims", "dims must name each of the 3 dims"),
        ({"shape": "1000000x1000000"}, "shape", "more than the"),
        ({"dtype": []}, "dtype", "at least one dtype"),
        ({"dtype": "F33"}, "dtype", "must be one of"),
        ({"params.dims": ""}, "params.dims", "permute needs dims"),
        ({"params.dims": "1;x"}, "params.dims", "got 'x'"),
        ({"cases": "{"}, "cases", "must be a JSON list"),
        ({"cases": "{}"}, "cases", "must be a JSON list"),
        ({"cases": "[" * 50_000}, "cases", "must be a JSON list"),
        ({"cases": '[{"shape": [2], "dtype": "F32"}]'}, "cases", "dims"),
        ({"cases": '[{"shap": [2], "dtype": "F32"}]'}, "cases", "cases.0.shap: "),
        ({"baseline": "", "implementation": []}, "implementations", "at least 1 item"),
        ({"others": "nobody/nothing"}, "implementations", "nobody/nothing"),
        ({"others": "warpcall"}, "implementations", "each once"),
        ({"tags": "$a"}, "tags", "match pattern"),
        ({"note": "x" * 1001}, "note", "at most 1000"),
        ({"note": "a\0b"}, "note", "NUL"),
        ({"precision": "best"}, "precision", "quick"),
        ({"priority": "high"}, "", "admin"),
    ],
)
def test_what_is_wrong_is_said_at_its_field_and_nothing_is_lost(
    lab: FormsApp, changes: dict[str, Any], field: str, text: str
) -> None:
    before = len(lab.bench.get("/v1/jobs").json()["jobs"])

    page = send(lab, **changes)

    errors = errors_of(page)
    assert page.status_code in (422, 403), errors
    assert text in errors.pop(field), errors
    assert {*errors} <= {""}
    kept = fields_of(page)
    for name, value in changes.items():
        if name != "precision" and isinstance(value, str) and "\0" not in value and value:
            assert value.strip() in kept.get(name, []) or name in ("dtype", "priority"), name
    assert len(lab.bench.get("/v1/jobs").json()["jobs"]) == before


def test_all_errors_are_shown_at_once(lab: FormsApp) -> None:
    page = send(lab, shape="?", tags="$", **{"params.dims": "?"})

    assert {*errors_of(page)} == {"shape", "tags", "params.dims", ""}
    assert "3 fields" in errors_of(page)[""]


def test_a_form_that_is_sent_twice_makes_one_job(lab: FormsApp) -> None:
    token = fields_of(form(lab))["token"][0]
    fields = {"token": token, "tags": new_word(), "fresh": "yes"}

    first, second = send(lab, **fields), send(lab, **fields)
    changed = send(lab, **{**fields, "note": "changed"})

    assert first.headers["location"] == second.headers["location"]
    assert changed.headers["location"] != first.headers["location"]


def test_a_job_is_listed_by_the_name_of_the_form(lab: FormsApp) -> None:
    name = f"tiles & rows {new_word()}"
    job = job_of(lab, send(lab, name=name, note="hello", fresh="yes"))
    refused = send(lab, name="x" * 101)

    lists = [lab.bench.get("/jobs", params={"find": part}).text for part in (name[-8:], "none")]
    page = lab.bench.get(f"/jobs/{job['id']}").text
    lab.bench.post(f"/jobs/{job['id']}/cancel")

    shown = name.replace("&", "&amp;")
    measured = "permute x=BF16[8,8] dims=1,0 + 1 more"
    assert [shown in text for text in lists] == [True, False]
    assert measured in lists[0]
    assert f"<title>{shown}, job" in page
    assert f"<h1>{shown}</h1>" in page
    assert "at most 100 characters" in errors_of(refused)["name"]


def test_markup_in_every_field_stays_text(lab: FormsApp) -> None:
    names = ["shape", "params.dims", "cases", "baseline", "implementation", "others", "note"]
    names += ["tags", "name", "precision", "priority", "dtype", "token", "fresh"]

    pages = [send(lab, **{name: MARKUP}) for name in names if name not in ("token", "fresh")]
    everywhere = send(lab, "preview", **dict.fromkeys(names, MARKUP))
    unknown = lab.bench.post("/new", data={"op": MARKUP})

    assert [MARKUP in page.text for page in (*pages, everywhere, unknown)] == [False] * 14
    assert everywhere.text.count("&lt;img src=x") >= 5
    assert unknown.status_code == 404


def test_the_form_of_a_job_asks_for_the_same_again(lab: FormsApp) -> None:
    sweep: dict[str, Any] = {
        "shapes": [[8, 8], [4, 2, 3]],
        "dtypes": ["fp32", "bfloat16"],
        "params": {"scale": [0.5, 2.0], "causal": [True, False]},
        "sizes": {"mask": ["key"], "lengths": ["none", "rows"]},
    }
    request = {"op": "masked-softmax", "sweep": sweep, "note": "n", "tags": ["t"], "private": True}
    request["name"] = "mine"
    names = {"implementations": ["torch", "warpcall"], "precision": "quick"}
    with lab.client("bench") as http:
        job = http.post("/v1/jobs", json={**request, **names}).json()
        page = lab.bench.get("/new", params={"like": job["id"]})
        again = job_of(lab, lab.bench.post("/new", data={**fields_of(page), "action": "submit"}))
        for one in (job, again):
            http.post(f"/v1/jobs/{one['id']}/cancel")

    asked = again["request"]
    sweep["dtypes"] = ["F32", "BF16"]
    for axes in (asked["sweep"]["params"], sweep["params"], asked["sweep"]["sizes"]):
        axes |= {name: sorted(values) for name, values in axes.items()}
    asked["sweep"]["dtypes"].sort(reverse=True)
    assert asked["sweep"] == sweep
    assert (again["note"], again["tags"], again["private"]) == ("n", ["t"], True)
    assert again["name"] == "mine"
    assert again["implementations"] == ["torch", "warpcall"]


def test_the_form_of_a_job_with_cases_has_them_as_json(lab: FormsApp) -> None:
    x = {"shape": [4, 6], "dtype": "F32", "layout": "transposed"}
    case = {"inputs": {"x": x}, "params": {"dims": [1, 0]}}
    with lab.client("bench") as http:
        job = submit(http, cases=[case])

    page = lab.bench.get("/new", params={"like": job["id"]})

    assert json.loads(fields_of(page)["cases"][0]) == [case]


def test_a_form_takes_a_role_and_has_bounds(lab: FormsApp) -> None:
    call = lab.browsers["call"]

    refused = [call.get("/new"), call.post("/new", data={"op": "permute"})]
    long = lab.bench.post("/new", data={"op": "permute", "note": "x" * (256 << 10)})
    many = lab.bench.post("/new", data={"op": "permute", "dtype": ["F32"] * 600})
    no_form = lab.bench.post("/new", json={})

    assert [page.status_code for page in refused] == [403, 403]
    assert "New job" not in call.get("/jobs").text
    assert (long.status_code, many.status_code, no_form.status_code) == (413, 422, 415)
    assert "at most 512 fields" in many.text
    assert all("<h1>" in page.text for page in (*refused, long, many, no_form))


def test_a_page_of_another_site_submits_nothing(lab: FormsApp) -> None:
    with lab.browser() as http:
        opened = http.post("/login", data={"key": lab.keys["bench"]})
        cookie = {"cookie": opened.headers["set-cookie"].partition(";")[0]}
        form_fields = {**fields_of(form(lab)), **ROWS, "action": "preview"}

        own = http.post(
            "/new", data=form_fields, headers={**cookie, "sec-fetch-site": "same-origin"}
        )
        other = http.post(
            "/new", data=form_fields, headers={**cookie, "sec-fetch-site": "cross-site"}
        )

    assert (own.status_code, other.status_code) == (200, 403)
