"""Clients that send or read slowly: every request and every response ends in limited time."""

from __future__ import annotations

import functools
import gzip
import json
import os
import select
import socket
import time
from collections.abc import Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack

import httpx
import numpy as np
import psutil
import pytest
import safetensors.numpy

from tests import waiting
from tests.oip.requests import INFER, binary, packed
from tests.servers import Server, running_server
from tests.service.requests import PERMUTE, SAFETENSORS, header, metrics, tensor
from warpcall import wire

pytestmark = pytest.mark.slow

MIB = 1 << 20
PATIENCE_S = 60.0
until = functools.partial(waiting.until, timeout_s=PATIENCE_S)
REQUESTS = 800  # their responses are more than the sockets hold while nobody reads
NBYTES = (
    3 * MIB
)  # twice what is sent before the server ends an upload, and all of them fit into the arena at once
JSON_NBYTES = 512 << 10
RATE = MIB
PIECE_BYTES = 32 << 10  # each PAUSE_S: enough progress, and far less than RATE
PAUSE_S = 0.1
TIMEOUT_S = 3
SETTINGS = {
    "WARPCALL_ARENA_BYTES": "128MiB",
    "WARPCALL_BODY_TIMEOUT_S": str(TIMEOUT_S),
    "WARPCALL_MIN_RATE_BYTES_PER_S": str(RATE),
}
WAITING = 'warpcall_lane_arena_waiting{lane="cpu"}'
USED = 'warpcall_lane_arena_used{lane="cpu"}'
JSON = "application/json"
X = header({"x": tensor("U8", [NBYTES], 0, NBYTES)})
DATA = os.urandom(NBYTES)  # random, so that compression does not shorten it
INFER_BODY, INFER_LENGTH = packed(
    {
        "inputs": [binary("x", np.frombuffer(DATA, np.uint8), "UINT8")],
        "parameters": {"dims": "0", "binary_data_output": True},
    },
    DATA,
)
FORM = (
    b'--b\r\nContent-Disposition: form-data; name="x"; filename="x.safetensors"\r\n\r\n'
    + X
    + DATA
    + b"\r\n--b--\r\n"
)
STEP = {"name": "y", "op": "permute", "inputs": {"x": "x"}, "params": {"dims": [0]}}
PROGRAM = json.dumps({"steps": [STEP], "outputs": {"out": "y"}})
IN_PROGRAM = header(
    {
        "__metadata__": {wire.PARAMS_KEY: json.dumps({"program": json.loads(PROGRAM)})},
        "x": tensor("U8", [NBYTES], 0, NBYTES),
    }
)
Upload = tuple[str, str, Mapping[str, str], bytes]
UPLOADS: dict[str, Upload] = {
    "safetensors": ("POST", f"{PERMUTE}?dims=0", {"Content-Type": SAFETENSORS}, X + DATA),
    "a form": ("POST", PERMUTE, {"Content-Type": "multipart/form-data; boundary=b"}, FORM),
    "JSON": ("POST", PERMUTE, {"Content-Type": JSON}, b" " * JSON_NBYTES),
    "a stored tensor": ("PUT", "/v1/tensors/x", {"Content-Type": SAFETENSORS}, X + DATA),
    "a program": ("POST", "/v1/programs", {"Content-Type": SAFETENSORS}, IN_PROGRAM + DATA),
    "an inference request": ("POST", INFER, INFER_LENGTH, INFER_BODY),
    "an inference request in JSON": ("POST", INFER, {}, b" " * JSON_NBYTES),
    "a compressed one": (
        "POST",
        INFER,
        {**INFER_LENGTH, "Content-Encoding": "gzip"},
        gzip.compress(INFER_BODY, 1),
    ),
}


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    with running_server(SETTINGS) as running:
        yield running


@pytest.fixture
def http(server: Server) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=server.url, timeout=30) as client:
        yield client


@pytest.fixture(autouse=True)
def _all_comes_back(http: httpx.Client) -> Iterator[None]:
    yield
    until(lambda: metrics(http)[USED] == 0, "memory did not come back")


def start(method: str, path: str, headers: Mapping[str, str]) -> bytes:
    lines = [
        f"{method} {path} HTTP/1.1",
        "Host: localhost",
        *(f"{k}: {v}" for k, v in headers.items()),
    ]
    return "\r\n".join([*lines, "", ""]).encode()


def trickle(sock: socket.socket, body: bytes, *, chunked: bool) -> str:
    """Send a body slowly until there is a response, and return the response."""
    at = 0
    nbytes = min(PIECE_BYTES, len(body) // 64)  # short bodies must last for longer than TIMEOUT_S
    deadline = time.monotonic() + PATIENCE_S
    while not select.select([sock], [], [], PAUSE_S)[0]:
        assert time.monotonic() < deadline, "there is no answer"
        assert at < len(body), "the whole body was taken"
        piece = body[at : at + nbytes]
        at += len(piece)
        sock.sendall(b"%x\r\n%b\r\n" % (len(piece), piece) if chunked else piece)
    data = b""
    while b"min_rate" not in data and (more := sock.recv(65536)):
        data += more
    return data.decode()


def upload_slowly(server: Server, name: str, *, chunked: bool) -> str:
    """Send one of UPLOADS slowly, and return the response."""
    method, path, headers, body = UPLOADS[name]
    length = {"Transfer-Encoding": "chunked"} if chunked else {"Content-Length": str(len(body))}
    with socket.create_connection(("127.0.0.1", server.port), timeout=PATIENCE_S) as sock:
        sock.sendall(start(method, path, {**headers, **length}))
        return trickle(sock, body, chunked=chunked)


# A form must have a Content-Length.
SLOW_UPLOADS = [
    (n, chunked) for n in UPLOADS for chunked in (False, True) if not (chunked and n == "a form")
]


@pytest.fixture(scope="module")
def slow_uploads(server: Server) -> Iterator[dict[tuple[str, bool], Future[str]]]:
    """The responses to all slow uploads, which are sent side by side: each waits for some 5 s."""
    with ThreadPoolExecutor(len(SLOW_UPLOADS)) as pool:
        yield {
            (name, chunked): pool.submit(upload_slowly, server, name, chunked=chunked)
            for name, chunked in SLOW_UPLOADS
        }


@pytest.mark.parametrize(
    ("name", "chunked"), SLOW_UPLOADS, ids=lambda v: {False: "sized", True: "chunked"}.get(v, v)
)
def test_an_upload_below_the_least_average_rate_is_ended(
    name: str, chunked: bool, slow_uploads: dict[tuple[str, bool], Future[str]]
) -> None:
    answer = slow_uploads[name, chunked].result()

    assert answer.startswith("HTTP/1.1 504 "), answer
    assert f"the body must move {RATE} bytes/s on average beyond its first {TIMEOUT_S} s" in answer
    assert "min_rate_bytes_per_s" in answer


def test_an_answer_read_below_the_least_average_rate_is_ended(
    server: Server, http: httpx.Client
) -> None:
    body = safetensors.numpy.save({"x": np.zeros(20 * MIB, np.uint8)})
    head = start(
        "POST", f"{PERMUTE}?dims=0", {"Content-Type": SAFETENSORS, "Content-Length": str(len(body))}
    )

    with socket.socket() as sock:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 64 << 10)
        sock.settimeout(PATIENCE_S)
        sock.connect(("127.0.0.1", server.port))
        sock.sendall(head + body)
        received = 0
        try:
            while data := sock.recv(PIECE_BYTES):
                received += len(data)
                time.sleep(PAUSE_S)
        except ConnectionResetError:
            pass

    assert 0 < received < len(body)


def test_time_in_which_the_client_waits_for_memory_does_not_count(
    server: Server, http: httpx.Client
) -> None:
    large = header({"x": tensor("U8", [60 * MIB], 0, 60 * MIB)})
    head = start(
        "POST",
        f"{PERMUTE}?dims=0",
        {"Content-Type": SAFETENSORS, "Content-Length": str(len(large) + 60 * MIB)},
    )
    body = safetensors.numpy.save({"x": np.zeros(40 * MIB, np.uint8)})

    url, headers = f"{server.url}{PERMUTE}?dims=0", {"content-type": SAFETENSORS}
    with ThreadPoolExecutor() as pool:
        with socket.create_connection(("127.0.0.1", server.port)) as sock:
            sock.sendall(head + large)
            until(lambda: metrics(http)[USED] >= 60 * MIB, "the first call did not get its memory")
            answer = pool.submit(httpx.post, url, content=body, headers=headers, timeout=PATIENCE_S)
            for _ in range(50):  # for longer than TIMEOUT_S, and much faster than RATE
                sock.sendall(b"\0" * MIB)
                time.sleep(0.1)
            assert metrics(http)[WAITING] == 1

        assert answer.result().status_code == 200


@pytest.fixture(scope="module")
def operations(server: Server) -> list[tuple[str, str]]:
    """Method and path of every operation of the OpenAPI description, and of the pages."""
    paths = httpx.get(f"{server.url}/openapi.json").json()["paths"]
    described = [(method.upper(), path) for path, methods in paths.items() for method in methods]
    pages = [("GET", path) for path in ("/", "/docs", "/openapi.json", "/nothing")]
    return [
        (method, path.replace("{name}", "permute").replace("{id}", "none"))
        for method, path in described + pages
    ]


def test_no_route_waits_without_end_for_a_body(
    server: Server, operations: list[tuple[str, str]]
) -> None:
    socks = {}
    with ExitStack() as stack:
        for method, path in operations:
            sock = socket.create_connection(("127.0.0.1", server.port), timeout=PATIENCE_S)
            socks[f"{method} {path}"] = stack.enter_context(sock)
            sock.sendall(
                start(method, path, {"Content-Type": JSON, "Content-Length": "100000"}) + b"{"
            )
        waiting = dict(socks)
        deadline = time.monotonic() + PATIENCE_S
        while waiting and time.monotonic() < deadline:
            time.sleep(0.2)
            for name, sock in list(waiting.items()):
                if has_ended(sock):
                    del waiting[name]

    assert len(socks) > 40
    assert list(waiting) == []


def has_ended(sock: socket.socket) -> bool:
    """Whether the server has closed the connection, after one more byte of the body."""
    try:
        sock.send(b" ")
        while select.select([sock], [], [], 0)[0]:
            if not sock.recv(65536):
                return True
    except (ConnectionResetError, BrokenPipeError):
        return True
    return False


@pytest.fixture
def answering(http: httpx.Client, operations: list[tuple[str, str]]) -> list[tuple[str, str]]:
    """Operations that answer in ways of their own, and of those that fail one for each folder and status.

    A problem is written by the same function for all routes.
    """
    found: dict[str, tuple[str, str]] = {}
    for method, path in operations:
        status = http.request(method, path, headers={"Content-Length": "0"}).status_code
        kind = "/".join(path.split("/")[:3]) + f" {status}" if status >= 400 else f"{method} {path}"
        found.setdefault(kind, (method, path))
    return [*found.values()]


def test_no_route_waits_without_end_for_its_answer_to_be_read(
    server: Server, answering: list[tuple[str, str]]
) -> None:
    waiting: dict[int, str] = {}
    with ExitStack() as stack:
        for method, path in answering:
            sock = stack.enter_context(socket.socket())
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 2048)
            sock.setsockopt(
                socket.IPPROTO_TCP, socket.TCP_MAXSEG, 536
            )  # which limits the other side too
            sock.connect(("127.0.0.1", server.port))
            sock.setblocking(False)
            sock.send(start(method, path, {"Content-Length": "0"}) * REQUESTS)
            waiting[sock.getsockname()[1]] = f"{method} {path}"
        deadline = (
            time.monotonic() + 3 * PATIENCE_S
        )  # enough to serve all of them on a busy machine
        while waiting and time.monotonic() < deadline:
            time.sleep(1)  # to look takes long where the machine has many connections
            held = connections(server)
            waiting = {port: name for port, name in waiting.items() if port in held}

    assert len(answering) > 30
    assert list(waiting.values()) == []


def connections(server: Server) -> set[int]:
    """The clients' ports of the connections that the server has not closed."""
    process = psutil.Process(server.process.pid)
    return {found.raddr.port for found in process.net_connections("tcp4") if found.raddr}
