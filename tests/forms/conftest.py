"""A server with users of each role, whose jobs are brief, for the tests of all forms."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass

import httpx
import pytest

from tests.servers import Server, running_server
from tests.service.databases import Database
from tests.service.job_requests import BRIEF
from warpcall_service.identity import ROLES

SETTINGS = {
    "WARPCALL_ARENA_BYTES": "16MiB",
    "WARPCALL_UPLOADS": "trusted",
    "WARPCALL_WEBHOOK_HOSTS": "example.org",
}


@dataclass(frozen=True)
class FormsLab:
    """The server, its database, and a browser of a user of each role, who has the role's name."""

    server: Server
    database: Database
    keys: dict[str, str]
    browsers: dict[str, httpx.Client]

    @property
    def bench(self) -> httpx.Client:
        return self.browsers["bench"]

    @property
    def upload(self) -> httpx.Client:
        return self.browsers["upload"]

    @property
    def admin(self) -> httpx.Client:
        return self.browsers["admin"]


@pytest.fixture(scope="session")
def lab(tmp_path_factory: pytest.TempPathFactory) -> Iterator[FormsLab]:
    folder = tmp_path_factory.mktemp("forms")
    database = Database("sqlite", {"WARPCALL_DATA_DIR": str(folder)})
    keys: dict[str, str] = {role: database.key(role, role) for role in ROLES}
    keys["other"] = database.key("other", "bench")
    with (
        running_server({**database.settings, **SETTINGS, **BRIEF}) as server,
        ExitStack() as opened,
    ):
        browsers = {name: opened.enter_context(browser(server, key)) for name, key in keys.items()}
        yield FormsLab(server, database, keys, browsers)


def browser(server: Server, key: str) -> httpx.Client:
    """A client that asks as a browser does."""
    headers = {"accept": "text/html", "authorization": f"Bearer {key}"}
    return httpx.Client(base_url=server.url, headers=headers, timeout=60)
