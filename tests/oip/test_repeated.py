"""Inference requests that repeat earlier ones of their connection: the short way answers as the ordinary one."""

from __future__ import annotations

import json
import random
import re
import socket
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest

from tests.app.harness import running_app
from tests.app.oip.conftest import SETTINGS
from tests.oip.lending import REGIONS, Make, both, listed, path_of, region_parameters, register
from tests.oip.requests import INFER, LENGTH, X, binary, tensor
from tests.oip.served import Served, served
from tests.service.databases import Database
from tests.service.http.test_quick import ORDINARY, Caller, lines, refuses_connections
from tests.waiting import until
from warpcall_service.http import quick

Y = X + 1
ALL_BINARY = {"dims": "1,0", "binary_data_output": True}
BACKWARD = {
    "inputs": [
        binary("grad_output", np.ones((1, 2, 4), np.float32)),
        binary("x", np.ones((1, 2, 4), np.float32)),
        binary("weight", np.ones((1, 3), np.float32)),
    ],
    "parameters": {"bias": True, "binary_data_output": True},
}
BACKWARD_DATA = np.random.default_rng(0).random(19, np.float32).tobytes()
MASK = {
    "inputs": [
        binary("mask", np.zeros(3, np.bool_), "BOOL"),
        binary("x", np.zeros((1, 3), np.float32)),
    ],
    "parameters": {"binary_data_output": True},
}
MASK_DATA = b"\0\1\0" + np.ones(3, np.float32).tobytes()
PLAIN = {"inputs": [binary("x", X)], "parameters": ALL_BINARY}
AS_TENSOR = {
    "inputs": [binary("x", X), binary("dims", np.zeros(2), "INT64")],
    "parameters": {"binary_data_output": True},
}
AS_TENSOR_DATA = X.tobytes() + np.array([1, 0]).tobytes()


@pytest.fixture(scope="module")
def server() -> Iterator[Served]:
    with running_app(**SETTINGS) as app, served(app) as running:
        yield running


@pytest.fixture
def http(server: Served) -> Iterator[httpx.Client]:
    """A client whose requests do not come through the socket."""
    with server.app.client() as client:
        yield client


@pytest.fixture(autouse=True)
def nothing_is_left(http: httpx.Client) -> Iterator[None]:
    yield
    until(lambda: is_clean(http))


def is_clean(http: httpx.Client) -> bool:
    """Whether no call has memory or a place in the limits, and no region is registered."""
    requests = http.get("/v1/me").json()["in_flight"]["requests"]
    used = re.search(r'warpcall_lane_arena_used{lane="cpu"} (\S+)', http.get("/metrics").text)
    return requests == 1 and used is not None and float(used[1]) == 0 and not listed(http)


def text_of(request: Any) -> bytes:
    """The JSON of a request, as tritonclient writes it."""
    return json.dumps(request, separators=(",", ":")).encode()


def infer(
    text: bytes,
    data: bytes = b"",
    headers: str = "",
    path: str = INFER,
    *,
    has_length: bool = True,
) -> bytes:
    """A whole request."""
    length = f"{LENGTH}: {len(text)}\r\n" if has_length else ""
    head = f"POST {path} HTTP/1.1\r\nHost: localhost\r\n{length}Content-Length: {len(text + data)}"
    return f"{head}\r\n{headers}\r\n".encode() + text + data


def answer(caller: Caller, request: bytes) -> tuple[bytes, bytes]:
    caller.sock.sendall(request)
    return caller.receive()


def check_both_ways(
    caller: Caller, text: bytes, data: bytes = b"", path: str = INFER, *, has_length: bool = True
) -> bytes:
    """Check that the answer does not depend on the way; returns its body."""
    short = answer(caller, infer(text, data, path=path, has_length=has_length))
    ordinary = answer(caller, infer(text, data, ORDINARY, path, has_length=has_length))

    assert lines(short[0]) == lines(ordinary[0])
    assert [line.partition(b":")[0] for line in short[0].split(b"\r\n")] == [
        line.partition(b":")[0] for line in ordinary[0].split(b"\r\n")
    ]
    assert short[1] == ordinary[1]
    return short[1]


def repeated(server: Served, text: bytes, data: bytes, path: str) -> tuple[bytes, int]:
    """Repeat a request in both ways; returns the body, and how many took the ordinary way."""
    caller = Caller(server)
    answer(caller, infer(text, data, path=path))
    before = server.ordinary
    body = check_both_ways(caller, text, data, path)
    return body, server.ordinary - before


def id_of(body: bytes) -> str:
    """The `id` in the JSON of a response."""
    found: str = json.JSONDecoder().raw_decode(body.decode("latin-1"))[0]["id"]
    return found


@pytest.mark.parametrize(
    ("text", "data", "path"),
    [
        (text_of(PLAIN), X.tobytes(), INFER),
        (text_of(PLAIN), X.tobytes(), "/v2/models/permute/versions/1/infer"),
        (text_of({"id": "", **PLAIN}), X.tobytes(), INFER),
        (text_of({"id": "7a6f67c2-fb26-43aa-9989-bdbb0e9d7e70", **PLAIN}), X.tobytes(), INFER),
        (text_of({"id": " !#$%&'()*+,-./:;<=>?@[]^_`{|}~", **PLAIN}), X.tobytes(), INFER),
        (json.dumps({"id": "a", **PLAIN}, indent=2).encode(), X.tobytes(), INFER),
        (b'{\t"id" :\r\n"a" ,' + text_of(PLAIN)[1:], X.tobytes(), INFER),
        (text_of({"id": None, **PLAIN}), X.tobytes(), INFER),
        (text_of({"parameters": ALL_BINARY, "inputs": [binary("x", X)]}), X.tobytes(), INFER),
        (
            text_of(
                {
                    "id": "7",
                    "model_name": "permute",
                    "inputs": [binary("x", X)],
                    "outputs": [{"name": "out", "parameters": {"binary_data": True}}],
                    "parameters": {"dims": "1,0"},
                }
            ),
            X.tobytes(),
            INFER,
        ),
        (text_of(BACKWARD), BACKWARD_DATA, "/v2/models/conv-backward/infer"),
        (
            text_of({**BACKWARD, "outputs": [{"name": "grad_bias"}, {"name": "grad_x"}]}),
            BACKWARD_DATA,
            "/v2/models/conv-backward/infer",
        ),
    ],
)
def test_the_answer_is_that_of_the_ordinary_way(
    text: bytes, data: bytes, path: str, server: Served
) -> None:
    body, ordinary = repeated(server, text, data, path)

    assert b'"outputs"' in body
    assert ordinary == 1


@pytest.mark.parametrize(
    ("text", "data", "path"),
    [
        (text_of({"id": 'a"b', **PLAIN}), X.tobytes(), INFER),
        (text_of({"id": "a\\b", **PLAIN}), X.tobytes(), INFER),
        (text_of({"id": "a\nb", **PLAIN}), X.tobytes(), INFER),
        (b'{"id":"\x7f",' + text_of(PLAIN)[1:], X.tobytes(), INFER),
        (text_of({"id": "ä", **PLAIN}), X.tobytes(), INFER),
        ('{"id":"ä",'.encode() + text_of(PLAIN)[1:], X.tobytes(), INFER),
        (text_of({"id": "\ud800", **PLAIN}), X.tobytes(), INFER),
        (text_of({"id": "a" * 5000, **PLAIN}), X.tobytes(), INFER),
        (text_of({**PLAIN, "id": "a"}), X.tobytes(), INFER),
        (b'{"\\u0069d":"a",' + text_of(PLAIN)[1:], X.tobytes(), INFER),
        (b" " + text_of(PLAIN), X.tobytes(), INFER),
        (text_of({"inputs": [tensor("x", X)], "parameters": ALL_BINARY}), b"", INFER),
        (text_of({**PLAIN, "parameters": {"dims": "1,0"}}), X.tobytes(), INFER),
        (text_of({**PLAIN, "parameters": {**ALL_BINARY, "timeout": 9**8}}), X.tobytes(), INFER),
        (text_of(AS_TENSOR), AS_TENSOR_DATA, INFER),
        (text_of(MASK), MASK_DATA, "/v2/models/masked-softmax/infer"),
    ],
)
def test_what_cannot_take_the_short_way_is_answered_as_well(
    text: bytes, data: bytes, path: str, server: Served
) -> None:
    body, ordinary = repeated(server, text, data, path)

    assert b'"outputs"' in body
    assert ordinary == 2


@pytest.mark.parametrize(
    ("text", "says"),
    [
        (b'{"id":"a","id":"a",' + text_of(PLAIN)[1:], b"given twice"),
        (b'{"id":"a","\\u0069d":"a",' + text_of(PLAIN)[1:], b"given twice"),
        (b'{"id":"a\n",' + text_of(PLAIN)[1:], b"must be JSON"),
        (text_of({"id": 7, **PLAIN}), b"id must be a string"),
        (text_of({**PLAIN, "parameters": {**ALL_BINARY, "classification": 3}}), b"no parameter"),
        (text_of({"id": "a" * (1 << 20), **PLAIN}), b"at most 524288 bytes"),
    ],
)
def test_what_is_refused_is_refused_again(text: bytes, says: bytes, server: Served) -> None:
    caller = Caller(server)
    answer(caller, infer(text_of({"id": "a", **PLAIN}), X.tobytes()))

    for _ in range(2):
        before = server.ordinary
        head, body = answer(caller, infer(text, X.tobytes()))
        assert server.ordinary == before + 1
        assert head.startswith((b"HTTP/1.1 422", b"HTTP/1.1 413"))
        assert says in body
        if b"connection: close" in head:  # a body of 1 MB is not read to its end
            caller = Caller(server)
            answer(caller, infer(text_of({"id": "a", **PLAIN}), X.tobytes()))


def test_each_call_gets_its_own_values_and_its_own_id(server: Served) -> None:
    caller, before = Caller(server), server.ordinary

    for n in range(30):
        x = X + n
        _, body = answer(caller, infer(text_of({"id": f"{n:04}", **PLAIN}), x.tobytes()))
        assert id_of(body) == f"{n:04}"
        assert body.endswith(x.T.tobytes())

    assert server.ordinary == before + 1


def test_many_requests_in_any_order_are_answered_as_in_the_ordinary_way(server: Served) -> None:
    drawn, caller, before = random.Random(1), Caller(server), server.ordinary
    ids = ["", "1", "2", "27", "x1", 'a"', "ü", "{", "id", '"id":"', "\\", None]
    all_dims, kinds = ["1,0", "1,0", "1,0", "1,1"], [True, True, True, False]

    for _ in range(300):
        request: dict[str, Any] = {} if drawn.random() < 0.2 else {"id": drawn.choice(ids)}
        x = drawn.choice([X, X.T])
        request["inputs"] = [binary("x", x)]
        parameters = {"dims": drawn.choice(all_dims), "binary_data_output": drawn.choice(kinds)}
        request["parameters"] = parameters
        if drawn.random() < 0.1:
            request = dict(drawn.sample(list(request.items()), len(request)))
        separators = (", ", ": ") if drawn.random() < 0.1 else (",", ":")
        text = json.dumps(request, separators=separators).encode()
        check_both_ways(caller, text, x.tobytes())

    assert server.ordinary < before + 570


@pytest.mark.parametrize("form", ["both", "inputs", "outputs"])
def test_tensors_in_shared_memory_take_the_short_way_too(
    form: str, server: Served, http: httpx.Client, segment: Make
) -> None:
    key = segment(64)
    register(http, "a", key, 64)
    request, data = {"id": "5", **both("a")}, b""
    if form == "inputs":
        request = {**request, "parameters": ALL_BINARY}
        del request["outputs"]
    elif form == "outputs":
        request["inputs"], data = [binary("x", X)], X.tobytes()
    text, has_length = text_of(request), bool(data)
    caller = Caller(server)
    answer(caller, infer(text, data, has_length=has_length))
    before = server.ordinary

    for n in range(3):
        x = X if data else X + n
        path_of(key).write_bytes(x.tobytes() + bytes(40))
        body = check_both_ways(caller, text, data, has_length=has_length)
        out = body[-24:] if form == "inputs" else path_of(key).read_bytes()[32:56]
        assert out == x.T.tobytes()

    assert server.ordinary == before + 3
    assert http.post(f"{REGIONS}/unregister").status_code == 200


def test_regions_are_looked_up_for_each_call(
    server: Served, http: httpx.Client, segment: Make
) -> None:
    first, second = segment(64), segment(64)
    register(http, "a", first, 64)
    text = text_of({"id": "5", **both("a")})
    caller = Caller(server)
    answer(caller, infer(text, has_length=False))

    def says() -> bytes:
        return check_both_ways(caller, text, has_length=False)

    before = server.ordinary
    http.post(f"{REGIONS}/region/a/unregister")
    assert b"registered no shared memory region" in says()
    path_of(second).write_bytes(Y.tobytes() + bytes(40))
    register(http, "a", second, 64)
    assert b'"id":"5"' in says()
    assert path_of(second).read_bytes()[32:56] == Y.T.tobytes()
    assert path_of(first).read_bytes()[32:56] == np.zeros_like(X).tobytes()
    assert server.ordinary == before + 3

    http.post(f"{REGIONS}/region/a/unregister")
    register(http, "a", second, 48)
    assert b"has 48 bytes" in says()
    http.post(f"{REGIONS}/region/a/unregister")
    register(http, "a", second, 64)
    path_of(second).write_bytes(bytes(30))
    assert b"too few for the region" in says()
    path_of(second).unlink()
    assert b"cannot be opened" in says()
    path_of(second).write_bytes(bytes(64))
    assert b"is another one" in says()
    path_of(second).unlink()
    assert http.post(f"{REGIONS}/unregister").status_code == 200


def test_an_output_that_cannot_be_written_is_answered_with_the_reason(
    server: Served, http: httpx.Client, segment: Make
) -> None:
    key, short = segment(64), segment(64)
    register(http, "a", key, 64)
    register(http, "b", short, 64)
    request = both("a")
    request["outputs"] = [{"name": "out", "parameters": region_parameters("b")}]
    text, caller = text_of(request), Caller(server)
    answer(caller, infer(text, has_length=False))
    before = server.ordinary

    path_of(short).write_bytes(bytes(8))
    body = check_both_ways(caller, text, has_length=False)

    assert b"too few for the region" in body
    assert server.ordinary == before + 1
    assert http.post(f"{REGIONS}/unregister").status_code == 200


def test_much_shared_memory_is_copied_in_the_ordinary_way(
    server: Served, http: httpx.Client, segment: Make
) -> None:
    x = np.random.default_rng(0).random((300, 500), np.float32)
    key = segment(2 * x.nbytes)
    path_of(key).write_bytes(x.tobytes() + bytes(x.nbytes))
    register(http, "a", key, 2 * x.nbytes)
    given = tensor("x", x, parameters=region_parameters("a", x.nbytes))
    wanted = {"name": "out", "parameters": region_parameters("a", x.nbytes, x.nbytes)}
    text = text_of({"inputs": [given], "outputs": [wanted], "parameters": {"dims": "1,0"}})
    caller, before = Caller(server), server.ordinary

    for _ in range(2):
        answer(caller, infer(text, has_length=False))

    assert path_of(key).read_bytes()[x.nbytes :] == x.T.tobytes()
    assert server.ordinary == before + 2
    assert http.post(f"{REGIONS}/unregister").status_code == 200


def test_every_call_is_counted(server: Served, http: httpx.Client) -> None:
    def counted() -> tuple[int, int, int]:
        (stats,) = http.get("/v2/models/permute/stats").json()["model_stats"]
        inference = stats["inference_stats"]
        metric = r'warpcall_requests_total\{op="permute",status="200"\} (\d+)'
        found = re.search(metric, http.get("/metrics").text)
        return (
            inference["success"]["count"],
            inference["queue"]["count"],
            int(found[1] if found else 0),
        )

    caller, ids = Caller(server), set()
    answer(caller, infer(text_of(PLAIN), X.tobytes()))
    before = counted()

    for _ in range(20):
        head, _ = answer(caller, infer(text_of(PLAIN), X.tobytes()))
        found = re.search(rb"x-request-id: (\S+)", head)
        ids.add(found[1].decode() if found else "")

    assert counted() == tuple(n + 20 for n in before)
    assert len(ids) == 20


def test_keys_and_limits_hold_for_repeated_calls(tmp_path: Path) -> None:
    database = Database("sqlite", {"WARPCALL_DATA_DIR": str(tmp_path)})
    key = database.key("ann")
    request = infer(text_of(PLAIN), X.tobytes(), f"Authorization: Bearer {key}\r\n")
    limited = {**SETTINGS, "data_dir": tmp_path, "user_requests_per_s": 4}
    with running_app(**limited) as app, served(app) as other:
        caller, calls = Caller(other), 0
        while (head_and_body := answer(caller, request))[0].startswith(b"HTTP/1.1 200"):
            calls += 1
        ordinary = other.ordinary
        database.revoke(key)
        until(lambda: b"was revoked" in answer(caller, request)[1])

    assert head_and_body[0].startswith(b"HTTP/1.1 429")
    assert b"ann has used up 4 requests a second" in head_and_body[1]
    assert calls >= 4
    # The first call and the one that was refused; perhaps one more, if the server has read its keys anew.
    assert 2 <= ordinary < calls


def test_a_large_body_is_received_in_parts(server: Served) -> None:
    x = np.random.default_rng(2).random((256, 1024), np.float32)  # 1 MiB
    text = text_of({"id": "1", "inputs": [binary("x", x)], "parameters": ALL_BINARY})
    caller = Caller(server)
    answer(caller, infer(text, x.tobytes()))
    before = server.ordinary

    body = check_both_ways(caller, text, x.tobytes())

    assert body.endswith(x.T.tobytes())
    assert server.ordinary == before + 1


def test_a_client_that_stops_early_gets_a_problem(server: Served, http: httpx.Client) -> None:
    def failed() -> int:
        (stats,) = http.get("/v2/models/permute/stats").json()["model_stats"]
        count: int = stats["inference_stats"]["fail"]["count"]
        return count

    text, caller = text_of(PLAIN), Caller(server)
    answer(caller, infer(text, X.tobytes()))
    before = failed()

    caller.sock.sendall(infer(text, X.tobytes())[:-5])
    caller.sock.shutdown(socket.SHUT_WR)
    head, body = caller.receive()

    assert head.startswith(b"HTTP/1.1 422")
    nbytes = len(text) + X.nbytes
    says = f"the body must have {nbytes} bytes, the client stopped after {nbytes - 5}"
    assert json.loads(body) == {"error": says}
    assert failed() == before + 1


# The JSON after the head, as httpx sends it


def heads(caller: Caller, text: bytes) -> tuple[bytes, bytes]:
    """A request in two parts, of a kind that the connection knows."""
    whole = infer(text, X.tobytes())
    answer(caller, whole)
    end = whole.index(b"\r\n\r\n") + 4
    return whole[:end], whole[end:]


@pytest.mark.parametrize("more", [0, 1, 50])
def test_json_may_come_after_the_head(more: int, server: Served) -> None:
    caller, text = Caller(server), text_of({"id": "1", **PLAIN})
    head, body = heads(caller, text)
    before = server.ordinary

    for _ in range(3):
        caller.sock.sendall(head + body[:more])
        threading.Event().wait(0.005)  # the server reads the head
        caller.sock.sendall(body[more:])
        _, answered = caller.receive()
        assert answered.endswith(X.T.tobytes())
        assert id_of(answered) == "1"

    assert server.ordinary == before


def test_a_connection_whose_first_requests_came_in_two_parts_takes_the_short_way_later(
    server: Served,
) -> None:
    caller, whole = Caller(server), infer(text_of(PLAIN), X.tobytes())
    end, before = whole.index(b"\r\n\r\n") + 4, server.ordinary

    for _ in range(4):
        caller.sock.sendall(whole[:end])
        threading.Event().wait(0.01)
        caller.sock.sendall(whole[end:])
        assert caller.receive()[1].endswith(X.T.tobytes())

    assert server.ordinary <= before + 2


def test_json_that_does_not_come_soon_is_read_in_the_ordinary_way(server: Served) -> None:
    caller = Caller(server)
    head, body = heads(caller, text_of(PLAIN))
    before = server.ordinary

    caller.sock.sendall(head)
    threading.Event().wait(0.3)
    caller.sock.sendall(body)

    assert caller.receive()[1].endswith(X.T.tobytes())
    assert server.ordinary == before + 1


def test_json_that_never_comes_is_given_up(server: Served) -> None:
    caller = Caller(server)
    head, _ = heads(caller, text_of(PLAIN))

    caller.sock.sendall(head)
    answered, body = caller.receive()

    assert answered.startswith(b"HTTP/1.1 504")
    assert b"a body must move" in body


def test_a_client_that_leaves_after_the_head_leaves_nothing_behind(server: Served) -> None:
    stopped, left = Caller(server), Caller(server)
    for caller in (stopped, left):
        head, _ = heads(caller, text_of(PLAIN))
        caller.sock.sendall(head)

    stopped.sock.shutdown(socket.SHUT_WR)
    left.sock.close()

    head, body = stopped.receive()
    assert head.startswith(b"HTTP/1.1 422")
    assert b"the client stopped after 0" in body


def test_a_server_that_stops_waits_for_json_whose_head_it_has(
    server: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(quick, "JSON_WAIT_S", 30)
    with served(server.app) as other:
        caller = Caller(other)
        head, body = heads(caller, text_of(PLAIN))
        caller.sock.sendall(head)
        threading.Event().wait(0.01)
        other.stop()
        until(lambda: refuses_connections(other))
        caller.sock.sendall(body)
        answered, out = caller.receive()

    assert b"connection: close" in answered
    assert out.endswith(X.T.tobytes())


def test_a_connection_whose_head_has_come_is_not_idle(
    server: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(quick, "JSON_WAIT_S", 30)
    with served(server.app, keep_alive_s=1) as other:
        caller = Caller(other)
        head, body = heads(caller, text_of(PLAIN))
        caller.sock.sendall(head)
        threading.Event().wait(1.3)
        caller.sock.sendall(body)

        assert caller.receive()[1].endswith(X.T.tobytes())
