"""Tensors in shared memory: whose they are, what a client may do to them, and what it may not."""

from __future__ import annotations

import contextlib
import os
import secrets
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from multiprocessing.shared_memory import SharedMemory
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest

from demo.server import Server, running_server
from tests.oip.requests import INFER, X, body, outputs_of, refused, tensor
from tests.service.databases import Database

REGIONS = "/v2/systemsharedmemory"
NOBODY = 65534
Make = Callable[[int], str]


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


@pytest.fixture(autouse=True)
def nothing_is_registered(http: httpx.Client) -> Iterator[None]:
    yield
    assert http.post(f"{REGIONS}/unregister").status_code == 200
    assert outputs_of(http.post(INFER, json=body())) == {"out": [0, 3, 1, 4, 2, 5]}


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


def lent(region: str, nbytes: int = X.nbytes, offset: int = 0) -> dict[str, Any]:
    """The parameters of a tensor that lies there."""
    return {
        "shared_memory_region": region,
        "shared_memory_byte_size": nbytes,
        "shared_memory_offset": offset,
    }


def both(region: str, offset: int = 32) -> dict[str, Any]:
    """A transposition from the beginning of a region to this byte of it."""
    return body(
        inputs=[tensor("x", X, parameters=lent(region))],
        outputs=[{"name": "out", "parameters": lent(region, X.nbytes, offset)}],
    )


def test_tensors_come_from_shared_memory_and_go_there(http: httpx.Client, segment: Make) -> None:
    key = segment(4096)
    path_of(key).write_bytes(bytes(8) + X.tobytes() + bytes(4096 - 32))
    assert register(http, "a", f"/{key}", 1024, 8).json() == {}

    answer = http.post(INFER, json=both("a")).json()

    assert answer["outputs"] == [
        {"name": "out", "datatype": "FP32", "shape": [3, 2], "parameters": lent("a", 24, 32)}
    ]
    expected = bytes(8) + X.tobytes() + bytes(8) + X.T.tobytes() + bytes(4096 - 64)
    assert path_of(key).read_bytes() == expected


def test_a_large_tensor_takes_many_reads_and_comes_whole(http: httpx.Client, segment: Make) -> None:
    x = np.random.default_rng(0).random((1500, 1000), np.float32)
    key = segment(2 * x.nbytes)
    with path_of(key).open("r+b") as file:
        file.write(x.tobytes())
    register(http, "a", key, 2 * x.nbytes)
    given = tensor("x", x, parameters=lent("a", x.nbytes))
    wanted = {"name": "out", "parameters": lent("a", x.nbytes, x.nbytes)}

    assert http.post(INFER, json=body(inputs=[given], outputs=[wanted])).status_code == 200

    assert path_of(key).read_bytes()[x.nbytes :] == x.T.tobytes()


def test_a_list_may_lie_in_shared_memory(http: httpx.Client, segment: Make) -> None:
    key = segment(16)
    path_of(key).write_bytes(np.array([1, 0]).tobytes())
    register(http, "a", key, 16)
    dims = tensor("dims", np.zeros(2), "INT64", parameters=lent("a", 16))

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
    parameters = {name: v for name, v in {**lent("a"), **changes}.items() if v is not None}
    request = both("a")
    request[kind][0]["parameters"] = parameters

    assert says in refused(http.post(INFER, json=request), 422)


def test_a_segment_that_is_cut_removed_or_replaced_is_an_error_and_no_crash(
    server: Server, http: httpx.Client, segment: Make
) -> None:
    key = segment(8192)
    path = path_of(key)
    register(http, "a", key, 8192)
    reads = body(inputs=[tensor("x", X, parameters=lent("a", 24, 4096))])
    writes = body(outputs=[{"name": "out", "parameters": lent("a", 24, 4096)}])

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
    assert server.process.poll() is None


def test_a_segment_that_changes_its_length_all_the_time_harms_nobody(
    server: Server, http: httpx.Client, segment: Make
) -> None:
    x = np.zeros((512, 1024), np.float32)
    key = segment(2 * x.nbytes)
    register(http, "a", key, 2 * x.nbytes)
    given = tensor("x", x, parameters=lent("a", x.nbytes))
    wanted = {"name": "out", "parameters": lent("a", x.nbytes, x.nbytes)}
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
    assert server.process.poll() is None


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
    server: Server, http: httpx.Client, segment: Make
) -> None:
    descriptors = Path(f"/proc/{server.process.pid}/fd")
    key = segment(64)

    for number in range(10):
        register(http, f"{number}", key, 64)
        http.post(INFER, json=both(f"{number}"))

    held = [str(one.readlink()) for one in descriptors.iterdir() if one.is_symlink()]
    assert not [name for name in held if key in name]


@pytest.mark.parametrize("header", ["X-Forwarded-For", "Forwarded", "Via", "X-Real-IP", "Origin"])
def test_what_comes_for_somebody_else_has_no_shared_memory(
    header: str, http: httpx.Client, segment: Make
) -> None:
    http.headers[header] = "127.0.0.1"

    answers = [
        register(http, "a", segment(64), 64),
        http.get(f"{REGIONS}/status"),
        http.get(f"{REGIONS}/region/a/status"),
        http.post(f"{REGIONS}/unregister"),
        http.post(f"{REGIONS}/region/a/unregister"),
        http.post(INFER, json=both("a")),
    ]

    for answer in answers:
        assert "on the server's own machine" in refused(answer, 403)
    del http.headers[header]


def test_it_works_over_the_unix_socket_too(http: httpx.Client, uds: str, segment: Make) -> None:
    register(http, "a", segment(64), 64)

    with httpx.Client(transport=httpx.HTTPTransport(uds=uds), base_url="http://x") as local:
        assert [region["name"] for region in listed(local)] == ["a"], "the same account's"
        assert local.post(INFER, json=both("a")).status_code == 200
        assert register(local, "b", segment(64), 64).status_code == 200


def test_it_can_be_switched_off(segment: Make) -> None:
    with (
        running_server({"WARPCALL_USER_MAX_SHARED_BYTES": "0"}) as server,
        httpx.Client(base_url=server.url) as http,
    ):
        assert "system_shared_memory" not in http.get("/v2").json()["extensions"]
        assert "takes no tensors" in refused(register(http, "a", segment(64), 64), 403)
        assert "takes no tensors" in refused(http.post(INFER, json=both("a")), 403)


def test_users_do_not_see_each_others_regions(sqlite: Database, segment: Make) -> None:
    keys = {name: sqlite.key(name) for name in ("alice", "bob")}
    key = segment(64)
    with contextlib.ExitStack() as stack:
        server = stack.enter_context(running_server(sqlite.settings))
        alice, bob = (
            stack.enter_context(
                httpx.Client(base_url=server.url, headers={"authorization": f"Bearer {k}"})
            )
            for k in keys.values()
        )
        assert register(alice, "a", key, 64).status_code == 200

        assert listed(bob) == []
        refused(bob.get(f"{REGIONS}/region/a/status"), 404)
        refused(bob.post(INFER, json=both("a")), 404)
        bob.post(f"{REGIONS}/region/a/unregister")
        bob.post(f"{REGIONS}/unregister")
        assert [region["name"] for region in listed(alice)] == ["a"]
        assert register(bob, "a", key, 32).status_code == 200, "names are each one's own"
        assert listed(alice)[0]["byte_size"] == 64
        assert alice.post(INFER, json=both("a")).status_code == 200


@contextlib.contextmanager
def account(uid: int) -> Iterator[None]:
    """Sockets and files made meanwhile are this account's."""
    os.seteuid(uid)
    try:
        yield
    finally:
        os.seteuid(0)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can be another account")
def test_a_program_may_lend_only_what_its_account_could_open(
    server: Server, http: httpx.Client, segment: Make
) -> None:
    roots, shared = segment(64), segment(64)
    path_of(shared).chmod(0o666)
    mine = f"warpcall-{secrets.token_hex(6)}"
    with account(NOBODY):
        path_of(mine).touch(0o600)
        os.truncate(path_of(mine), 64)
        nobody = httpx.Client(base_url=server.url)
        assert nobody.get("/v2/health/live").status_code == 200  # connected
    try:
        assert "belongs to another account" in refused(register(nobody, "a", roots, 64), 403)
        assert register(nobody, "mine", mine, 64).status_code == 200
        assert register(nobody, "shared", shared, 64).status_code == 200
        assert nobody.post(INFER, json=both("mine")).status_code == 200

        assert register(http, "a", roots, 64).status_code == 200
        assert [region["name"] for region in listed(http)] == ["a"], "each account has its own"
        refused(nobody.post(INFER, json=both("a")), 404)
        refused(http.post(INFER, json=both("mine")), 404)
    finally:
        nobody.close()
        path_of(mine).unlink()
