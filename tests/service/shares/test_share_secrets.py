"""Where the token of a share link must not be."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.servers import running_server
from tests.service.auth.browsers import BEHIND_A_PROXY, Site
from tests.service.databases import Database
from tests.service.requests import log_of
from tests.service.stored import finished

pytestmark = pytest.mark.slow


def test_neither_the_database_nor_the_log_has_the_token(sqlite: Database) -> None:
    key = sqlite.key("alice", "bench")
    store = sqlite.store()
    job = finished(store, "alice", 2)
    store.close()
    with running_server({**sqlite.settings, **BEHIND_A_PROXY}) as server:
        site = Site(server, sqlite)
        with site.browser(authorization=f"Bearer {key}") as http:
            token = http.post(f"/v1/jobs/{job}/shares", json={}).json()["url"].rpartition("/")[2]
        with site.browser() as http:
            ways = ("", "/results", "/results?format=csv", f"/{token}")
            opened = [http.get(f"/v1/shared/{token}{way}").status_code for way in ways]
            page = http.get(f"/share/{token}").status_code
        log = log_of(server)
        folder = Path(sqlite.settings["WARPCALL_DATA_DIR"])
        stored = b"".join(file.read_bytes() for file in folder.glob("warpcall.sqlite3*"))

    secret = token.removeprefix("sh_")
    assert (opened, page) == ([200, 200, 200, 404], 200)
    assert secret not in log
    assert secret.encode() not in stored
    assert '"path": "/v1/shared/..."' in log
