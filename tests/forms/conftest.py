"""A server with users of each role, whose jobs are brief, for the tests of all forms."""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from html import unescape
from html.parser import HTMLParser
from typing import Any

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
MARKUP = '<img src=x onerror="alert(1)">'
_numbers = itertools.count(1)


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


class _Fields(HTMLParser):
    """The fields of a page with the values that a browser would send."""

    def __init__(self) -> None:
        super().__init__()
        self.fields: dict[str, list[str]] = {}
        self._select = self._area = ""
        self._chosen: str | None = None

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = dict(attrs)
        name, value = given.get("name") or "", given.get("value") or ""
        if tag == "input" and given.get("type") in ("checkbox", "radio"):
            if "checked" in given:
                self._add(name, value)
        elif tag == "input" and given.get("type") != "file":
            self._add(name, value)
        elif tag == "select":
            self._select, self._chosen = name, None
        elif tag == "option" and self._select and ("selected" in given or self._chosen is None):
            self._chosen = given.get("value")
            if self._chosen is None:
                self._chosen = "\0"  # the text that follows
        elif tag == "textarea":
            self._area = name
            self._add(name, "")

    def handle_data(self, data: str) -> None:
        if self._area:
            self.fields[self._area][-1] += data
        elif self._select and self._chosen == "\0":
            self._chosen = data

    def handle_endtag(self, tag: str) -> None:
        if tag == "select":
            self._add(self._select, self._chosen or "")
            self._select = ""
        elif tag == "textarea":
            self._area = ""

    def _add(self, name: str, value: str) -> None:
        self.fields.setdefault(name, []).append(value)


def fields_of(page: httpx.Response) -> dict[str, list[str]]:
    """What a browser would send if the only form of a page were submitted unchanged."""
    found = _Fields()
    found.feed(page.text)
    return found.fields


def errors_of(page: httpx.Response) -> dict[str, str]:
    """The errors that a page shows, by the name of the field; "" is the one above the form."""
    found = re.findall(r'<p class="error" id="([^"]+)-error">(.*?)</p>', page.text, re.DOTALL)
    errors = {name: unescape(text) for name, text in found}
    above = re.search(r'role="alert"><p>(.*?)</p>', page.text, re.DOTALL)
    return {**errors, **({"": unescape(above[1])} if above else {})}


def filled(page: httpx.Response, **changes: Any) -> dict[str, Any]:
    """The fields of a page's form with some changed; "__" in a name stands for "."."""
    return {**fields_of(page), **{name.replace("__", "."): v for name, v in changes.items()}}


def new_word() -> str:
    """A word that no other test uses."""
    return f"word{next(_numbers)}"
