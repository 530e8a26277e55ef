"""Fixtures of the client's tests."""

import socket

import pytest

from tests.client.flavours import direct, flavour

__all__ = ["direct", "flavour", "unused_port"]


@pytest.fixture
def unused_port() -> int:
    """A port on which nobody listens."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port: int = listener.getsockname()[1]
        return port
