"""Inferences over sockets: bodies that stop or are too long, and the line in the log."""

from __future__ import annotations

import contextlib
import json
import select
import socket

import httpx
import numpy as np

from demo.server import Server
from tests.oip.lending import REGIONS, Make, both, listed, register
from tests.oip.requests import INFER, LENGTH, binary, body, packed, refused, tensor
from tests.service.requests import log_of, send_raw


def test_json_beyond_its_limit_is_refused_before_it_is_read(
    server: Server, http: httpx.Client
) -> None:
    declared = f"POST {INFER} HTTP/1.1\nHost: localhost\nContent-Length: {5 << 20}"
    output = body(parameters={"dims": "1,0"}, inputs=[binary("x", np.zeros((1200, 1000)), "FP64")])

    early = send_raw(server, declared)
    content, headers = packed(output, bytes(8 * 1200 * 1000))
    large = http.post(INFER, content=content, headers=headers)

    assert (early.status, "at most 524288" in early.json()["error"]) == (413, True)
    assert "ask for binary_data" in refused(large, 413)


def test_a_body_that_stands_still_is_given_up(server: Server) -> None:
    head = f"POST {INFER} HTTP/1.1\nHost: localhost\nContent-Length: 1000"

    answer = send_raw(server, head, b'{"inputs": [')

    assert answer.status == 504
    assert "a body must move" in answer.json()["error"]


def test_clients_that_stop_after_their_json_do_not_delay_others(
    server: Server, http: httpx.Client
) -> None:
    x = np.zeros((200, 200), np.float32)  # as JSON more than what is parsed at once
    inputs = [tensor("b", x), binary("a", x)]
    content, headers = packed({"inputs": inputs, "parameters": {}}, x.tobytes())
    url = "/v2/models/transpose-add/infer"
    fields = f"Content-Length: {len(content)}\r\n{LENGTH}: {headers[LENGTH]}"
    head = f"POST {url} HTTP/1.1\r\nHost: localhost\r\n{fields}\r\n\r\n".encode()
    with contextlib.ExitStack() as stack:
        stopped = [
            stack.enter_context(socket.create_connection(("127.0.0.1", server.port)))
            for _ in range(6)
        ]
        for sock in stopped:
            sock.sendall(head + content[: int(headers[LENGTH])])

        answer = http.post(url, content=content, headers=headers)
        answered_before, _, _ = select.select(stopped, [], [], 0)

    assert answer.status_code == 200
    assert answered_before == []


def test_shared_memory_works_over_the_unix_socket_too(
    server: Server, http: httpx.Client, segment: Make
) -> None:
    register(http, "a", segment(64), 64)

    transport = httpx.HTTPTransport(uds=str(server.uds))
    with httpx.Client(transport=transport, base_url="http://x") as local:
        assert [region["name"] for region in listed(local)] == ["a"], "the same user's"
        assert local.post(INFER, json=both("a")).status_code == 200
        assert register(local, "b", segment(64), 64).status_code == 200
    assert http.post(f"{REGIONS}/unregister").status_code == 200


def test_inferences_are_logged_and_counted_like_other_calls(
    server: Server, http: httpx.Client
) -> None:
    http.post(INFER, json=body(), headers={"x-request-id": "inferred"})
    text = http.get("/metrics").text

    (line,) = (line for line in log_of(server).splitlines() if '"inferred"' in line)
    line_of_log = json.loads(line)
    assert (line_of_log["op"], line_of_log["status"], line_of_log["user"]) == (
        "permute",
        200,
        "local",
    )
    assert line_of_log["stages_ms"].keys() == {"upload", "queue", "h2d", "kernel", "d2h"}
    assert 'warpcall_requests_total{op="permute",status="200"}' in text
