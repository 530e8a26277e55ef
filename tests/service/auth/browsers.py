"""Browsers in tests: clients that log in with a form and keep the cookie."""

from __future__ import annotations

import functools
import itertools
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass

import httpx

from tests import waiting
from tests.servers import Server
from tests.service.databases import Database
from warpcall_service.identity import Role

until = functools.partial(waiting.until, timeout_s=30)

# With these, a test chooses the address and the scheme that the server sees.
BEHIND_A_PROXY = {
    "WARPCALL_TRUSTED_PROXIES": "127.0.0.0/8",
    "WARPCALL_INSECURE": "true",  # keys are made while it runs
    "WARPCALL_ARENA_BYTES": "16MiB",
}
HTML = "text/html,application/xhtml+xml"
_numbers = itertools.count(1)


class Browsers(ABC):
    """Browsers and users of a server, or of an application in this process.

    Attributes:
        database: that it has.
    """

    database: Database

    @abstractmethod
    def client(self, address: str, scheme: str) -> httpx.Client:
        """A client whose requests come from this address."""

    def user(self, role: Role = "call", lifetime_s: int | None = None) -> tuple[str, str]:
        """A new user's name and key, which the server knows already."""
        name = f"user{next(_numbers)}"
        return name, self.key(name, role, lifetime_s)

    def key(self, name: str, role: Role = "call", lifetime_s: int | None = None) -> str:
        key = self.database.key(name, role, lifetime_s)
        with self.browser(authorization=f"Bearer {key}") as http:
            until(lambda: http.get("/v1/me").status_code == 200)
        return key

    def browser(
        self, given: Mapping[str, str] | None = None, *, https: bool = False, **more: str
    ) -> httpx.Client:
        """A browser at an address of its own, so that the failures of others do not count."""
        number = next(_numbers)
        address = f"10.{number >> 16}.{number >> 8 & 255}.{number & 255}"
        made = self.client(address, "https" if https else "http")
        made.headers.update({**(given or {}), **more})
        return made

    @contextmanager
    def logged_in(self, key: str, *, https: bool = False) -> Iterator[httpx.Client]:
        with self.browser(https=https) as http:
            keep(http, log_in(http, key))
            yield http


@dataclass(frozen=True)
class Site(Browsers):
    """A server whose callers come through a proxy, and its database."""

    server: Server
    database: Database

    def client(self, address: str, scheme: str) -> httpx.Client:
        headers = {"x-forwarded-for": address, "x-forwarded-proto": scheme}
        return httpx.Client(base_url=self.server.url, headers=headers, timeout=30)


def log_in(http: httpx.Client, key: str, **more: str) -> httpx.Response:
    return http.post("/login", data={"key": key, **more})


def cookie_in(answer: httpx.Response) -> tuple[str, str]:
    """The name and value of the cookie that an answer sets."""
    assert answer.status_code == 303, answer.text
    name, _, value = answer.headers["set-cookie"].partition(";")[0].partition("=")
    return name, value


def keep(http: httpx.Client, answer: httpx.Response) -> None:
    """Send the cookie of an answer from now on. httpx itself would not send one with Secure."""
    name, value = cookie_in(answer)
    http.headers["cookie"] = f"{name}={value}"
    http.cookies.clear()


def who(http: httpx.Client) -> str:
    """The user whom the server takes this browser for; empty if it has no session."""
    answer = http.get("/v1/me")
    return answer.json()["name"] if answer.status_code == 200 else ""
