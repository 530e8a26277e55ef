"""Problems in the forms: uploaded from a page, submitted as jobs, implemented."""

from __future__ import annotations

import json
import re
from typing import Any

import httpx
import pytest

from tests.forms.conftest import FormsLab
from tests.forms.fields import MARKUP, errors_of, fields_of, new_word
from tests.service.job_requests import ended
from tests.service.uploads.problem_sources import SCALE

pytestmark = pytest.mark.slow

# With a parameter, a choice and two dtypes.
SHIFT = '''"""Shift: the input plus a number."""

import torch
from warpcall_kernels import Param, Problem, Sample, Size


def shift(x, by):
    return x + by


def inputs(dtype, rows, order):
    return {"x": Sample((rows, 4) if order == "tall" else (4, rows), dtype)}


PROBLEM = Problem(
    reference=shift,
    inputs=inputs,
    sizes=(
        Size("rows", "number of rows", 8, minimum=1),
        Size("order", "how it lies", "tall", choices=("tall", "wide")),
    ),
    params=(Param("by", "float", "added", default=1.0),),
    dtypes=(torch.float32, torch.float64),
)
'''
MINE = "def shift(x, by):\n    return by + x\n"


@pytest.fixture(scope="module")
def shift(lab: FormsLab) -> str:
    """The name of a problem that all users may read."""
    return stored(send(lab, SHIFT, name=new_word()))


def send(
    lab: FormsLab, source: str | None = SCALE, file: tuple[str, str] | None = None, **fields: Any
) -> httpx.Response:
    """Send the form of a new problem, with a file (name and content) or a text."""
    given = {**fields_of(lab.upload.get("/upload/problem")), "source": source or "", **fields}
    given.setdefault("action", "upload")
    return lab.upload.post("/upload/problem", data=given, files={"file": file or ("", "")})


def stored(answer: httpx.Response) -> str:
    """The name of the problem that a form has stored."""
    assert answer.status_code == 303, errors_of(answer)
    found = re.fullmatch(r"\.\./problems/(upload/[\w-]+)", answer.headers["location"])
    assert found is not None
    return found[1]


def job_of(http: httpx.Client, answer: httpx.Response) -> dict[str, Any]:
    assert answer.status_code == 303, errors_of(answer)
    return ended(http, {"id": answer.headers["location"][-12:]})


def test_a_problem_is_uploaded_and_measured_from_the_pages(lab: FormsLab) -> None:
    name, source = new_word(), SCALE.replace("\n", "\r\n")

    answer = send(lab, None, ("any name.py", source), name=name, private="yes", action="bench")

    assert answer.headers["location"] == f"../new?op=upload%2F{name}"
    form = lab.upload.get(f"/new?op=upload/{name}")
    fields = fields_of(form)
    assert (fields["implementation"], fields["dtype"]) == (["torch"], ["F32"])
    assert "shape" not in fields
    given = {**fields, "sizes.rows": "2 3", "precision": "quick", "action": "submit"}
    job = job_of(lab.upload, lab.upload.post("/new", data=given))
    assert (job["state"], job["op"], job["cases_total"]) == ("succeeded", f"upload/{name}", 2)
    assert job["private"] is True
    assert lab.upload.get(f"/v1/problems/upload/{name}").json()["source"] == source
    assert lab.bench.get(f"/new?op=upload/{name}").status_code == 404


def test_a_form_has_a_field_for_all_that_a_problem_declares(lab: FormsLab, shift: str) -> None:
    page = lab.bench.get("/new", params={"op": shift})

    names = {"sizes.rows", "sizes.order", "params.by", "dtype", "cases"}
    assert {name for name in names if f'name="{name}"' in page.text} == names
    assert re.findall(r'name="dtype" value="(\w+)"', page.text) == ["F32", "F64"]
    assert 'name="shape"' not in page.text
    assert "warpcall" not in fields_of(page)["baseline"]
    assert f"new?op={shift.replace('/', '%2F')}" in lab.bench.get("/new").text


def test_what_the_form_says_is_what_the_job_asks_for(lab: FormsLab, shift: str) -> None:
    version = lab.bench.get(f"/v1/problems/{shift}").json()["version"]
    fields = {
        **fields_of(lab.bench.get("/new", params={"op": f"{shift}@{version}"})),
        "sizes.rows": "2",
        "sizes.order": ["tall", "wide"],
        "params.by": "0.5 2.0",
        "dtype": ["F32", "F64"],
        "implementation": ["copy"],
        "precision": "quick",
    }

    preview = lab.bench.post("/new", data={**fields, "action": "preview"})
    job = job_of(lab.bench, lab.bench.post("/new", data={**fields, "action": "submit"}))

    assert "8 cases" in preview.text
    assert f"{shift} x=F64[4,2] by=2.0" in preview.text
    assert (job["state"], job["implementations"]) == ("succeeded", ["torch", "copy"])
    assert job["request"]["op"] == f"{shift}@{version}"
    assert job["request"]["sweep"] == {
        "dtypes": ["F32", "F64"],
        "params": {"by": [0.5, 2.0]},
        "sizes": {"rows": [2], "order": ["tall", "wide"]},
    }
    page = lab.bench.get(f"/jobs/{job['id']}")
    assert f"new?like={job['id']}" in page.text
    again = fields_of(lab.bench.get("/new", params={"like": job["id"]}))
    for name in ("op", "sizes.rows", "sizes.order", "params.by", "dtype", "baseline"):
        given = fields[name]
        assert again[name] == (given if isinstance(given, list) else [given]), name


def test_defaults_make_one_case(lab: FormsLab, shift: str) -> None:
    page = lab.bench.get("/new", params={"op": shift})

    preview = lab.bench.post("/new", data={**fields_of(page), "action": "preview"})

    assert "1 case." in preview.text, errors_of(preview)
    assert f"{shift} x=F32[8,4] by=1.0" in preview.text


@pytest.mark.parametrize(
    ("fields", "field", "text"),
    [
        ({"sizes.rows": "x"}, "sizes.rows", "whole numbers"),
        ({"sizes.rows": "0"}, "sizes.rows", "rows"),
        ({"sizes.order": "flat"}, "sizes.order", "order"),
        ({"params.by": "much"}, "params.by", "by"),
        ({"dtype": []}, "dtype", "at least one"),
        ({"dtype": ["BF16"]}, "dtype", "float32"),
        ({"cases": '[{"shape": [4], "dtype": "F32"}]'}, "cases", "no 'shape'"),
        ({"others": "warpcall"}, "implementations", "has no kernels"),
        ({"others": "nobody/nothing"}, "implementations", "nobody/nothing"),
        ({"sizes.rows": "1" * 12}, "", "more than the"),
    ],
)
def test_what_is_wrong_with_a_job_is_said_at_its_field(
    lab: FormsLab, shift: str, fields: dict[str, Any], field: str, text: str
) -> None:
    form = fields_of(lab.bench.get("/new", params={"op": shift}))

    page = lab.bench.post("/new", data={**form, **fields, "action": "submit"})

    errors = errors_of(page)
    assert page.status_code == 422, errors
    assert text in errors.get(field, ""), errors
    assert {*errors} <= {field, ""}


def test_a_problem_that_fails_says_where(lab: FormsLab) -> None:
    source = SCALE.replace('    return {"x"', '    assert rows < 100\n    return {"x"')
    name = stored(send(lab, source, name=new_word()))
    form = fields_of(lab.bench.get("/new", params={"op": name}))

    page = lab.bench.post("/new", data={**form, "sizes.rows": "100", "action": "preview"})

    assert page.status_code == 422
    assert any(f"line 12 of {name}" in text for text in errors_of(page).values()), errors_of(page)


def test_there_is_no_form_for_a_problem_that_is_not_there(lab: FormsLab, shift: str) -> None:
    for name in ("nobody/nothing", f"{shift}@00000000", "a/b/c", MARKUP):
        page = lab.bench.get("/new", params={"op": name})
        sent = lab.bench.post("/new", data={"op": name, "action": "submit"})

        assert [page.status_code, sent.status_code] == [404, 404]
        assert MARKUP not in page.text + sent.text


def test_an_implementation_of_a_problem_is_uploaded_from_its_page(
    lab: FormsLab, shift: str
) -> None:
    page = lab.upload.get(f"/problems/{shift}")
    form = lab.upload.get("/upload", params={"op": shift})
    name = new_word()
    fields = {**fields_of(form), "source": MINE, "function": "shift", "name": name}

    answer = lab.upload.post(
        "/upload", data={**fields, "action": "bench"}, files={"file": ("", "")}
    )

    link = shift.replace("/", "%2F")
    assert f"upload?op={link}" in page.text
    assert f"new?op={link}" in page.text
    assert f"upload/problem?name={shift.partition('/')[2]}" in page.text
    assert fields["op"] == [shift]
    assert f"x, by):  # {shift}" in form.text
    assert answer.status_code == 303, errors_of(answer)
    benchmark = fields_of(lab.upload.get("/" + answer.headers["location"]))
    assert benchmark["implementation"] == ["torch", f"upload/{name}"]
    shown = lab.upload.get(f"/implementations/upload/{name}").text
    assert f"new?op={link}&amp;implementation=upload%2F{name}" in shown


@pytest.mark.parametrize(
    ("fields", "field", "text"),
    [
        ({"source": ""}, "source", "choose a file"),
        ({"file": ("a.py", SCALE)}, "file", "both came"),
        ({"source": "def scale(x:"}, "source", "line 1"),
        ({"source": "x = 1\nraise ValueError('no')"}, "source", "line 2"),
        ({"source": "PROBLEM = 1"}, "source", "PROBLEM"),
        ({"source": SCALE + " " * (256 << 10)}, "source", "must have at most"),
        ({"source": SCALE + "\0"}, "source", "NUL"),
        ({"name": "a/b"}, "name", "pattern"),
        ({"name": MARKUP}, "name", "pattern"),
    ],
)
def test_what_is_wrong_with_a_source_is_said_and_the_source_kept(
    lab: FormsLab, fields: dict[str, Any], field: str, text: str
) -> None:
    page = send(lab, **fields)

    errors = errors_of(page)
    assert page.status_code in (413, 422), errors
    assert text in errors.pop(field), errors
    assert {*errors} <= {""}
    assert MARKUP not in page.text
    if "\0" not in fields.get("source", ""):
        kept = fields_of(page)["source"][0].strip()
        assert kept == fields.get("source", SCALE).strip()


def test_markup_in_a_problem_stays_text_on_every_page(lab: FormsLab) -> None:
    source = (
        SHIFT.replace("Shift:", f"Shift {MARKUP}:")
        .replace('"added"', repr(MARKUP))
        .replace('"number of rows"', repr(MARKUP))
        .replace('"wide")', f'"wide", {MARKUP!r})')
    )
    name = stored(send(lab, source, name=new_word()))
    paths = ["/new", f"/new?op={name}", f"/problems/{name}", f"/upload?op={name}", "/kernels"]

    pages = {path: lab.upload.get(path) for path in paths}
    wrong = [
        send(lab, None, (MARKUP, f"x = {MARKUP}")),
        send(lab, source="raise ValueError(" + repr(MARKUP) + ")"),
        send(lab, private=MARKUP, source="</textarea>" + MARKUP),
    ]

    for path, page in pages.items():
        assert (page.status_code, MARKUP in page.text) == (200, False), path
    assert "&lt;img src=x" in pages[f"/new?op={name}"].text
    assert [(page.status_code, MARKUP in page.text) for page in wrong] == [(422, False)] * 3


def test_the_forms_take_their_roles_and_have_bounds(lab: FormsLab) -> None:
    refused = [
        lab.bench.get("/upload/problem"),
        lab.bench.post("/upload/problem", files={"file": ("a.py", SCALE)}),
    ]

    long = send(lab, "#" * (600 << 10))

    assert [page.status_code for page in refused] == [403, 403]
    assert long.status_code == 413
    assert "/upload/problem" not in lab.bench.get("/kernels").text + lab.bench.get("/new").text
    assert "upload/problem" in lab.upload.get("/new").text


def test_a_job_with_cases_of_a_problem_has_them_in_its_form(lab: FormsLab, shift: str) -> None:
    cases = [{"sizes": {"rows": 3, "order": "wide"}, "params": {"by": 3.0}}]
    asked = {"op": shift, "cases": cases, "precision": "quick", "implementations": ["torch"]}
    job = lab.bench.post("/v1/jobs", json=asked).json()

    page = lab.bench.get("/new", params={"like": job["id"]})

    assert json.loads(fields_of(page)["cases"][0]) == cases
