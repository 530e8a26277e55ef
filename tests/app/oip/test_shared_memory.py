"""Tensors in shared memory: how they come and go, and what a client may do to it meanwhile."""

from __future__ import annotations

import os
import secrets
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest

from tests.oip.lending import REGIONS, Make, both, listed, path_of, region_parameters, register
from tests.oip.requests import INFER, X, body, outputs_of, refused, tensor


@pytest.fixture(autouse=True)
def nothing_is_registered(http: httpx.Client) -> Iterator[None]:
    yield
    assert http.post(f"{REGIONS}/unregister").status_code == 200
    assert outputs_of(http.post(INFER, json=body())) == {"out": [0, 3, 1, 4, 2, 5]}


def test_tensors_come_from_shared_memory_and_go_there(http: httpx.Client, segment: Make) -> None:
    key = segment(4096)
    path_of(key).write_bytes(bytes(8) + X.tobytes() + bytes(4096 - 32))
    assert register(http, "a", f"/{key}", 1024, 8).json() == {}

    answer = http.post(INFER, json=both("a")).json()

    assert answer["outputs"] == [
        {
            "name": "out",
            "datatype": "FP32",
            "shape": [3, 2],
            "parameters": region_parameters("a", 24, 32),
        }
    ]
    expected = bytes(8) + X.tobytes() + bytes(8) + X.T.tobytes() + bytes(4096 - 64)
    assert path_of(key).read_bytes() == expected


def test_a_large_tensor_takes_many_reads_and_comes_whole(http: httpx.Client, segment: Make) -> None:
    x = np.random.default_rng(0).random((1500, 1000), np.float32)
    key = segment(2 * x.nbytes)
    with path_of(key).open("r+b") as file:
        file.write(x.tobytes())
    register(http, "a", key, 2 * x.nbytes)
    given = tensor("x", x, parameters=region_parameters("a", x.nbytes))
    wanted = {"name": "out", "parameters": region_parameters("a", x.nbytes, x.nbytes)}

    assert http.post(INFER, json=body(inputs=[given], outputs=[wanted])).status_code == 200

    assert path_of(key).read_bytes()[x.nbytes :] == x.T.tobytes()


def test_a_list_may_lie_in_shared_memory(http: httpx.Client, segment: Make) -> None:
    key = segment(16)
    path_of(key).write_bytes(np.array([1, 0]).tobytes())
    register(http, "a", key, 16)
    dims = tensor("dims", np.zeros(2), "INT64", parameters=region_parameters("a", 16))

    answer = http.post(INFER, json={"inputs": [tensor("x", X), dims]})

    assert outputs_of(answer) == {"out": X.T.flatten().tolist()}


def test_regions_are_listed_and_taken_back(http: httpx.Client, segment: Make) -> None:
    key = segment(64)
    for name in ("a", "b", "c d"):
        assert register(http, name, key, 32, 8).status_code == 200
    entry = {"name": "c d", "key": key, "offset": 8, "byte_size": 32}

    assert [region["name"] for region in listed(http)] == ["a", "b", "c d"]
    assert http.get(f"{REGIONS}/region/c d/status").json() == [entry]
    assert "registered already" in refused(register(http, "a", key, 32), 422)

    for _ in range(2):  # again is harmless
        assert http.post(f"{REGIONS}/region/a/unregister").status_code == 200
    assert [region["name"] for region in listed(http)] == ["b", "c d"]
    assert "no shared memory region 'a'" in refused(http.get(f"{REGIONS}/region/a/status"), 404)
    assert "no shared memory region 'a'" in refused(http.post(INFER, json=both("a")), 404)
    assert http.post(f"{REGIONS}/unregister").status_code == 200
    assert listed(http) == []


@pytest.mark.parametrize(
    "key",
    [
        "",
        "/",
        ".",
        "..",
        "/..",
        "../shm/x",
        "/../etc/passwd",
        "//x",
        "a/b",
        "/a/../b",
        ".hidden",
        "a\0b",
        "a\n",
        "é",
        "%2e%2e",
        "x" * 201,
        7,
        None,
        ["x"],
    ],
)
def test_a_key_that_is_no_name_of_a_segment_is_refused(key: Any, http: httpx.Client) -> None:
    assert "key" in refused(register(http, "a", key, 1), 422)


def test_only_segments_that_exist_are_taken(http: httpx.Client, tmp_path: Path) -> None:
    name = f"warpcall-{secrets.token_hex(6)}"
    secret = tmp_path / "secret"
    secret.write_bytes(b"x" * 64)

    assert "No such file" in refused(register(http, "a", name, 1), 422)
    makes: dict[str, Callable[[], None]] = {
        "a link": lambda: path_of(name).symlink_to(secret),
        "a pipe": lambda: os.mkfifo(path_of(name)),
        "a folder": lambda: path_of(name).mkdir(),
    }
    for make in makes.values():
        make()
        try:
            refused(register(http, "a", name, 1), 422)
        finally:
            remove = path_of(name).rmdir if path_of(name).is_dir() else path_of(name).unlink
            remove()


@pytest.mark.parametrize(
    ("asked", "says"),
    [
        ({"byte_size": 65}, "has 64 bytes"),
        ({"byte_size": 60, "offset": 5}, "has 64 bytes"),
        ({"byte_size": 0}, "byte_size must be"),
        ({"byte_size": -1}, "byte_size must be"),
        ({"byte_size": 2**63}, "byte_size must be"),
        ({"byte_size": "8"}, "byte_size must be"),
        ({"byte_size": True}, "byte_size must be"),
        ({}, "byte_size must be"),
        ({"byte_size": 8, "offset": -1}, "offset must be"),
        ({"byte_size": 8, "offset": 1.0}, "offset must be"),
        ({"byte_size": 8, "size": 8}, "got 'size'"),
    ],
)
def test_a_region_beyond_its_segment_is_refused(
    asked: dict[str, Any], says: str, http: httpx.Client, segment: Make
) -> None:
    answer = http.post(f"{REGIONS}/region/a/register", json={"key": segment(64), **asked})

    assert says in refused(answer, 422)


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"shared_memory_byte_size": 65}, "has 64 bytes"),
        ({"shared_memory_offset": 41}, "has 64 bytes"),
        ({"shared_memory_offset": 2**62}, "has 64 bytes"),
        ({"shared_memory_offset": -1}, "an integer from 0"),
        ({"shared_memory_byte_size": 23}, "has 24 bytes"),
        ({"shared_memory_byte_size": None}, "must have shared_memory_region"),
        ({"shared_memory_region": None}, "must have shared_memory_region"),
        ({"shared_memory_region": 7}, "must have shared_memory_region"),
    ],
)
@pytest.mark.parametrize("kind", ["inputs", "outputs"])
def test_a_tensor_beyond_its_region_is_refused(
    kind: str, changes: dict[str, Any], says: str, http: httpx.Client, segment: Make
) -> None:
    register(http, "a", segment(64), 64)
    parameters = {
        name: v for name, v in {**region_parameters("a"), **changes}.items() if v is not None
    }
    request = both("a")
    request[kind][0]["parameters"] = parameters

    assert says in refused(http.post(INFER, json=request), 422)


def test_a_segment_that_is_cut_removed_or_replaced_is_an_error_and_no_crash(
    http: httpx.Client, segment: Make
) -> None:
    key = segment(8192)
    path = path_of(key)
    register(http, "a", key, 8192)
    reads = body(inputs=[tensor("x", X, parameters=region_parameters("a", 24, 4096))])
    writes = body(outputs=[{"name": "out", "parameters": region_parameters("a", 24, 4096)}])

    os.truncate(path, 4100)
    for request in (reads, writes):
        assert "now has 4100 bytes" in refused(http.post(INFER, json=request), 422)
    assert path.stat().st_size == 4100, "writing must not make it longer"

    path.unlink()
    for request in (reads, writes):
        assert "No such file" in refused(http.post(INFER, json=request), 422)

    path.write_bytes(bytes(8192))
    for request in (reads, writes):
        assert "is another one" in refused(http.post(INFER, json=request), 422)
    assert register(http, "a", key, 8192).status_code == 200, "the old one is forgotten"
    assert http.post(INFER, json=writes).status_code == 200


def test_a_segment_that_changes_its_length_all_the_time_harms_nobody(
    http: httpx.Client, segment: Make
) -> None:
    x = np.zeros((512, 1024), np.float32)
    key = segment(2 * x.nbytes)
    register(http, "a", key, 2 * x.nbytes)
    given = tensor("x", x, parameters=region_parameters("a", x.nbytes))
    wanted = {"name": "out", "parameters": region_parameters("a", x.nbytes, x.nbytes)}
    stop = threading.Event()

    def change() -> None:
        while not stop.is_set():
            os.truncate(path_of(key), 100)
            os.truncate(path_of(key), 2 * x.nbytes)

    with ThreadPoolExecutor(1) as pool:
        changing = pool.submit(change)
        try:
            answers = [
                http.post(INFER, json=body(inputs=[given], outputs=[wanted])) for _ in range(60)
            ]
        finally:
            stop.set()
        changing.result()

    assert {answer.status_code for answer in answers} <= {200, 422}


def test_what_one_owner_may_register_is_bounded(http: httpx.Client, segment: Make) -> None:
    small, large = segment(4096), segment(40 << 20)
    assert register(http, "large", large, 40 << 20).status_code == 200
    assert "67108864 bytes together" in refused(register(http, "too", large, 30 << 20), 413)
    for number in range(63):
        assert register(http, f"{number}", small, 1).status_code == 200

    assert "at most 64 shared memory regions" in refused(register(http, "too", small, 1), 413)

    path_of(large).unlink()  # its region counts no more
    path_of(small).with_name(large).write_bytes(bytes(64))
    assert register(http, "again", small, 1).status_code == 200


def test_a_region_that_is_left_behind_holds_no_descriptor(
    http: httpx.Client, segment: Make
) -> None:
    key = segment(64)

    def held() -> int:
        links = (one for one in Path("/proc/self/fd").iterdir() if one.is_symlink())
        return sum(key in str(one.readlink()) for one in links)

    of_the_test = held()
    for number in range(10):
        register(http, f"{number}", key, 64)
        http.post(INFER, json=both(f"{number}"))

    assert held() == of_the_test
