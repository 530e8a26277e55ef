"""Real servers with users who may upload code, for the tests that do not break them."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import pytest

from tests import pointed
from tests.servers import Server, running_server
from tests.service.databases import Database
from tests.service.job_requests import BRIEF
from tests.waiting import until
from warpcall import Client
from warpcall_service.identity import Role

USERS: dict[str, Role] = {"ann": "upload", "eve": "upload", "bob": "bench"}
UPLOADS = "sandboxed" if shutil.which("bwrap") else "trusted"


@dataclass(frozen=True)
class Lab:
    """A server with users.

    Attributes:
        keys: by user: ann and eve may upload, bob may only submit jobs.
    """

    server: Server
    keys: dict[str, str]

    def client(self, user: str) -> Client:
        return Client(self.server.url, api_key=self.keys[user])


@pytest.fixture(scope="session")
def lab(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lab]:
    """Without the sandbox, so that uploads run in forks of a process that has imported torch."""
    with _running_lab("trusted", tmp_path_factory) as running:
        yield running


@pytest.fixture(scope="session")
def sandboxed_lab(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lab]:
    """With the sandbox where bubblewrap is installed: each upload takes an import of torch, of seconds."""
    with _running_lab(UPLOADS, tmp_path_factory) as running:
        yield running


@contextmanager
def _running_lab(uploads: str, folders: pytest.TempPathFactory) -> Iterator[Lab]:
    if pointed.KEYS:
        yield Lab(pointed.Elsewhere(pointed.URL), pointed.KEYS)
        return
    database = Database("sqlite", {"WARPCALL_DATA_DIR": str(folders.mktemp("data"))})
    keys = {name: database.key(name, role) for name, role in USERS.items()}
    settings = {"WARPCALL_UPLOADS": uploads}
    with running_server({**database.settings, **settings, **BRIEF}) as server:
        until(lambda: json.loads(server.get("/readyz")[1])["uploads"] == uploads, "no uploads")
        yield Lab(server, keys)
