"""What pages and their files weigh on the way, and for whom they are compressed."""

from __future__ import annotations

from urllib.parse import urljoin

import httpx
import pytest

from tests.pages.conftest import Lab
from tests.pages.test_pages import links_of
from warpcall_service.pages import static
from warpcall_service.pages.sizes import MOST_DOTS, Line


def test_a_first_visit_transfers_less_than_60_kb(
    pages_lab: Lab, browser_http: httpx.Client
) -> None:
    for path in ("/", f"/jobs/{pages_lab.done}", f"/jobs/{pages_lab.many}", "/kernels/permute"):
        page = browser_http.get(path)
        loaded = [browser_http.get(urljoin(path, link)) for link in links_of(page).loaded]

        assert len(loaded) >= 3  # style, script, icon
        assert sum(one.num_bytes_downloaded for one in (page, *loaded)) < 60_000


def test_the_documentation_is_compressed_too(browser_http: httpx.Client) -> None:
    page = browser_http.get("/docs")
    loaded = [browser_http.get(urljoin("/docs", link)) for link in links_of(page).loaded]

    assert sum(len(one.content) for one in loaded) > 1_000_000
    assert sum(one.num_bytes_downloaded for one in loaded) < 600_000


@pytest.mark.parametrize("path", ["/login", "/docs", "/docs/swagger-ui.css", "app.css"])
def test_only_those_who_accept_gzip_get_it(browser_http: httpx.Client, path: str) -> None:
    path = f"/{static.static_path(path)}" if path == "app.css" else path
    found = {
        accepted: browser_http.get(path, headers={"accept-encoding": accepted})
        for accepted in ("deflate, gzip;q=0.5", "GZIP", "identity", "gzip;q=0", "br, xgzip")
    }

    assert [answer.headers.get("content-encoding") for answer in found.values()] == [
        *("gzip", "gzip"),
        *(None, None, None),
    ]
    assert len({answer.content for answer in found.values()}) == 1
    assert {answer.headers["vary"] for answer in found.values()} == {"accept-encoding"}
    assert all(
        int(answer.headers["content-length"]) == answer.num_bytes_downloaded
        for answer in found.values()
    )


def test_answers_to_forms_are_not_compressed(browser_http: httpx.Client) -> None:
    answer = browser_http.post("/new", data={"op": "permute", "shape.x": "4x"})

    assert answer.status_code == 422
    assert len(answer.content) > 2000
    assert "content-encoding" not in answer.headers, "their length could tell of a secret in them"


def test_lines_through_many_sizes_have_no_dots() -> None:
    points = [(float(x), 50.0, "") for x in range(MOST_DOTS + 1)]

    assert Line("torch", 0, points).dots == []
    assert Line("torch", 0, points[1:]).dots == points[1:]
    assert Line("torch", 0, points).path.count(",") == MOST_DOTS + 1


def test_only_pages_with_parts_that_change_load_htmx(
    pages_lab: Lab, browser_http: httpx.Client
) -> None:
    paths = ("/", f"/jobs/{pages_lab.running}", f"/jobs/{pages_lab.done}", "/jobs", "/board")

    found = {
        path: (
            "hx-get=" in (page := browser_http.get(path)).text,
            any("htmx.min.js" in link for link in links_of(page).loaded),
        )
        for path in paths
    }

    assert all(changes == loads for changes, loads in found.values()), found
    assert found["/"] == (True, True)
    assert found[f"/jobs/{pages_lab.done}"] == (False, False)
