"""Fixtures of the client's tests."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

from tests.client.certificate import certificate, client, tls
from tests.client.flavours import direct, flavour

if TYPE_CHECKING:
    from tests.client.command import Command

__all__ = ["certificate", "client", "direct", "flavour", "tls", "unused_port", "warpcall"]


@pytest.fixture
def unused_port() -> Iterator[int]:
    """A port on which no server listens, and none of another test can."""
    with socket.socket() as bound:
        bound.bind(("127.0.0.1", 0))
        port: int = bound.getsockname()[1]
        yield port


@pytest.fixture
def warpcall(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Iterator[Command]:
    """The command, with a server that has ops."""
    from tests.client.command import Command  # imports torch: too early for a conftest.py
    from tests.client.scripted_ops import OpsServer

    with OpsServer() as server:
        yield Command(server, monkeypatch, capsys)
