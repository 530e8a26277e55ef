"""Routes, headers, connections, health, metrics and the OpenAPI description."""

from __future__ import annotations

import json
import re
import socket

import httpx
import pytest

from demo.server import Server
from tests.service.requests import PERMUTE, metrics, send_raw, well

pytestmark = pytest.mark.slow


def test_every_op_is_listed_and_described(http: httpx.Client) -> None:
    listed = http.get("/v1/kernels").json()["kernels"]

    assert [op["name"] for op in listed] == [
        *("conv", "conv-backward", "isin", "masked-softmax", "masked-softmax-backward"),
        *("masked-softmax-bias-backward", "permute", "transpose-add"),
    ]
    for op in listed:
        assert http.get(f"/v1/kernels/{op['name']}").json() == op
        assert all(i["dtypes"] for i in op["inputs"])
        assert re.fullmatch("[0-9a-f]{64}", op["source_sha256"])


@pytest.mark.parametrize(
    "path", ["/nothing", "/v1/kernels/nothing", "/v1/kernels/permute/x", "/docs/x"]
)
def test_what_is_not_there_is_a_problem(path: str, http: httpx.Client) -> None:
    answer = http.get(path)

    assert answer.status_code == 404
    assert answer.headers["content-type"] == "application/problem+json"
    assert answer.json()["type"] == "urn:warpcall:problem:not-found"


@pytest.mark.parametrize(
    ("method", "path", "allow"),
    [
        ("PUT", PERMUTE, "GET, POST"),
        ("DELETE", "/v1/kernels", "GET"),
        ("PATCH", "/v1/tensors", "DELETE, GET, PUT"),
        ("POST", "/v1/tensors/x", "DELETE, GET, PUT"),
        ("GET", "/v1/programs", "POST"),
        ("POST", "/healthz", "GET, HEAD"),
        ("PATCH", "/metrics", "GET"),
    ],
)
def test_a_method_that_a_route_lacks_is_named_with_those_it_has(
    method: str, path: str, allow: str, http: httpx.Client
) -> None:
    answer = http.request(method, path)

    assert (answer.status_code, answer.headers["allow"]) == (405, allow)
    assert method in answer.json()["detail"]


def test_an_answer_says_what_ran_the_call_how_long_and_for_which_request(
    http: httpx.Client,
) -> None:
    body = {"inputs": {"x": {"dtype": "U8", "shape": [1], "data": [1]}}, "params": {"dims": [0]}}

    answer = http.post(PERMUTE, json=body, headers={"x-request-id": "my-request_1.2"})

    stages = re.findall(r"(\w+);dur=[\d.]+", answer.headers["server-timing"])
    assert stages == ["queue", "h2d", "kernel", "d2h"]
    assert answer.headers["x-warpcall-device"] == "cpu (torch reference)"
    assert answer.headers["x-request-id"] == "my-request_1.2"


@pytest.mark.parametrize("given", ["", "a b", "x" * 65, "ä"])
def test_a_request_id_that_is_not_sane_is_replaced(given: str, http: httpx.Client) -> None:
    answer = http.get("/healthz", headers=[(b"x-request-id", given.encode())])

    assert answer.headers["x-request-id"] not in (given, "")


def test_the_server_is_live_and_ready(http: httpx.Client) -> None:
    ready = http.get("/readyz").json()

    assert http.get("/healthz").json() == {"status": "ok"}
    assert ready["status"] == "ready"
    assert [lane["state"] for lane in ready["lanes"]] == ["ready"]


def test_metrics_count_calls_time_stages_and_find_the_arena_empty(
    server: Server, http: httpx.Client
) -> None:
    before = metrics(http)

    for _ in range(3):
        assert well(http).status_code == 200
    http.post(PERMUTE, json={"params": {}})

    after = metrics(http)
    permute = 'warpcall_requests_total{op="permute",status="%d"}'
    assert after[permute % 200] == before.get(permute % 200, 0) + 3
    assert after[permute % 422] == before.get(permute % 422, 0) + 1
    kernel = 'warpcall_stage_seconds_count{stage="kernel"}'
    assert after[kernel] == before.get(kernel, 0) + 3
    assert after['warpcall_lane_arena_used{lane="cpu"}'] == 0
    assert after['warpcall_lane_ready{lane="cpu"}'] == 1
    moved = 'warpcall_body_bytes_total{direction="%s"}'
    assert all(after[moved % way] > before[moved % way] for way in ("in", "out"))
    assert {
        *("warpcall_lane_queued", "warpcall_lane_in_flight", "warpcall_lane_arena_free"),
        *("warpcall_lane_arena_waiting", "warpcall_lane_restarts_total"),
    } < {name.partition("{")[0] for name in after}


def test_the_pages_need_no_other_host(http: httpx.Client) -> None:
    pages = {path: http.get(path) for path in ("/", "/docs")}

    for page in pages.values():
        assert page.status_code == 200
        assert "//" not in page.text.replace("<!--", "").replace("// ", "")
    linked = re.findall(r'(?:src|href)="([^"]+)"', pages["/docs"].text)
    assert linked
    for link in linked:
        assert http.get(f"/{link}").status_code == 200


def test_the_description_has_every_call(http: httpx.Client) -> None:
    described = http.get("/openapi.json").json()

    for op in http.get("/v1/kernels").json()["kernels"]:
        operation = described["paths"][f"/v1/kernels/{op['name']}"]["post"]
        assert {p["name"] for p in op["params"]} < {p["name"] for p in operation["parameters"]}
        assert {"200", "413", "415", "422", "429", "500", "503", "504"} <= set(
            operation["responses"]
        )


def test_the_description_refers_to_schemas_that_exist(http: httpx.Client) -> None:
    text = http.get("/openapi.json").text

    schemas = json.loads(text)["components"]["schemas"]
    assert set(re.findall(r"#/components/schemas/(\w+)", text)) <= schemas.keys()


def test_the_description_has_the_forms_of_problems_that_are_sent(http: httpx.Client) -> None:
    problem = {"application/problem+json": "Problem"}
    error = {"application/json": "InferenceError"}
    paths = http.get("/openapi.json").json()["paths"]

    for path, methods in paths.items():
        form = error if path.startswith("/v2") else problem
        for operation in methods.values():
            for status, response in operation["responses"].items():
                if (
                    status >= "400" and status != "503"
                ):  # the response of readiness has its own form
                    ((media_type, content),) = response["content"].items()
                    schema = content["schema"]["$ref"].rpartition("/")[2]
                    assert {media_type: schema} == form, (path, status)


@pytest.mark.parametrize(
    ("head", "status"),
    [
        ("NONSENSE", 400),
        ("GET / HTTP/1.1\nHost: localhost\nContent-Length: two", 400),
        ("GET / HTTP/1.1\nHost: localhost\nBad Header: x", 400),
        ("GET / HTTP/1.1\nHost: localhost\nX: " + "x" * 70_000, 431),
        ("GET /" + "x" * 70_000 + " HTTP/1.1\nHost: localhost", 431),
        ("POST / HTTP/1.1\nHost: localhost\nContent-Length: 1\nTransfer-Encoding: chunked", 400),
    ],
    ids=["nonsense", "length", "header", "long header", "long path", "smuggling"],
)
def test_what_is_not_http_is_refused(
    head: str, status: int, server: Server, http: httpx.Client
) -> None:
    answer = send_raw(server, head)

    assert (answer.status, answer.headers["connection"]) == (status, "close")
    assert answer.json()["status"] == status
    assert well(http).status_code == 200


def test_requests_on_one_connection_are_answered_in_order(server: Server) -> None:
    body = json.dumps(
        {"inputs": {"x": {"dtype": "U8", "shape": [1], "data": [1]}}, "params": {"dims": [0]}}
    )
    call = (
        f"POST {PERMUTE} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
        f"X-Request-Id: call-%d\r\nContent-Length: {len(body)}\r\n\r\n{body}"
    )
    with socket.create_connection(("127.0.0.1", server.port), timeout=10) as sock:
        sock.sendall("".join(call % i for i in range(5)).encode())
        data = b""
        while data.count(b"HTTP/1.1 200") < 5 or not data.endswith(b"\x01"):
            data += sock.recv(65536)

    assert re.findall(rb"x-request-id: (call-\d)", data) == [b"call-%d" % i for i in range(5)]


def test_nonsense_after_a_request_does_not_cost_it_its_answer(server: Server) -> None:
    body = '{"inputs": {"x": {"dtype": "U8", "shape": [1], "data": [1]}}, "params": {"dims": [0]}}'
    head = f"POST {PERMUTE} HTTP/1.1\nHost: localhost\nContent-Type: application/json\nContent-Length: "

    answer = send_raw(server, f"{head}{len(body)}", f"{body}}}}}".encode())

    assert (answer.status, answer.body[-1:]) == (200, b"\x01")


def test_a_head_that_never_ends_is_not_waited_for(server: Server) -> None:
    with socket.create_connection(("127.0.0.1", server.port), timeout=30) as sock:
        sock.sendall(b"GET / HT")

        assert sock.recv(1) == b""
