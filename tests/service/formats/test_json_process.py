"""Large JSON is parsed and written in a process of its own, whose end costs one request at most."""

from __future__ import annotations

import functools
import json
import signal
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import httpx
import numpy as np
import psutil
import pytest

from tests import waiting
from tests.servers import Server, running_server
from tests.service.requests import PERMUTE, header, problem_of, tensor, well
from tests.suspended import suspend, suspended

PATIENCE_S = 60.0
until = functools.partial(waiting.until, timeout_s=PATIENCE_S)
MODULE = "warpcall_service.formats.json_process"
JSON = {"content-type": "application/json"}
COUNT = 20_000
SETTINGS = {"WARPCALL_ARENA_BYTES": "64MiB"}


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    with running_server(SETTINGS) as running:
        yield running


@pytest.fixture
def threads() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(8) as pool:
        yield pool


def json_processes(server: Server) -> list[psutil.Process]:
    """Those of this server."""
    children = psutil.Process(server.process.pid).children()
    return [child for child in children if MODULE in _command(child)]


def _command(process: psutil.Process) -> list[str]:
    try:
        return process.cmdline()
    except psutil.Error:  # it has ended meanwhile
        return []


def the_process(http: httpx.Client, server: Server) -> psutil.Process:
    """The one process, started if there is none."""
    assert large(http).status_code == 200
    (found,) = json_processes(server)
    return found


def large(http: httpx.Client, **headers: str) -> httpx.Response:
    """A call with too much JSON for the event loop; its answer is safetensors."""
    x = {"dtype": "F32", "shape": [COUNT], "data": [0] * COUNT}
    body = {"inputs": {"x": x}, "params": {"dims": [0]}}
    return http.post(PERMUTE, json=body, headers=headers)


def large_answer(http: httpx.Client) -> httpx.Response:
    """A call whose answer is too much JSON for the event loop."""
    content = header({"x": tensor("U8", [COUNT], 0, COUNT)}) + b"\1" * COUNT
    headers = {"content-type": "application/vnd.safetensors", "accept": "application/json"}
    return http.post(f"{PERMUTE}?dims=0", content=content, headers=headers)


def large_infer(http: httpx.Client) -> httpx.Response:
    """An inference request with as much."""
    x = {"name": "x", "datatype": "FP32", "shape": [COUNT], "data": [0] * COUNT}
    outputs = [{"name": "out", "parameters": {"binary_data": True}}]
    body = {"parameters": {"dims": "0"}, "inputs": [x], "outputs": outputs}
    return http.post("/v2/models/permute/infer", json=body)


@pytest.mark.parametrize("send", [large, large_answer, large_infer])
def test_others_are_served_while_large_json_is_read_or_written(
    send: Callable[[httpx.Client], httpx.Response],
    server: Server,
    http: httpx.Client,
    threads: ThreadPoolExecutor,
) -> None:
    process = the_process(http, server)

    with suspended(process):
        waiting = [threads.submit(send, http) for _ in range(6)]  # more than run at a time
        until(lambda: in_flight(http) > len(waiting))
        served = [well(http).status_code for _ in range(3)]
        held = [future.done() for future in waiting]

    assert served == [200] * 3
    assert held == [False] * 6
    assert [future.result(PATIENCE_S).status_code for future in waiting] == [200] * 6


def in_flight(http: httpx.Client) -> int:
    """Requests, this one included."""
    count: int = http.get("/v1/me").json()["in_flight"]["requests"]
    return count


def test_small_json_needs_no_process() -> None:
    with running_server(SETTINGS) as server, httpx.Client(base_url=server.url) as http:
        assert well(http).status_code == 200

        assert json_processes(server) == []


def test_a_process_that_ended_is_replaced_unseen(server: Server, http: httpx.Client) -> None:
    process = the_process(http, server)

    process.kill()
    until(lambda: process.status() == psutil.STATUS_ZOMBIE)  # the server has not looked yet

    assert the_process(http, server).pid != process.pid


def test_a_process_that_dies_over_a_document_costs_that_request(
    server: Server, http: httpx.Client, threads: ThreadPoolExecutor
) -> None:
    answer = killed_over_a_document(server, http, threads)

    detail = problem_of(answer, 503, "unavailable", None)
    assert detail.startswith("the process that reads and writes JSON was lost")
    assert answer.headers["retry-after"] == "1"
    assert large(http).status_code == 200


def killed_over_a_document(
    server: Server, http: httpx.Client, threads: ThreadPoolExecutor
) -> httpx.Response:
    """The answer to a request whose document the process had when it was killed."""
    body = b'{"params": {"dims": [' + b"[]," * 690_000 + b"0]}}"
    end = time.monotonic() + PATIENCE_S
    while time.monotonic() < end:
        process = the_process(http, server)
        before_s = sum(process.cpu_times()[:2])
        sent: Future[httpx.Response] = threads.submit(
            http.post, PERMUTE, content=body, headers=JSON
        )
        until(lambda: sent.done() or sum(process.cpu_times()[:2]) > before_s)  # noqa: B023
        process.kill()
        answer = sent.result(PATIENCE_S)
        if answer.status_code != 422:  # else it was done before it was killed
            return answer
    raise AssertionError("no process was killed in time")


def test_a_process_that_stands_still_is_replaced(server: Server, http: httpx.Client) -> None:
    process = the_process(http, server)

    suspend(process)
    answer = large(http, **{"x-warpcall-timeout": "0.5"})

    problem_of(answer, 504, "timed-out", None)
    assert the_process(http, server).pid != process.pid
    until(lambda: not process.is_running())  # neither that one nor a zombie of it


def test_the_process_ends_with_a_server_that_is_killed() -> None:
    left: list[psutil.Process] = []

    with pytest.raises(RuntimeError, match="ended with status -9"):
        kill_a_server(left)

    (process,) = left
    until(lambda: not waiting.lives(process))


def kill_a_server(left: list[psutil.Process]) -> None:
    """Kill a server that has a JSON process, and note that process."""
    with running_server(SETTINGS) as server, httpx.Client(base_url=server.url) as http:
        left.append(the_process(http, server))
        server.process.send_signal(signal.SIGKILL)
        server.process.wait(PATIENCE_S)


def test_the_process_ends_with_a_server_that_stops() -> None:
    with running_server(SETTINGS) as server, httpx.Client(base_url=server.url) as http:
        process = the_process(http, server)

    until(lambda: not process.is_running())


@pytest.mark.parametrize("dtype", ["F32", "F64", "BF16", "C64", "BOOL", "I64", "U8", "F8_E4M3"])
def test_large_json_comes_back_as_it_was(dtype: str, http: httpx.Client) -> None:
    numbers = np.random.default_rng(7).integers(0, 2 if dtype == "BOOL" else 16, (50, 400))
    data: Any = numbers.tolist()
    if dtype == "BOOL":
        data = numbers.astype(bool).tolist()
    if dtype in ("F32", "F64", "BF16"):
        data[3][:4] = ["NaN", "Infinity", "-Infinity", -0.0]
    if dtype == "C64":
        data = [[[n, -n] for n in row] for row in data]
    x = {"dtype": dtype, "shape": [50, 400], "data": data}
    body = {"inputs": {"x": x}, "params": {"dims": [1, 0]}}

    answer = http.post(PERMUTE, json=body, headers={"accept": "application/json"})

    out = answer.json()["outputs"]["out"]
    assert (answer.status_code, out["dtype"], out["shape"]) == (200, dtype, [400, 50])
    assert json.dumps(out["data"]).replace(".0", "") == json.dumps(
        [list(column) for column in zip(*data, strict=True)]
    ).replace(".0", "")


def test_large_inference_requests_come_back_as_they_were(http: httpx.Client) -> None:
    x = np.random.default_rng(7).integers(0, 99, (50, 400)).astype(np.float32)
    dims = {"name": "dims", "datatype": "INT64", "shape": [2], "data": [1, 0]}
    given = {"name": "x", "datatype": "FP32", "shape": [50, 400], "data": x.tolist()}
    body = {"id": "7", "inputs": [given, dims]}

    answer = http.post("/v2/models/permute/infer", json=body)

    (out,) = answer.json()["outputs"]
    assert (answer.json()["id"], out["shape"]) == ("7", [400, 50])
    assert out["data"] == x.T.flatten().tolist()


def test_large_values_go_beside_bytes(http: httpx.Client) -> None:
    rng = np.random.default_rng(7)
    x, grad = (rng.standard_normal((1, 60, 100)).astype(np.float32) for _ in range(2))
    weight = rng.standard_normal((60, 3)).astype(np.float32)
    inputs = [
        {"name": name, "datatype": "FP32", "shape": list(a.shape), "data": a.tolist()}
        for name, a in {"x": x, "grad_output": grad, "weight": weight}.items()
    ]
    together = {"inputs": inputs, "parameters": {"binary_data_output": True}}
    mixed = {
        "inputs": inputs,
        "outputs": [
            {"name": "grad_x"},
            {"name": "grad_weight", "parameters": {"binary_data": True}},
        ],
    }

    as_bytes = http.post("/v2/models/conv-backward/infer", json=together)
    as_both = http.post("/v2/models/conv-backward/infer", json=mixed)

    wanted = outputs(as_bytes)
    got = outputs(as_both)
    assert np.array(got["grad_x"], np.float32).tobytes() == wanted["grad_x"]
    assert got["grad_weight"] == wanted["grad_weight"]


def outputs(answer: httpx.Response) -> dict[str, Any]:
    """By name: bytes, or values as the JSON has them."""
    assert answer.status_code == 200, answer.text
    at = int(answer.headers["Inference-Header-Content-Length"])
    found = {}
    for output in json.loads(answer.content[:at])["outputs"]:
        nbytes = output.get("parameters", {}).get("binary_data_size", 0)
        found[output["name"]] = output.get("data") or answer.content[at : at + nbytes]
        at += nbytes
    return found


def test_large_json_that_is_wrong_is_refused_as_small_is(http: httpx.Client) -> None:
    x = {"dtype": "F32", "shape": [COUNT + 1], "data": [*[0] * COUNT, "one"]}
    long = {"inputs": {"x": {**x, "data": [0] * COUNT}}, "params": {"note": "y" * 200_000}}

    value = http.post(PERMUTE, json={"inputs": {"x": x}, "params": {"dims": [0]}})
    no_json = http.post(PERMUTE, content=b'{"params": {"a": [' + b"1e999," * COUNT, headers=JSON)
    params = http.post(PERMUTE, json={**long, "inputs": {}})
    model = http.post("/v2/models/permute/infer", json={"inputs": [{**x, "name": "x"}] * 2})

    assert "got 'one'" in problem_of(value, 422, "invalid-input", "x")
    assert "1e999 is beyond" in problem_of(no_json, 422, "invalid-input", "body")
    assert "at most 131072 bytes, got 2" in problem_of(params, 422, "invalid-input", "body")
    assert "x has data, datatype" in model.json()["error"]
