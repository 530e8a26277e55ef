"""Runs a test with every client: sync and async, direct and through a proxy."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest

from tests.client.scripted import ScriptedServer
from warpcall import AsyncClient, Client


@dataclass(frozen=True)
class Flavour:
    """A client, and a way to reach a scripted server."""

    asynchronous: bool
    proxied: bool
    monkeypatch: pytest.MonkeyPatch

    def ask(
        self, server: ScriptedServer, *questions: Callable[[Any], Any], **options: Any
    ) -> list[Any]:
        """The results of functions such as `lambda gpu: gpu.health()`, called with one client."""
        url = server.url
        if self.proxied:  # the scripted server plays the proxy before a host that is not there
            self.monkeypatch.setenv("HTTP_PROXY", url)
            self.monkeypatch.setenv("http_proxy", url)
            self.monkeypatch.setenv("NO_PROXY", "")
            self.monkeypatch.setenv("no_proxy", "")
            url = "http://gpu-box:8000"
        return self.ask_url(url, *questions, **options)

    def ask_url(
        self, url: str | list[str], *questions: Callable[[Any], Any], **options: Any
    ) -> list[Any]:
        """The same for a server at `url`, or for several."""
        options = {"timeout_s": 20.0, **options}
        if not self.asynchronous:
            with Client(url, **options) as gpu:
                return [question(gpu) for question in questions]

        async def run() -> list[Any]:
            async with AsyncClient(url, **options) as gpu:
                return [await question(gpu) for question in questions]

        return asyncio.run(run())


ALL = ["direct-sync", "direct-async", "proxied-sync", "proxied-async"]


@pytest.fixture(params=ALL)
def flavour(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Flavour:
    """Each client and way, one after the other."""
    return flavour_named(request.param, monkeypatch)


@pytest.fixture(params=ALL[:2])
def direct(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Flavour:
    """The clients with sockets of their own."""
    return flavour_named(request.param, monkeypatch)


def flavour_named(name: str, monkeypatch: pytest.MonkeyPatch) -> Flavour:
    return Flavour(name.endswith("-async"), name.startswith("proxied"), monkeypatch)
