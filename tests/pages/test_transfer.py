"""What pages and their files weigh on the way, and for whom they are compressed."""

from __future__ import annotations

import re
import socket
import zlib
from pathlib import Path
from urllib.parse import urljoin

import httpx
import pytest
import sqlalchemy as sa

from tests.app.pages.test_every_page import links_of
from tests.pages import lab
from tests.pages.conftest import SETTINGS, Lab
from tests.servers import Server, running_server
from tests.service.requests import log_of
from warpcall_bench.jobs.tables import JobCase
from warpcall_bench.pages import static
from warpcall_bench.pages.sizes import MOST_DOTS, Line
from warpcall_service.store.database import Store


@pytest.mark.slow
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


def chunks_of(server: Server, path: str, coding: str) -> tuple[str, list[bytes]]:
    """The head of a response and its chunks, which a client for HTTP might join."""
    with socket.create_connection(("127.0.0.1", server.port), timeout=30) as connection:
        connection.sendall(
            f"GET {path} HTTP/1.1\r\nHost: localhost\r\nAccept: text/html\r\n"
            f"Accept-Encoding: {coding}\r\nConnection: close\r\n\r\n".encode()
        )
        head, _, rest = b"".join(iter(lambda: connection.recv(1 << 16), b"")).partition(b"\r\n\r\n")
    chunks = []
    while rest:
        size, _, rest = rest.partition(b"\r\n")
        chunks.append(rest[: int(size, 16)])
        rest = rest[int(size, 16) + 2 :]
    assert chunks.pop() == b"", "the response has its end"
    return head.decode().lower(), chunks


@pytest.mark.parametrize("coding", ["gzip", "identity"])
@pytest.mark.parametrize("kind", ["job", "compare", "kernels"])
def test_what_takes_long_follows_a_part_that_can_be_painted(
    pages_lab: Lab, kind: str, coding: str
) -> None:
    path = f"/jobs/{pages_lab.many}"
    if kind == "compare":
        path = f"/compare?a={pages_lab.earlier}&b={pages_lab.later}"
    elif kind == "kernels":
        path = "/kernels"
    title, slow = ("Kernels", "nobody yet") if kind == "kernels" else ("permute", 'class="results')

    head, chunks = chunks_of(pages_lab.server, path, coding)

    assert ("content-encoding: gzip" in head) == (coding == "gzip")
    assert "vary: accept-encoding" in head
    assert "cache-control: no-store" in head
    unpacked = zlib.decompressobj(31)
    parts = [one if coding == "identity" else unpacked.decompress(one) for one in chunks]
    first, rest = parts[0].decode(), b"".join(parts[1:]).decode()
    assert f"<h1>{title}" in first
    assert "app.css" in first
    assert slow not in first
    assert slow in rest
    assert rest.endswith("</html>")
    assert coding == "identity" or unpacked.eof


def test_a_page_whose_rest_fails_says_so_at_its_end(tmp_path: Path) -> None:
    store = Store(None, tmp_path)
    store.migrate()
    lab.submit(store, "ann", "permute", lab.permute_cases((64,)), ["warpcall", "torch"])
    job = lab.measure(store, {"warpcall": 0.9, "torch": 0.5})
    with store.write() as session:
        session.execute(sa.update(JobCase).values(result=b"no zlib"))
    store.close()

    with running_server({**SETTINGS, "WARPCALL_DATA_DIR": str(tmp_path)}) as server:
        headers = {"accept": "text/html", "x-request-id": "the-broken-page"}
        found = httpx.get(f"{server.url}/jobs/{job}", headers=headers)
        missing = httpx.get(f"{server.url}/jobs/0123456789ab", headers=headers)
        log = log_of(server)

    assert found.status_code == 200
    assert "<h1>permute</h1>" in found.text
    assert 'role="alert"' in found.text
    assert "The rest of this page is missing." in found.text
    assert "Status 500, request the-broken-page." in found.text
    assert not re.search("Traceback|zlib", found.text)
    assert found.text.rstrip().endswith("</html>")
    assert missing.status_code == 404
    assert "zlib.error" in log
    assert re.search(r'"path": "/jobs/\w+", .*"status": 200, "outcome": "internal"', log)


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
