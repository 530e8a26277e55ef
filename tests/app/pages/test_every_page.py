"""What every page is: complete without scripts, closed to other hosts, and its lists can be sorted and filtered.

The tests read the same pages, so each address is asked for once.
"""

from __future__ import annotations

import functools
import re
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from html.parser import HTMLParser
from urllib.parse import parse_qs, urlencode, urljoin, urlsplit

import httpx
import pytest

from tests.app.pages.conftest import Lab

# Tables that are no lists: their rows belong together, are in the only order that makes sense, or are
# the first of a list that stands whole on another page.
NO_LISTS = {
    *("results", "answers", "heat", "more", "spreads", "facts-table", "pair", "choices"),
    *("latest", "parts", "ranking", "won"),
}

MOST_PAGES = 250  # that are followed from link to link
Get = Callable[[str], httpx.Response]


@pytest.fixture(scope="module")
def get(pages_lab: Lab) -> Iterator[Get]:
    """Answers of the server to a browser: the first one to a request for each address."""
    with pages_lab.app.client() as client:
        client.headers["accept"] = "text/html"
        yield functools.cache(client.get)


class Links(HTMLParser):
    """The links of a page, and the attributes and elements that its policy forbids."""

    def __init__(self) -> None:
        super().__init__()
        self.links: list[str] = []
        self.loaded: list[str] = []
        self.forbidden: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = dict(attrs)
        if tag == "a":
            self.links.append(given["href"] or "")
        if tag in ("script", "link", "img"):
            self.loaded.append(given.get("src") or given.get("href") or "")
        inline = tag == "style" or (tag == "script" and "src" not in given)
        if inline or "style" in given or any(name.startswith("on") for name in given):
            self.forbidden.append(f"{tag} {attrs}")


def links_of(page: httpx.Response) -> Links:
    found = Links()
    found.feed(page.text)
    return found


@pytest.mark.slow
def test_every_page_forbids_inline_code_and_has_none(pages_lab: Lab, get: Get) -> None:
    for path in pages_lab.paths:
        page = get(path)

        assert page.status_code == 200, path
        policy = page.headers["content-security-policy"]
        assert "default-src 'none'" in policy
        assert "unsafe-" not in policy
        assert links_of(page).forbidden == []
        assert page.headers["cache-control"] == "no-store"


@pytest.mark.slow
def test_every_link_leads_to_a_page_of_this_server(pages_lab: Lab, get: Get) -> None:
    seen: set[str] = set()
    waiting = deque(pages_lab.paths)  # all of these, and then pages that they lead to

    while waiting and len(seen) < MOST_PAGES:
        path = waiting.popleft()
        if path in seen:
            continue
        seen.add(path)
        page = get(path)
        assert page.status_code == 200, path
        if page.headers["content-type"].startswith("text/html"):
            found = links_of(page)
            for link in (*found.links, *found.loaded):
                assert not urlsplit(link).netloc, link
                target = urlsplit(urljoin(path, link))
                waiting.append(target.path + (f"?{target.query}" if target.query else ""))

    assert len(seen) > len(pages_lab.paths)


def test_links_work_below_any_path_prefix(pages_lab: Lab, get: Get) -> None:
    for path in pages_lab.paths:
        found = links_of(get(path))

        for link in (*found.links, *found.loaded):
            below = urljoin(f"http://host/prefix{path}", link)
            assert link.startswith("#") or below.startswith("http://host/prefix/"), link


@dataclass
class Shown:
    """A table of a page."""

    classes: set[str]
    rows: int = 0
    links: list[str] = field(default_factory=list)
    marks: list[str] = field(default_factory=list)


class Tables(HTMLParser):
    """The tables of a page with their links that sort, and its forms that filter."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tables: list[Shown] = []
        self.fields: list[str] = []
        self._in_head = False
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = {name: value or "" for name, value in attrs}
        if tag == "table":
            self.tables.append(Shown({*given.get("class", "").split()}))
        elif tag in ("thead", "tbody"):
            self._in_head = tag == "thead"
        elif tag == "tr" and self.tables and not self._in_head:
            self.tables[-1].rows += 1
        elif tag == "th" and "aria-sort" in given:
            self.tables[-1].marks.append(given["aria-sort"])
        elif tag == "a" and given.get("class") == "sort":
            self.tables[-1].links.append(given["href"])
        elif tag == "input" and given.get("type") == "search":
            self.fields.append(given["name"])


@pytest.mark.slow
def test_every_list_of_every_page_sorts_by_links(pages_lab: Lab, get: Get) -> None:
    """Also after a filter that leaves nothing."""
    sorted_by: set[str] = set()
    filtered: set[str] = set()
    for path in [path for path in [*pages_lab.paths, "/admin?by=day"] if "guide" not in path]:
        found = Tables(get(path).text)
        for one in found.tables:
            # A kernel of a compile report has a row for its name, and one for what it needs.
            several = one.rows > (2 if "kernels" in one.classes else 1)
            if several and not one.classes & NO_LISTS:
                assert one.links, (path, one)
            for link in one.links[: 1 if path.startswith("/compare") else None]:  # it takes long
                url = urljoin(f"http://server{path}", link).removeprefix("http://server")
                page = get(url.partition("#")[0])
                assert page.status_code == 200, url
                (mark,) = [mark for shown in Tables(page.text).tables for mark in shown.marks]
                descends = any(
                    name.endswith("sort=-") for name in re.findall(r"[^?&]*sort=-?", url)
                )
                assert mark == ("descending" if descends else "ascending"), url
                sorted_by.add(urlsplit(path).path)
        for name in found.fields:
            page = get(
                f"{urlsplit(path).path}?{urlencode({**dict(parse_qs_one(path)), name: 'no such text'})}"
            )
            assert page.status_code == 200
            assert "Nothing has “no such text”" in page.text or path == "/jobs", path
            assert 'value="no such text"' in page.text
            filtered.add(urlsplit(path).path)

    assert {"/", "/jobs", "/kernels", "/admin", "/board", "/history"} <= sorted_by
    assert {"/jobs", "/kernels", "/admin", "/history"} <= filtered


def parse_qs_one(path: str) -> list[tuple[str, str]]:
    return [(name, value[0]) for name, value in parse_qs(urlsplit(path).query).items()]
