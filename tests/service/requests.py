"""Requests as tests make them: right ones to change, and wrong ones that httpx would not send."""

from __future__ import annotations

import io
import json
import secrets
import socket
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import httpx
import numpy as np
import numpy.typing as npt

from demo.server import Server

SAFETENSORS = "application/vnd.safetensors"
PERMUTE = "/v1/kernels/permute"


@dataclass(frozen=True)
class Raw:
    """An answer as it came over a bare socket."""

    status: int
    headers: dict[str, str]
    body: bytes

    def json(self) -> Any:
        return json.loads(self.body)


def well(http: httpx.Client) -> httpx.Response:
    """A call that must work whatever came before it."""
    x = {"dtype": "I8", "shape": [3, 1], "data": [2, 1, 0]}
    body = {"inputs": {"x": x}, "params": {"dims": [1, 0]}}
    answer = http.post(PERMUTE, json=body, headers={"accept": "application/json"})
    if answer.status_code == 200:
        data = answer.json()["outputs"]["out"]["data"]
        return httpx.Response(200, json={"outputs": {"out": {"data": data[0]}}})
    return answer


def problem_of(answer: httpx.Response | Raw, status: int, code: str, field: str | None) -> str:
    """Check an answer to be this problem; returns its detail."""
    members = answer.json()
    assert (answer.status if isinstance(answer, Raw) else answer.status_code) == status, members
    assert answer.headers["content-type"] == "application/problem+json"
    assert members["type"] == f"urn:warpcall:problem:{code}", members
    assert members["status"] == status
    assert members.get("field") == field, members
    assert members["request_id"] == answer.headers["x-request-id"]
    assert "Traceback" not in json.dumps(members)
    detail: str = members["detail"]
    return detail


def metrics(http: httpx.Client) -> dict[str, float]:
    """Every sample of /metrics by its name with labels."""
    lines = http.get("/metrics").text.splitlines()
    pairs = (line.rsplit(" ", 1) for line in lines if not line.startswith("#"))
    return {name: float(value) for name, value in pairs}


def logged(server: Server) -> list[dict[str, Any]]:
    """What the log says so far, and of every request that was answered."""
    return [json.loads(line) for line in log_of(server).splitlines() if line.startswith("{")]


def log_of(server: Server) -> str:
    """The log with the lines of all requests that were answered so far.

    Lines are written in their order, so all are there once that of a last request is.
    """
    name = f"read-{secrets.token_hex(8)}"
    url, headers = f"{server.url}/readyz", {"x-request-id": name}
    httpx.get(url, headers=headers, timeout=30, verify=False)  # a test's server has no other name
    deadline = time.monotonic() + 30
    while f'"{name}"' not in (text := server.log.read_text()) or not text.endswith("\n"):
        assert time.monotonic() < deadline, "the log has no line of a request that was answered"
        time.sleep(0.01)
    return text


def header(entries: Mapping[str, Any], nbytes: int | None = None) -> bytes:
    """A safetensors header of any content; `nbytes` is the length that it claims."""
    text = json.dumps(entries).encode()
    return (len(text) if nbytes is None else nbytes).to_bytes(8, "little") + text


def tensor(dtype: str, shape: list[Any], begin: Any, end: Any) -> dict[str, Any]:
    return {"dtype": dtype, "shape": shape, "data_offsets": [begin, end]}


def npy(array: npt.NDArray[Any], **how: Any) -> bytes:
    file = io.BytesIO()
    np.save(file, array, **how)
    return file.getvalue()


def send_raw(
    server: Server,
    head: str,
    body: bytes | Iterable[bytes] = b"",
    *,
    finish: bool = False,
    timeout_s: float = 10.0,
) -> Raw:
    """Send a head and a body as they are, and read one answer to its end.

    Args:
        finish: close our side after the body.
    """
    with socket.create_connection(("127.0.0.1", server.port), timeout=timeout_s) as sock:
        sock.sendall(head.replace("\n", "\r\n").encode() + b"\r\n\r\n")
        for part in (body,) if isinstance(body, bytes) else body:
            sock.sendall(part)
        if finish:
            sock.shutdown(socket.SHUT_WR)
        data = b""
        while b"\r\n\r\n" not in data:
            data += _some(sock)
        top, _, rest = data.partition(b"\r\n\r\n")
        lines = top.decode().split("\r\n")
        fields = (line.partition(": ") for line in lines[1:])
        headers = {name.lower(): value for name, _, value in fields}
        nbytes = int(headers["content-length"])
        while len(rest) < nbytes:
            rest += _some(sock)
    return Raw(int(lines[0].split()[1]), headers, rest[:nbytes])  # another answer may follow


def _some(sock: socket.socket) -> bytes:
    data = sock.recv(65536)
    assert data, "the server left without an answer"
    return data
