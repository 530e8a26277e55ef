"""The demo calls the server as its pages say, and checks each answer."""

from __future__ import annotations

import pytest

from demo.demo import run_curl
from demo.server import Server


@pytest.mark.slow  # continuous integration also runs `make demo`, which does the same for each op
@pytest.mark.parametrize("op", ["permute", "isin"])
def test_the_curl_command_of_an_op_gets_the_right_answer(server: Server, op: str) -> None:
    assert run_curl(op, server.url) is None
