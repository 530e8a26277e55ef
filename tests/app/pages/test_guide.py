"""The documentation as pages: links that lead somewhere, a search, and nothing of other hosts."""

from __future__ import annotations

import functools
import re
from collections.abc import Callable, Iterator
from html import unescape
from pathlib import Path
from urllib.parse import urljoin, urlsplit

import httpx
import pytest

from tests.app.pages.conftest import Lab
from tests.app.pages.test_every_page import links_of
from tests.service.requests import problem_of
from warpcall_bench.pages.guide import files, sections

DOCS = Path(__file__).parents[3] / "docs"
PAGES = sorted(name for name, path in files().items() if path.suffix == ".md")


def test_the_guide_has_every_page_of_the_folder_and_its_index_leads_to_each(
    browser_http: httpx.Client,
) -> None:
    index = browser_http.get("/guide")

    linked = {urljoin("/guide", link).partition("#")[0] for link in links_of(index).links}
    assert {"index", *PAGES} == {
        path.relative_to(DOCS).with_suffix("").as_posix() for path in DOCS.rglob("*.md")
    }
    assert {f"/guide/{name}" for name in PAGES if name != "index"} <= linked
    assert "<h1" in index.text


@pytest.fixture(scope="module")
def get(pages_lab: Lab) -> Iterator[Callable[[str], httpx.Response]]:
    """Answers to a browser: pages lead to each other, and each address is asked for once."""
    with pages_lab.app.client() as client:
        client.headers["accept"] = "text/html"
        yield functools.cache(client.get)


@pytest.mark.parametrize("name", PAGES)
def test_the_links_of_a_page_of_the_guide_lead_to_headings_that_there_are(
    name: str, get: Callable[[str], httpx.Response]
) -> None:
    address = "/guide" if name == "index" else f"/guide/{name}"

    answer = get(address)

    found = links_of(answer)
    assert answer.status_code == 200
    assert found.forbidden == []
    for link in (*found.links, *found.loaded):
        target = urlsplit(urljoin(address, link))
        assert not target.netloc, link
        page = get(target.path)
        assert page.status_code == 200, link
        assert not target.fragment or f'id="{target.fragment}"' in page.text, link


def test_a_page_has_tables_code_and_texts_as_they_are_written(browser_http: httpx.Client) -> None:
    page = browser_http.get("/guide/http-api").text
    problems = browser_http.get("/guide/problems").text
    architecture = browser_http.get("/guide/benchmarking").text

    assert '<div class="scroll"><table>' in page
    assert "<td><code>GET /v1/jobs/{id}/results</code></td>" in page
    assert "curl -sS http://127.0.0.1:8000/healthz" in page
    assert "safetensors (https://github.com/huggingface/safetensors)" in page
    assert "from warpcall_kernels import Param, Problem, Sample, Size" in problems
    assert 'style="' not in page + problems + architecture


def test_a_page_has_no_heading_twice_by_one_name() -> None:
    for name in PAGES:
        ids = [section.id for section in sections(name)]

        assert len(ids) == len(set(ids)), name


def test_a_search_needs_no_script_and_finds_the_section_that_has_the_words_in_its_heading(
    browser_http: httpx.Client,
) -> None:
    page = browser_http.get("/guide", params={"q": "SEVERAL users"})
    nothing = browser_http.get("/guide", params={"q": "no-such-word-anywhere"})
    marked = browser_http.get("/guide", params={"q": "<b>x</b>"})

    first, *_ = re.findall(r'<section class="found"><h3><a href="([^"]*)">(.*?)</a>', page.text)
    assert first[1] == "Several users"
    there = browser_http.get(urljoin("/guide", unescape(first[0])))
    assert f'id="{first[0].partition("#")[2]}"' in there.text
    assert page.text.count('class="found"') <= 20
    assert "No section has all of these words" in nothing.text
    assert "&lt;b&gt;x&lt;/b&gt;" in marked.text
    assert "<b>x" not in marked.text


@pytest.mark.parametrize(
    "name", ["nothing", "index", "../pyproject.toml", "benchmarks/h200.json", "deploy.md", ""]
)
def test_what_is_no_page_of_the_guide_is_not_found(name: str, pages_lab: Lab) -> None:
    with pages_lab.app.client() as http:
        answer = http.get(f"/guide/{name}".replace("..", "%2e%2e"))

    problem_of(answer, 404, "not-found", "name")


def test_pictures_and_examples_are_files_of_the_guide(browser_http: httpx.Client) -> None:
    picture = browser_http.get("/guide/images/now.png")
    drawing = browser_http.get("/guide/benchmarks/isin-grid.svg")
    example = browser_http.get("/guide/examples/my_permute.py")

    assert picture.content == (DOCS / "images/now.png").read_bytes()
    assert picture.headers["content-type"] == "image/png"
    assert drawing.headers["content-type"] == "image/svg+xml"
    assert example.text == (DOCS.parent / "examples/my_permute.py").read_text()
    assert example.headers["content-type"] == "text/plain; charset=utf-8"
