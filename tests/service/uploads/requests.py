"""Requests about implementations and problems, as tests make them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import httpx

from tests.servers import Server, running_server
from tests.service.databases import Database
from tests.service.job_requests import BRIEF, client

PATH = "/v1/implementations"
PROBLEMS = "/v1/problems"
SETTINGS = {"WARPCALL_UPLOADS": "trusted", "WARPCALL_ARENA_BYTES": "16MiB", **BRIEF}


@dataclass(frozen=True)
class Lab:
    """A server whose users have keys with the role upload; root is its administrator."""

    server: Server
    keys: Mapping[str, str]

    def http(self, user: str) -> httpx.Client:
        """A client of a user."""
        return client(self.server, self.keys[user])


@contextmanager
def running_lab(database: Database, *users: str, **settings: str) -> Iterator[Lab]:
    """A server for these users and root."""
    keys = {user: database.key(user, "upload") for user in users}
    keys["root"] = database.key("root", "admin")
    with running_server({**SETTINGS, **database.settings, **settings}) as server:
        yield Lab(server, keys)


def upload(http: httpx.Client, source: str, **fields: Any) -> httpx.Response:
    return http.post(PATH, json={"op": "permute", "source": source, **fields}, timeout=120)


def uploaded(http: httpx.Client, source: str, **fields: Any) -> dict[str, Any]:
    """Upload a source that must be accepted."""
    answer = upload(http, source, **fields)
    assert answer.status_code in (200, 201), answer.text
    found: dict[str, Any] = answer.json()
    assert found["created"] is (answer.status_code == 201)
    return found


def names(http: httpx.Client, **query: Any) -> list[str]:
    """The uploaded implementations that a caller finds, by name."""
    answer = http.get(PATH, params=query)
    assert answer.status_code == 200, answer.text
    return [one["name"] for one in answer.json()["implementations"] if one["kind"] == "uploaded"]


def add_problem(http: httpx.Client, source: str, **fields: Any) -> httpx.Response:
    return http.post(PROBLEMS, json={"source": source, **fields}, timeout=120)


def added_problem(http: httpx.Client, source: str, **fields: Any) -> dict[str, Any]:
    """Add a problem that must be accepted."""
    answer = add_problem(http, source, **fields)
    assert answer.status_code in (200, 201), answer.text
    found: dict[str, Any] = answer.json()
    assert found["created"] is (answer.status_code == 201)
    return found


def problem_names(http: httpx.Client, **query: Any) -> list[str]:
    """The problems that a caller finds, by name."""
    answer = http.get(PROBLEMS, params=query)
    assert answer.status_code == 200, answer.text
    return [one["name"] for one in answer.json()["problems"]]
