"""A user of each role, for the tests of forms with a server and with the application in process."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import httpx

from tests.service.databases import Database
from warpcall_service.identity import ROLES


@dataclass(frozen=True)
class FormUsers:
    """A database, and a browser of a user of each role, who has the role's name."""

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


def database_of_users(folder: Path) -> tuple[Database, dict[str, str]]:
    """A database in a folder, and the keys of its users: one of each role, and another of "bench"."""
    database = Database("sqlite", {"WARPCALL_DATA_DIR": str(folder)})
    keys: dict[str, str] = {role: database.key(role, role) for role in ROLES}
    return database, {**keys, "other": database.key("other", "bench")}
