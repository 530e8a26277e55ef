"""`warpcall-server warm`, and a server that warms its lanes, where there is no GPU to warm."""

from __future__ import annotations

import os

import pytest

from demo.server import COMMAND
from tests import forks
from tests.servers import running_server


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ((), "there is no GPU here; name the kind to compile for: --gpu sm_90"),
        (("--gpu", "h200"), "--gpu must be present, or sm_80 or newer, got 'h200'"),
        (("--gpu", "sm_70"), "--gpu must be present, or sm_80 or newer, got 'sm_70'"),
    ],
)
def test_it_says_what_it_cannot_compile_for(arguments: tuple[str, ...], said: str) -> None:
    done = forks.run([*COMMAND, "warm", *arguments], {**os.environ, "CUDA_VISIBLE_DEVICES": ""})

    assert done.returncode == 2
    assert done.stderr == f"warpcall-server: {said}\n"


def test_a_cpu_lane_has_nothing_to_compile() -> None:
    settings = {"WARPCALL_WARM": "true", "WARPCALL_DEVICES": "cpu", "WARPCALL_ARENA_BYTES": "64MiB"}
    with running_server(settings) as server:
        assert server.get("/readyz")[0] == 200
