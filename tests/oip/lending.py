"""Segments of shared memory, and requests that lend and use them."""

from __future__ import annotations

import contextlib
import secrets
from collections.abc import Callable, Iterator
from multiprocessing.shared_memory import SharedMemory
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.oip.requests import X, body, tensor

REGIONS = "/v2/systemsharedmemory"
Make = Callable[[int], str]  # makes a segment of so many bytes, and says its key


@pytest.fixture
def segment() -> Iterator[Make]:
    """Makes segments of so many bytes; gone at the end."""
    made: list[SharedMemory] = []

    def make(nbytes: int) -> str:
        made.append(SharedMemory(f"warpcall-{secrets.token_hex(6)}", create=True, size=nbytes))
        return made[-1].name

    yield make
    for one in made:
        one.close()
        with contextlib.suppress(FileNotFoundError):  # a test has removed it
            one.unlink()


def path_of(key: str) -> Path:
    return Path("/dev/shm") / key


def register(
    http: httpx.Client, name: str, key: Any, nbytes: Any, offset: Any = 0
) -> httpx.Response:
    asked = {"key": key, "offset": offset, "byte_size": nbytes}
    return http.post(f"{REGIONS}/region/{name}/register", json=asked)


def listed(http: httpx.Client) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = http.get(f"{REGIONS}/status").json()
    return found


def region_parameters(region: str, nbytes: int = X.nbytes, offset: int = 0) -> dict[str, Any]:
    """The parameters of a tensor that lies there."""
    return {
        "shared_memory_region": region,
        "shared_memory_byte_size": nbytes,
        "shared_memory_offset": offset,
    }


def both(region: str, offset: int = 32) -> dict[str, Any]:
    """A transposition from the beginning of a region to this byte of it."""
    return body(
        inputs=[tensor("x", X, parameters=region_parameters(region))],
        outputs=[{"name": "out", "parameters": region_parameters(region, X.nbytes, offset)}],
    )
