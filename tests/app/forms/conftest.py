"""The application with users of each role, for the tests of all forms. Its jobs wait."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any

import httpx
import pytest

from tests.app.harness import App, running_app
from tests.service import stored
from tests.service.form_users import FormUsers, database_of_users
from warpcall_service.auth import users
from warpcall_service.auth.tables import ApiKey

SETTINGS: dict[str, Any] = {
    "arena_bytes": "16MiB",
    "uploads": "trusted",
    "webhook_hosts": "example.org",
}


@dataclass(frozen=True)
class FormsApp(FormUsers):
    """The application with these users."""

    app: App

    def client(self, name: str) -> httpx.Client:
        """A program of a user."""
        return self.app.client(self.keys[name])

    def browser(self, key: str | None = None) -> httpx.Client:
        """A client that asks as a browser does."""
        made = self.app.client(key)
        made.headers["accept"] = "text/html"
        return made

    def users(self) -> list[tuple[str, int | None, int]]:
        """The name of each user, when they were disabled, and how many keys they have."""
        store = self.database.store()
        with store.read() as session:
            found = [(user.name, user.disabled_at, n) for user, n in users.list_users(session)]
        store.close()
        return found

    def api_keys(self, user: str | None = None) -> list[ApiKey]:
        """The keys of a user; None means those of all."""
        store = self.database.store()
        with store.read() as session:
            found = [key for key, _ in users.list_keys(session, user)]
            session.expunge_all()
        store.close()
        return found

    def complete(self, job: dict[str, Any]) -> dict[str, Any]:
        """Let a job that waits have ended, with a time in each row."""
        store = self.database.store()
        stored.complete(store, job["id"])
        store.close()
        found: dict[str, Any] = self.admin.get(f"/v1/jobs/{job['id']}").json()
        assert found["state"] == "succeeded"
        return found


@pytest.fixture(scope="session")
def lab(tmp_path_factory: pytest.TempPathFactory) -> Iterator[FormsApp]:
    folder = tmp_path_factory.mktemp("forms")
    database, keys = database_of_users(folder)
    browsers: dict[str, httpx.Client] = {}
    with (
        running_app(runs_jobs=False, **SETTINGS, data_dir=folder) as app,
        ExitStack() as opened,
    ):
        lab = FormsApp(database, keys, browsers, app)
        browsers |= {name: opened.enter_context(lab.browser(key)) for name, key in keys.items()}
        yield lab
