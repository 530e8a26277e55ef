"""Requests about implementations and problems, as tests make them."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx

from tests.servers import Server, running_server
from tests.service.databases import Database
from tests.service.job_requests import BRIEF, client
from tests.service.uploads.problem_sources import SCALE, THRICE
from tests.service.uploads.sources import SHORT

SETTINGS = {"WARPCALL_UPLOADS": "trusted", "WARPCALL_ARENA_BYTES": "16MiB", **BRIEF}
# With these a server has the implementation `hang`, whose calls sleep: a job that runs until it is cancelled.
HANGING = {
    "WARPCALL_JOB_MODULES": "tests.service.misbehaving",
    "PYTHONPATH": os.pathsep.join([BRIEF["PYTHONPATH"], str(Path(__file__).parents[3])]),
}


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


@dataclass(frozen=True)
class Kind:
    """Implementations or problems, as tests upload and list them.

    Attributes:
        name: what one of them is, in messages.
        fields: of each upload, besides its source.
        sources: two that are accepted under one name.
        default: the name of these sources if none is given.
    """

    name: str
    fields: Mapping[str, str]
    sources: tuple[str, str]
    default: str

    @property
    def path(self) -> str:
        return f"/v1/{self.name}s"

    def upload(self, http: httpx.Client, source: str, **fields: Any) -> httpx.Response:
        body = {**self.fields, "source": source, **fields}
        return http.post(self.path, json=body, timeout=120)

    def uploaded(self, http: httpx.Client, source: str, **fields: Any) -> dict[str, Any]:
        """Upload a source that must be accepted."""
        answer = self.upload(http, source, **fields)
        assert answer.status_code in (200, 201), answer.text
        found: dict[str, Any] = answer.json()
        assert found["created"] is (answer.status_code == 201)
        return found

    def names(self, http: httpx.Client, **query: Any) -> list[str]:
        """The uploads that a caller finds, by name."""
        answer = http.get(self.path, params=query)
        assert answer.status_code == 200, answer.text
        listed = answer.json()[f"{self.name}s"]
        return [one["name"] for one in listed if one.get("kind", "uploaded") == "uploaded"]


IMPLEMENTATION = Kind(
    "implementation", {"op": "permute"}, (SHORT, SHORT.replace("x", "x ")), "permute"
)
PROBLEM = Kind("problem", {}, (SCALE, THRICE), "scale")

PATH, PROBLEMS = IMPLEMENTATION.path, PROBLEM.path
upload, uploaded, names = IMPLEMENTATION.upload, IMPLEMENTATION.uploaded, IMPLEMENTATION.names
add_problem, added_problem, problem_names = PROBLEM.upload, PROBLEM.uploaded, PROBLEM.names
