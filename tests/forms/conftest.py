"""A server with users of each role, whose jobs are brief, for the tests of all forms."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass

import httpx
import pytest

from tests.servers import Server, running_server
from tests.service.form_users import FormUsers, database_of_users
from tests.service.job_requests import BRIEF

SETTINGS = {
    "WARPCALL_ARENA_BYTES": "16MiB",
    "WARPCALL_UPLOADS": "trusted",
    "WARPCALL_WEBHOOK_HOSTS": "example.org",
}


@dataclass(frozen=True)
class FormsLab(FormUsers):
    """The server with these users."""

    server: Server


@pytest.fixture(scope="session")
def lab(tmp_path_factory: pytest.TempPathFactory) -> Iterator[FormsLab]:
    folder = tmp_path_factory.mktemp("forms")
    database, keys = database_of_users(folder)
    with (
        running_server({**database.settings, **SETTINGS, **BRIEF}) as server,
        ExitStack() as opened,
    ):
        browsers = {name: opened.enter_context(browser(server, key)) for name, key in keys.items()}
        yield FormsLab(database, keys, browsers, server)


def browser(server: Server, key: str) -> httpx.Client:
    """A client that asks as a browser does."""
    headers = {"accept": "text/html", "authorization": f"Bearer {key}"}
    return httpx.Client(base_url=server.url, headers=headers, timeout=60)
