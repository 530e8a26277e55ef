"""Requests get the same answers over a socket and in memory."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import httpx
import numpy as np
import pytest
from safetensors.numpy import save

from tests.app.conftest import SETTINGS
from tests.app.harness import App, running_app
from tests.service.requests import PERMUTE, SAFETENSORS

X = np.arange(6, dtype=np.float32).reshape(2, 3)
LARGE = np.arange(1 << 20, dtype=np.float32).reshape(1 << 10, 1 << 10)
TYPE = {"content-type": SAFETENSORS}
JSON = {
    "inputs": {"x": {"dtype": "I8", "shape": [3, 1], "data": [2, 1, 0]}},
    "params": {"dims": [1, 0]},
}
# A connection is kept open or not as the last bytes of a refused body came before the answer or not.
CHANGING = {"connection", "server-timing", "date", "server"}

Send = Callable[[httpx.Client], httpx.Response]


def permute(array: Any, dims: str = "1,0", **headers: str) -> Send:
    content = save({"x": array})
    return lambda http: http.post(
        f"{PERMUTE}?dims={dims}", content=content, headers={**TYPE, **headers}
    )


def get(path: str, **headers: str) -> Send:
    return lambda http: http.get(path, headers=headers)


def post(path: str, **given: Any) -> Send:
    return lambda http: http.post(path, **given)


REQUESTS: dict[str, Send] = {
    "a call": permute(X),
    "a large call": permute(LARGE),
    "an empty tensor": permute(np.zeros((0, 3), np.int8)),
    "npy": permute(X, accept="application/x-npy"),
    "json": permute(X, accept="application/json"),
    "json to json": post(PERMUTE, json=JSON, headers={"accept": "application/json"}),
    "json to tensors": post(PERMUTE, json=JSON),
    "a form": post(PERMUTE, files={"x": ("x.npy", b"no array")}, data={"dims": "1,0"}),
    "wrong dims": permute(X, "0,0"),
    "no dims": post(PERMUTE, content=save({"x": X}), headers=TYPE),
    "an unknown op": post("/v1/kernels/nothing", content=save({"x": X}), headers=TYPE),
    "an unknown type": post(PERMUTE, content=b"ab", headers={"content-type": "text/plain"}),
    "no type": post(PERMUTE, content=b"ab"),
    "a cut body": post(PERMUTE, content=save({"x": X})[:-1], headers=TYPE),
    "a long body": post(f"{PERMUTE}?dims=1,0", content=save({"x": X}) + b"!", headers=TYPE),
    "malformed json": post(PERMUTE, content=b"{", headers={"content-type": "application/json"}),
    "too large": post(PERMUTE, content=bytes(33 << 20), headers=TYPE),
    "an encoding": post(PERMUTE, content=b"", headers={"content-encoding": "gzip"}),
    "a deadline of nothing": permute(X, **{"x-warpcall-timeout": "0"}),
    "ops": get("/v1/kernels"),
    "one op": get("/v1/kernels/permute"),
    "the description": get("/openapi.json"),
    "nothing there": get("/v1/nothing"),
    "nothing there, for a browser": get("/nothing", accept="text/html"),
    "a wrong method": lambda http: http.delete(PERMUTE),
    "head": lambda http: http.head("/healthz"),
    "a page": get("/jobs", accept="text/html"),
    "a style": get("/static/style.css"),
    "another host": get("/v1/kernels", host="evil.example"),
    "another origin": post(PERMUTE, json=JSON, headers={"sec-fetch-site": "cross-site"}),
    "no such tensor": get("/v1/tensors/none"),
    "no such job": get("/v1/jobs/none"),
    "the Open Inference Protocol": get("/v2"),
    "ready": get("/readyz"),
}


@pytest.fixture(scope="module")
def app() -> Iterator[App]:
    with running_app(**SETTINGS) as running:
        yield running


@pytest.mark.parametrize("name", REQUESTS)
def test_the_answer_is_the_same(name: str, app: App, http: httpx.Client) -> None:
    with app.client() as in_memory:
        http.headers["x-request-id"] = in_memory.headers["x-request-id"] = "same"
        expected, found = (seen(REQUESTS[name](client)) for client in (http, in_memory))

    assert found == expected


def seen(answer: httpx.Response) -> tuple[int, dict[str, str], bytes]:
    """Status, headers and body, without what differs between any two answers."""
    headers = {k: v for k, v in answer.headers.items() if k not in CHANGING}
    return answer.status_code, headers, answer.content
