"""Lists of the pages sort by their columns and filter by words, in their address and without scripts."""

from __future__ import annotations

import re
from html import unescape
from types import SimpleNamespace
from urllib.parse import parse_qs, urlsplit

import httpx
import pytest

from tests.app.pages.conftest import Lab
from tests.service.job_rows import caller
from warpcall.errors import InvalidInput
from warpcall_bench.pages.sortable import table
from warpcall_bench.pages.view import View
from warpcall_bench.words import LONGEST, natural, words_of

ROWS = [
    SimpleNamespace(name="n10", size=3, by=SimpleNamespace(user="Ann"), tags=["a"]),
    SimpleNamespace(name="n9", size=None, by=None, tags=[]),
    SimpleNamespace(name="N11", size=20, by=SimpleNamespace(user="bob"), tags=["b", "c"]),
]
COLUMNS = {"name": "name", "size": "size", "smallness": "-size", "user": "by.user", "tag": "tags.0"}


def view(**query: str) -> View:
    return View("../", "/some/page", caller("ann"), query=query)


def names(**query: str) -> list[str]:
    found = table(view(**query), "", ROWS, COLUMNS, ["tags"])
    return [row.name for row in found.rows]


def test_rows_are_sorted_by_value_and_those_without_one_come_last() -> None:
    assert names() == ["n10", "n9", "N11"]
    assert names(sort="name") == ["n9", "n10", "N11"]
    assert names(sort="-name") == ["N11", "n10", "n9"]
    assert names(sort="size") == names(sort="-smallness") == ["n10", "N11", "n9"]
    assert names(sort="-size") == names(sort="smallness") == ["N11", "n10", "n9"]
    assert names(sort="user") == names(sort="tag") == ["n10", "N11", "n9"]
    assert natural("a2") < natural("a10") < natural("b1")


def test_rows_are_filtered_by_all_words_in_any_column() -> None:
    assert names(find="n1") == ["n10", "N11"]
    assert names(find=" BOB  n1 ") == ["N11"]
    assert names(find="ann bob") == []
    assert names(find="c") == ["N11"]
    assert words_of("8192x8192 BF16") == words_of("8192×8192 x bf16") == ["8192,8192", "bf16"]


@pytest.mark.parametrize(
    ("query", "wrong", "says"),
    [
        ({"keys.sort": "colour"}, "keys.sort", "one of name, size, smallness, user, tag, with a -"),
        ({"keys.sort": "--name"}, "keys.sort", "got '--name'"),
        (
            {"keys.find": "x" * (LONGEST + 1)},
            "keys.find",
            "100 characters and 8 words, got 101 and 1",
        ),
        ({"keys.find": "a b c d e f g h i"}, "keys.find", "8 words, got 17 and 9"),
    ],
)
def test_what_a_table_cannot_do_is_refused(query: dict[str, str], wrong: str, says: str) -> None:
    with pytest.raises(InvalidInput, match=re.escape(says)) as caught:
        table(view(**query), "keys", ROWS, COLUMNS)

    assert caught.value.field == wrong


def test_a_link_keeps_the_filter_and_reverses_the_order() -> None:
    query = {"keys.find": "a&b", "keys.sort": "-size", "before": "0123", "user": "all"}
    head = table(view(**query), "keys", ROWS, COLUMNS)

    def link(cell: str) -> dict[str, list[str]]:
        (found,) = re.findall(r'href="([^"]*)#list-keys"', cell)
        address = urlsplit(found.replace("&amp;", "&"))
        assert address.path == "../some/page"
        return parse_qs(address.query)

    kept = {"keys.find": ["a&b"], "user": ["all"]}
    assert link(head.head("size", "num")) == {**kept, "keys.sort": ["size"]}
    assert link(head.head("smallness", "num")) == {**kept, "keys.sort": ["-smallness"]}
    assert link(head.head("user")) == {**kept, "keys.sort": ["user"]}
    assert 'aria-sort="descending"' in head.head("size", "num")
    assert "<a" not in head.head("no column")
    assert "<a" not in table(view(), "", ROWS[:1], COLUMNS).head("name")
    form = head.form("keys")
    assert 'name="keys.find" value="a&amp;b"' in form
    assert 'name="user" value="all"' in form
    assert "before" not in form


def test_the_list_of_jobs_is_found_by_words_outcome_and_day_and_sorted_whole(
    pages_lab: Lab, browser_http: httpx.Client
) -> None:
    def shown(**query: str) -> list[str]:
        page = browser_http.get("/jobs", params=query)
        assert page.status_code == 200, query
        return list(dict.fromkeys(re.findall(r'href="./jobs/([0-9a-f]{12})"', page.text)))

    assert pages_lab.many in shown(find="625x625")
    assert pages_lab.done not in shown(find="625x625")
    assert shown(find="nightly ann/tiles") == [pages_lab.done]
    assert shown(found="faster", since="2000-01-01", until="") != []
    assert shown(until="2000-01-01") == []
    assert shown(sort="submitted") == shown()[::-1]
    assert browser_http.get("/jobs", params={"find": "none"}).text.count("No job matches") == 1
    for wrong in ({"sort": "outcome"}, {"since": "soon"}, {"found": "x"}, {"find": "x" * 101}):
        answer = browser_http.get("/jobs", params=wrong, headers={"accept": "*/*"})
        assert answer.status_code == 422
        assert answer.json()["field"] == next(iter(wrong))


def test_ticked_jobs_are_compared_from_the_earliest_on(
    pages_lab: Lab, browser_http: httpx.Client
) -> None:
    jobs = [pages_lab.earlier, pages_lab.later, pages_lab.done]

    def sent(*ids: str) -> httpx.Response:
        return browser_http.get("/compare", params={"job": ids}, follow_redirects=False)

    listed = browser_http.get("/jobs").text
    assert f'form="compare" name="job" value="{pages_lab.done}"' in listed
    assert f'name="job" value="{pages_lab.running}"' not in listed
    assert sent(jobs[1], jobs[0]).headers["location"] == f"./compare?a={jobs[0]}&b={jobs[1]}"
    assert sent(jobs[2]).headers["location"] == f"./compare?a={jobs[2]}"
    several = sent(*reversed(jobs)).headers["location"]
    assert several == f"./compare?jobs={'%2C'.join(jobs)}"
    page = browser_http.get(several[1:]).text
    leads = [f"{job} is faster in 8, the same in 24 of 32 rows." for job in jobs[1:]]
    assert re.findall(r"<p[^>]*>([^<]*)</p>", page)[:2] == leads
    assert page.count('aria-label="Filter rows"') == 1
    assert re.findall(
        r'aria-sort="(\w+)"><a class="sort"[^>]*>(\w+)<', sorted_page(page, jobs[1], browser_http)
    ) == [("descending", jobs[1])]
    for query, wrong in (
        ({"job": jobs * 3}, "job"),
        ({"jobs": jobs[0]}, "jobs"),
        ({"jobs": f"{jobs[0]},{jobs[0]}"}, "jobs"),
        ({"jobs": ",".join(jobs), "sort": "colour"}, "sort"),
    ):
        answer = browser_http.get("/compare", params=query, headers={"accept": "*/*"})
        assert (answer.status_code, answer.json()["field"]) == (422, wrong)


def sorted_page(page: str, label: str, http: httpx.Client) -> str:
    """The page that the link of a head leads to."""
    (link,) = re.findall(rf'<a class="sort" href="\.([^"#]*)#list">{label}</a>', page)
    return http.get(unescape(link)).text


def test_each_op_has_its_leader_with_its_share_of_the_limit_the_gpu_and_a_line(
    browser_http: httpx.Client,
) -> None:
    page = browser_http.get("/kernels").text

    row = page.partition("./kernels/permute")[2].partition("</tr>")[0]
    assert "<td>warpcall" in row
    assert "./board?op=permute&amp;device=NVIDIA+H200&amp;case=permute+x" in row
    assert re.search(r"<b>9\d %</b>", row)
    assert '<td class="optional">NVIDIA H200</td>' in row
    assert len(re.findall(r'points="([^"]*)"', row)[0].split()) > 1
    assert "nobody yet" in page.partition("./kernels/isin")[2].partition("</tr>")[0]
    by_limit = browser_http.get("/kernels", params={"sort": "leader"}).text
    assert re.findall(r"\./kernels/([a-z-]+)", by_limit)[0] == "permute"


def test_the_list_of_jobs_names_the_sizes_of_their_further_cases(
    pages_lab: Lab, browser_http: httpx.Client
) -> None:
    page = browser_http.get("/jobs", params={"find": "625x625"}).text

    assert "x=BF16[125,125], x=BF16[150,150]" in page
    assert re.search(r"x=F32\[675,675\] and 44 others|x=\w+\[675,675\]\s+and 44 others", page)
