"""Points the suite at servers that run already, by environment variables.

WARPCALL_TEST_URL is the address of servers that need no key, for the tests that use the fixture
`server`. WARPCALL_TEST_KEYS has `user=key` pairs for servers that need keys, for those that use the
fixture `lab`. Tests that start servers of their own are skipped, and so are those that look at
the server's process. `make cluster-test` sets the variables.
"""

from __future__ import annotations

import os

import pytest

from demo.server import Server

URL = os.environ.get("WARPCALL_TEST_URL", "")
KEYS = dict(pair.split("=") for pair in os.environ.get("WARPCALL_TEST_KEYS", "").split(",") if pair)


class Elsewhere(Server):
    """A server of which only the address is known."""

    def __init__(self, url: str) -> None:
        object.__setattr__(self, "url", url)

    def __getattr__(self, name: str) -> object:
        pytest.skip(f"the {name} of a server that runs elsewhere is not known")


def skip_others(items: list[pytest.Item]) -> None:
    """Skip tests that do not use the servers of the variables."""
    wanted = "lab" if KEYS else "server"
    for item in items:
        if URL and wanted not in getattr(item, "fixturenames", ()):
            item.add_marker(pytest.mark.skip(reason=f"it does not use the running {wanted}"))
