"""The pages of a server whose database is a PostgreSQL."""

from __future__ import annotations

import re
import time
from collections.abc import Iterator

import httpx
import pytest
import sqlalchemy as sa

from tests.pages.conftest import SETTINGS, Lab
from tests.pages.filled import filled
from tests.servers import running_server
from tests.service.databases import postgres_cluster
from warpcall_service.auth.tables import Usage
from warpcall_service.store.database import Store

HTML = {"accept": "text/html"}


def used(days_ago: int, user: str, op: str, requests: int, seconds: int) -> dict[str, object]:
    """A row of usage."""
    day = time.strftime("%Y-%m-%d", time.gmtime(time.time() - days_ago * 86_400))
    amounts = {"failures": 1, "bytes_in": 1 << 40, "bytes_out": 5, "kernel_us": seconds * 10**6}
    return {"day": day, "user_name": user, "op": op, "requests": requests, **amounts}


@pytest.fixture(scope="module")
def on_postgresql(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lab]:
    folder = tmp_path_factory.mktemp("lab")
    with postgres_cluster() as cluster:
        url = cluster.url.format("postgres")
        jobs = filled(folder, url)
        store = Store(url, folder)
        rows = [
            used(3, "ann", "permute", 7, 20),
            used(3, "ann", "", 2, 0),
            used(2, "ann", "conv", 3, 40),
            used(2, "zoe", "conv", 1, 5),
            used(40, "zoe", "isin", 1000, 1000),  # too long ago
        ]
        with store.write() as session:
            session.execute(sa.insert(Usage), rows)
        store.close()
        settings = {**SETTINGS, "WARPCALL_DATA_DIR": str(folder), "WARPCALL_DATABASE_URL": url}
        with running_server(settings) as server:
            yield Lab(server=server, **jobs)


@pytest.mark.slow
def test_every_page_is_made(on_postgresql: Lab) -> None:
    with httpx.Client(base_url=on_postgresql.server.url, headers=HTML, timeout=30) as http:
        failed = [path for path in on_postgresql.paths if http.get(path).status_code != 200]

    assert failed == []


def test_the_usage_of_each_user_and_day_is_drawn(on_postgresql: Lab) -> None:
    with httpx.Client(base_url=on_postgresql.server.url, headers=HTML, timeout=30) as http:
        page = http.get("/admin?by=day").text
        short = http.get("/admin").text

    assert 'href="./admin?by=day#days"' in short
    assert ">ann</td><td class" in page
    assert ">ann</td><td class" not in short
    found = {}
    for user in ("ann", "zoe"):
        row = re.search(rf"<tr><td>{user}\b.*?</tr>", page, re.DOTALL)
        assert row is not None
        bars = re.findall(r"M(\d+) 27v-([\d.]+)h", row[0])
        cells = re.findall(r"<td[^>]*>(.*?)</td>", row[0])
        found[user] = (bars, cells)
    assert found["ann"][0] == [("26", "13"), ("27", "26")]
    assert found["zoe"][0] == [("27", "3.2")]
    rows = re.findall(
        r"<td>(ann|zoe)</td><td class=\"num\">(.*?)</td><td class=\"num\">(.*?)</td>", page
    )
    assert rows == [("ann", "40 s", "3"), ("zoe", "5 s", "1"), ("ann", "20 s", "9")]
    assert found["ann"][1][-6:-2] == ["<b>60 s</b>", "12", "3", "conv"]
