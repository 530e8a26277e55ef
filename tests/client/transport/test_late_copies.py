"""Large arrays that must be copied before they can be sent: the server is asked first."""

from __future__ import annotations

import json
import tracemalloc
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import pytest
import safetensors.numpy
import torch

from tests.client.flavours import Flavour
from tests.client.scripted import ScriptedServer, Visit
from warpcall import errors
from warpcall.errors import TooLarge

STRIDED = np.arange(20 << 20, dtype=np.uint8).reshape(4096, -1).T


def echo(visit: Visit) -> None:
    if visit.headers.get("expect") == "100-continue":
        assert not visit.early
        visit.sock.sendall(b"HTTP/1.1 100 Continue\r\n\r\n")
    x = safetensors.numpy.load(visit.body())["x"]
    visit.answer(200, safetensors.numpy.save({"out": x}))


def echo_without_a_word(visit: Visit) -> None:
    x = safetensors.numpy.load(visit.body())["x"]
    visit.answer(200, safetensors.numpy.save({"out": x}))


def refuse(visit: Visit) -> None:
    problem = TooLarge("at most 1 MiB").to_json()
    head = {"Content-Type": errors.MEDIA_TYPE, "Connection": "close"}
    visit.answer(413, json.dumps(problem).encode(), head)


@contextmanager
def peak() -> Iterator[list[int]]:
    """The largest number of bytes that were allocated meanwhile."""
    found: list[int] = []
    tracemalloc.start()
    try:
        yield found
        found.append(tracemalloc.get_traced_memory()[1])
    finally:
        tracemalloc.stop()


def send(gpu: Any) -> Any:
    return gpu.run("permute", x=STRIDED, dims=(0, 1))


def test_a_body_that_is_refused_is_not_copied(direct: Flavour) -> None:
    with ScriptedServer(refuse) as server, peak() as found, pytest.raises(TooLarge):
        direct.ask(server, send, retries=0)

    assert found[0] < STRIDED.nbytes // 2


@pytest.mark.parametrize("script", [echo, echo_without_a_word])
def test_a_body_that_is_wanted_arrives_as_it_looks(script: Any, direct: Flavour) -> None:
    with ScriptedServer(script) as server:
        (out,) = direct.ask(server, send)

        assert len(server.targets) == 1
    np.testing.assert_array_equal(out, STRIDED)


def test_behind_a_proxy_it_is_sent_without_a_question(flavour: Flavour) -> None:
    with ScriptedServer(echo) as server:
        (out,) = flavour.ask(server, send)

    np.testing.assert_array_equal(out, STRIDED)


def test_tensors_of_torch_are_copied_late_too(direct: Flavour) -> None:
    strided = torch.from_numpy(STRIDED.T).t()

    with ScriptedServer(echo) as server:
        (out,) = direct.ask(server, lambda gpu: gpu.run("permute", x=strided, dims=(0, 1)))

    assert torch.equal(out, strided)
