"""The page of compile reports: its form, its tables, texts beside the source, two versions."""

from __future__ import annotations

import html
import re
from typing import Any

import httpx
import pytest

from tests.forms.conftest import FormsLab, browser
from tests.forms.fields import MARKUP, errors_of, fields_of, new_word
from tests.service.compile_reports.sources import SOFTMAX, STOPS, TUNED

pytestmark = pytest.mark.slow

CASE = {"dtype": "F32", "shape": "64x256", "params.dims": "1,0"}


def compiled(lab: FormsLab, **query: Any) -> httpx.Response:
    return lab.bench.get("/compiled", params={"op": "permute", **query})


def uploaded(lab: FormsLab, source: str, name: str, **fields: Any) -> str:
    """The name of a new version of an upload, with the version."""
    given = {"op": "permute", "source": source, "name": name, **fields}
    answer = lab.upload.post("/v1/implementations", json=given)
    assert answer.status_code == 201, answer.text
    return f"{answer.json()['name']}@{answer.json()['version']}"


def text_of(page: httpx.Response) -> str:
    """The text of a page, without its markup."""
    assert page.status_code == 200, page.text
    return re.sub(r"<[^>]+>", "", page.text)


def test_without_a_case_the_page_is_a_form(lab: FormsLab) -> None:
    for op in lab.bench.get("/v1/kernels").json()["kernels"]:
        page = compiled(lab, op=op["name"])

        assert page.status_code == 200
        fields = fields_of(page)
        assert fields["gpu"] == ["sm_90"]
        assert {f"params.{one['name']}" for one in op["params"]} <= {*fields}
        assert "<h2>" not in page.text
    assert ">Registers, PTX and SASS</a>" in lab.bench.get("/kernels/permute").text


def test_a_shipped_op_is_shown_with_its_source_and_its_ptx(lab: FormsLab) -> None:
    page = compiled(lab, **CASE, gpu="sm_80")
    sass = compiled(lab, **CASE, gpu="sm_80", text="sass")

    assert "permute x=F32[64,256] dims=1,0" in text_of(page)
    assert ".target sm_80" in page.text
    assert "EXIT ;" in sass.text
    assert page.text.count('<pre class="code"') == 3, "the kernel, the whole file and the text"


@pytest.mark.parametrize("op", ["permute", "masked-softmax", "isin", "conv", "transpose-add"])
def test_the_source_of_a_shipped_kernel_is_that_of_the_kernel(lab: FormsLab, op: str) -> None:
    case = {**CASE, "op": op} if op == "permute" else {"op": op, "dtype": "F32", "shape": "2x64x64"}
    page = compiled(lab, **case)

    shown = page.text.partition('aria-label="Source"')[2]
    kernel, _, rest = shown.partition("</pre>")
    name = re.search(r"<h2>([^<]*)</h2>\s*<nav", page.text)
    assert name is not None, text_of(page)
    lines = html.unescape(re.sub(r"<[^>]+>", "", kernel.partition('tabindex="0">')[2])).splitlines()
    assert any(line.startswith(f"def {name[1]}(") for line in lines), lines[:5]
    assert lines[0].startswith("@triton.jit")
    whole = html.unescape(re.sub(r"<[^>]+>", "", rest.partition('tabindex="0">')[2]))
    number = re.search(r'data-n="(\d+)"', kernel)
    assert number is not None
    assert whole.splitlines()[int(number[1]) - 1] == lines[0]


def test_two_versions_of_an_upload_are_compared(lab: FormsLab) -> None:
    name = new_word()
    old = uploaded(lab, TUNED, name)
    new = uploaded(lab, TUNED.replace("mask=inside)", "mask=inside) + 1.0", 1), name)
    link = lab.bench.get(f"/implementations/{new.partition('@')[0]}").text

    alone = compiled(lab, **CASE, implementation=new, kernel=1)
    both = compiled(lab, **CASE, implementation=new, against=old)

    assert f"implementation={new.replace('/', '%2F').replace('@', '%40')}" in link
    assert "num_warps: 4" in text_of(alone)
    source = text_of(alone).partition("Source")[2]
    assert source.index("def _copy(x_ptr") < source.index("The whole file")
    assert source.index("The whole file") < source.index("def permute(x, dims)")
    assert f'<option value="{old}" selected>' in both.text
    assert '<span class="added">' in both.text
    assert "0f3F800000" in text_of(both)
    assert f"new: {new}" in text_of(both)
    assert f"old: {old}" in text_of(both)
    link = f"{new.replace('@', '?version=')}&amp;against={old.partition('@')[2]}"
    assert link in both.text
    assert lab.bench.get(f"/implementations/{html.unescape(link)}").status_code == 200


def test_a_kernel_with_another_name_and_grid_is_compared(lab: FormsLab) -> None:
    name = new_word()
    old = uploaded(lab, SOFTMAX, name, op="masked-softmax")
    changed = SOFTMAX.replace("_softmax[(rows,)]", "_rows[(rows // 2,)]")
    changed = changed.replace("def _softmax(", "def _rows(")
    new = uploaded(lab, changed, name, op="masked-softmax")

    case = {"op": "masked-softmax", "dtype": "F32", "shape": "64x256"}
    page = compiled(lab, **case, implementation=new, against=old)

    assert "_rowsgrid 32×1×1old: _softmax, grid 64×1×1" in text_of(page)
    assert '<span class="removed">' in page.text


def test_an_upload_is_compared_with_the_kernels_of_the_library(lab: FormsLab) -> None:
    upload = uploaded(lab, SOFTMAX, new_word(), op="masked-softmax")
    case = {"op": "masked-softmax", "dtype": "F32", "shape": "64x256"}

    page = compiled(lab, **case, implementation=upload, against="warpcall")

    assert '<option value="warpcall" selected>' in page.text
    assert "old: warpcall" in text_of(page)
    assert "old: masked_softmax_kernel, grid" in text_of(page)
    assert "what changed in the source" not in page.text
    assert '<span class="removed">' in page.text


def test_machine_code_is_compared_without_addresses(lab: FormsLab) -> None:
    name = new_word()
    old = uploaded(lab, TUNED, name)
    new = uploaded(lab, TUNED.replace("mask=inside)", "mask=inside) + 1.0", 1), name)

    page = compiled(lab, **CASE, implementation=new, against=old, text="sass")

    added = re.findall(r'<span class="added">([^\n]*)', page.text)
    kept = re.findall(r'<span class="kept">([^\n]*)', page.text)
    assert any("FADD" in line for line in added)
    assert any("STG" in line for line in kept), "they have other addresses"
    assert "/*0" not in text_of(page)


def test_what_is_wrong_stands_at_its_field(lab: FormsLab) -> None:
    two = errors_of(compiled(lab, **{**CASE, "shape": "8x8 9x9"}))

    assert two["shape"] == "a report is on one case, 2 values came"
    for name, text in (("params.dims", "1,5"), ("gpu", MARKUP), ("dtype", MARKUP)):
        page = compiled(lab, **{**CASE, name: text})
        assert {*errors_of(page)} == {"", name}, text_of(page)
        assert MARKUP not in page.text
    for query in (
        {"kernel": "-1"},
        {"kernel": "99"},
        {"text": MARKUP},
        {MARKUP: MARKUP},
        {"self": "1"},
    ):
        page = compiled(lab, **CASE, **query)
        assert page.status_code == 200
        assert MARKUP not in page.text


def test_text_of_users_stays_text(lab: FormsLab) -> None:
    source = STOPS.replace("<b>no</b>", MARKUP.replace('"', "")) + f"# {MARKUP}\n"

    page = compiled(lab, **CASE, implementation=uploaded(lab, source, new_word()))

    assert "ended early" in text_of(page)
    assert "<img" not in page.text


def test_a_private_upload_is_not_found_by_others(lab: FormsLab) -> None:
    hidden = uploaded(lab, TUNED, new_word(), private=True)

    page = compiled(lab, **CASE, implementation=hidden)

    assert page.status_code == 404
    assert "_copy" not in page.text


@pytest.mark.parametrize(("role", "status"), [("call", 403), ("bench", 200)])
def test_the_page_needs_the_role_bench(role: str, status: int, lab: FormsLab) -> None:
    with browser(lab.server, lab.keys[role]) as http:
        assert http.get("/compiled").status_code == status
