"""The form to upload an implementation."""

from __future__ import annotations

from typing import Any

import httpx
import pytest

from tests.forms.conftest import FormsLab
from tests.forms.fields import MARKUP, errors_of, fields_of, new_word
from tests.service.job_requests import client, ended
from tests.service.uploads.sources import SHORT


def send(
    lab: FormsLab, source: str | None = SHORT, file: tuple[str, str] | None = None, **fields: Any
) -> httpx.Response:
    """Send the form as multipart, with a file (name and content) or a text."""
    given = {**fields_of(lab.upload.get("/upload")), "source": source or "", **fields}
    files = {"file": file or ("", "")}
    return lab.upload.post("/upload", data=given, files=files)


def stored(lab: FormsLab, name: str) -> dict[str, Any]:
    found = lab.upload.get(f"/v1/implementations/upload/{name}")
    assert found.status_code == 200, found.text
    one: dict[str, Any] = found.json()
    return one


@pytest.mark.slow
def test_a_text_is_stored_and_then_timed(lab: FormsLab) -> None:
    name = new_word()

    answer = send(lab, SHORT.replace("\n", "\r\n"), name=name, action="bench")

    assert answer.status_code == 303, errors_of(answer)
    assert stored(lab, name)["source"] == SHORT
    form = lab.upload.get("/" + answer.headers["location"])
    fields = fields_of(form)
    assert fields["implementation"] == ["warpcall", "torch", f"upload/{name}"]
    fields |= {"shape": ["8x8"], "params.dims": ["1,0"], "precision": ["quick"]}
    submitted = lab.upload.post("/new", data={**fields, "action": "submit"})
    with client(lab.server, lab.keys["upload"]) as http:
        job = ended(http, {"id": submitted.headers["location"][-12:]})
    assert (job["state"], job["implementations"]) == (
        "succeeded",
        ["warpcall", "torch", f"upload/{name}"],
    )


def test_a_file_is_stored_as_it_is_under_its_name(lab: FormsLab) -> None:
    name, source = new_word(), SHORT.replace("\n", "\r\n")

    answer = send(lab, None, (f"{name}.py", source), private="yes", action="upload")

    assert answer.status_code == 303, errors_of(answer)
    assert answer.headers["location"] == f"implementations/upload/{name}"
    page = lab.upload.get("/" + answer.headers["location"])
    assert page.status_code == 200
    assert f"new?op=permute&amp;implementation=upload%2F{name}" in page.text
    assert f"upload?op=permute&amp;name={name}" in page.text
    found = stored(lab, name)
    assert (found["source"], found["private"]) == (source, True)


def test_a_kernel_is_stored_as_a_verified_one_if_the_form_says_so(lab: FormsLab) -> None:
    triton, plain = new_word(), new_word()

    for name, choice in ((triton, "yes"), (plain, "")):
        answer = send(lab, f"# {name}\n{SHORT}", name=name, verified=choice)
        assert answer.status_code == 303, errors_of(answer)

    assert (stored(lab, triton)["verified"], stored(lab, triton)["language"]) == (True, "python")
    assert not stored(lab, plain)["verified"]


CUDA = """/* warpcall-launches {"launches": [
  {"kernel": "permute", "grid": ["cdiv(x.numel, 256)"], "block": [256], "arguments": ["x", "out"]}
]} */
extern "C" __global__ void permute(const float* x, float* out) { out[0] = x[0]; }
"""


@pytest.mark.parametrize(
    ("file", "choice", "source", "field", "error"),
    [
        (True, "", CUDA.split("*/")[1], "source", "has no declaration of its launches"),
        (False, "cuda", CUDA.replace("]}", "]"), "source", "line 3: the declaration of launches"),
        (False, "no", CUDA, "verified", "verified must be empty, yes or cuda, got 'no'"),
        (False, "", CUDA, "source", "it is no Python: it looks like CUDA C++"),
        (False, "yes", CUDA, "source", "it is no Python: it looks like CUDA C++"),
    ],
)
def test_what_is_wrong_with_a_verified_kernel_is_said_at_the_field(
    lab: FormsLab, file: bool, choice: str, source: str, field: str, error: str
) -> None:
    given = ("permute.cu", source) if file else None

    answer = send(lab, None if file else source, given, verified=choice)

    assert answer.status_code == 422
    assert error in errors_of(answer)[field]


def test_cuda_is_compiled_with_the_launches_that_it_declares(lab: FormsLab) -> None:
    """Where NVRTC is missing, the check says so, which shows that it has got that far."""
    name = new_word()

    by_file = send(lab, None, (f"{name}.cu", CUDA))
    by_choice = send(lab, CUDA + f"// {name}", name=f"{name}-2", verified="cuda")

    for answer, stored_as in ((by_file, name), (by_choice, f"{name}-2")):
        if answer.status_code == 303:
            assert stored(lab, stored_as)["language"] == "cuda"
        else:
            assert "NVRTC" in errors_of(answer)["source"]


def test_the_name_of_a_file_that_is_no_name_is_not_used(lab: FormsLab) -> None:
    source = f"# {new_word()}\n{SHORT}"

    answer = send(lab, None, ("../../my kernel (2).py", source), action="upload")

    assert answer.headers["location"] == "implementations/upload/permute"


def test_a_version_stays_private_and_can_be_opened(lab: FormsLab) -> None:
    name = new_word()

    private = []
    for number, choice in enumerate(("yes", "", "no")):
        answer = send(lab, f"# {number}\n{SHORT}", name=name, private=choice)
        assert answer.status_code == 303, errors_of(answer)
        private.append(stored(lab, name)["private"])

    assert private == [True, True, False]


@pytest.mark.parametrize(
    ("fields", "field", "text"),
    [
        ({"source": ""}, "source", "choose a file"),
        ({"file": ("a.py", SHORT)}, "file", "both came"),
        ({"source": "def permute(x, dims:"}, "source", "line 1"),
        ({"source": "def other(x, dims): return x"}, "function", "permute"),
        ({"source": "raise ValueError('no')"}, "source", "line 1"),
        ({"source": SHORT + " " * (256 << 10)}, "source", "must have at most"),
        ({"source": SHORT + "\0"}, "source", "NUL"),
        ({"name": "a/b"}, "name", "pattern"),
        ({"function": "2x"}, "function", "pattern"),
        ({"op": "sort"}, "op", "must be one of"),
    ],
)
def test_what_is_wrong_is_said_at_its_field_and_the_source_is_kept(
    lab: FormsLab, fields: dict[str, Any], field: str, text: str
) -> None:
    page = send(lab, **fields)

    errors = errors_of(page)
    assert page.status_code in (413, 422), errors
    assert text in errors.pop(field), errors
    assert {*errors} <= {""}
    if "\0" not in fields.get("source", ""):
        kept = fields_of(page)["source"][0].strip()
        assert kept == fields.get("source", SHORT).strip()


def test_the_source_of_a_refused_file_is_in_the_form(lab: FormsLab) -> None:
    wrong = "def permute(x, dims:  # </textarea>" + MARKUP

    page = send(lab, None, ("a.py", wrong))
    no_text = lab.upload.post("/upload", data={"op": "permute"}, files={"file": ("a.py", b"\xff")})

    assert fields_of(page)["source"][0].strip() == wrong
    assert MARKUP not in page.text
    assert (no_text.status_code, "UTF-8" in no_text.text) == (422, True)


def test_an_upload_takes_a_role_and_has_bounds(lab: FormsLab) -> None:
    refused = [lab.bench.get("/upload"), lab.bench.post("/upload", files={"file": ("a", SHORT)})]

    long = send(lab, "#" * (600 << 10))
    many = lab.upload.post("/upload", files=[("file", ("a.py", SHORT))] * 65)
    broken = [
        lab.upload.post("/upload", content=b"x", headers={"content-type": kind})
        for kind in ("multipart/form-data", "multipart/form-data; boundary=", "multipart/form-data; boundary=b")
    ]  # fmt: skip

    assert [page.status_code for page in refused] == [403, 403]
    assert (long.status_code, many.status_code) == (413, 422)
    assert "at most 64 parts" in many.text
    assert [page.status_code for page in broken] == [422] * 3
    assert "/upload" not in lab.bench.get("/new?op=permute").text
    assert "/upload?op=permute" in lab.upload.get("/new?op=permute").text


def test_markup_in_every_field_stays_text(lab: FormsLab) -> None:
    names = ("op", "source", "function", "name")

    changes: list[dict[str, Any]] = [{name: MARKUP} for name in names]
    pages = [send(lab, **change) for change in changes]
    pages.append(send(lab, None, (MARKUP, "x = ")))

    assert [MARKUP in page.text for page in pages] == [False] * 5
    assert all(page.status_code == 422 for page in pages)
