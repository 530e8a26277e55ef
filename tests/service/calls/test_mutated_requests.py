"""Whatever is sent over a socket: an answer comes, and the next call works."""

from __future__ import annotations

import re
import socket
from typing import TYPE_CHECKING, Any

import httpx
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from demo.server import Server
from tests.service.requests import PERMUTE, well

if TYPE_CHECKING:
    import schemathesis

quiet = settings(
    deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow]
)
CALL = '{"inputs": {"x": {"dtype": "U8", "shape": [1], "data": [1]}}}'
POST = f"POST {PERMUTE}?dims=0 HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
REQUESTS = [
    "GET /v1/kernels HTTP/1.1\r\nHost: localhost\r\nAccept: */*\r\n\r\n",
    f"{POST}Content-Length: {len(CALL)}\r\n\r\n{CALL}",
    f"{POST}Transfer-Encoding: chunked\r\n\r\n{len(CALL):x}\r\n{CALL}\r\n0\r\n\r\n",
]
PIECES = [b"\r\n", b"\0", b"\xff", b"9" * 20, b"chunked", b"%ff", b":", b" ", b"[", b"-1"]


@pytest.mark.slow
@given(
    request=st.sampled_from(REQUESTS),
    changes=st.lists(
        st.tuples(st.floats(0, 1), st.integers(0, 4), st.sampled_from(PIECES)),
        min_size=1,
        max_size=3,
    ),
)
@settings(quiet, max_examples=300)
def test_any_mutation_of_a_request(
    request: str, changes: list[tuple[float, int, bytes]], server: Server, http: httpx.Client
) -> None:
    data = bytearray(request.encode())
    for where, nbytes, piece in changes:
        at = int(where * len(data))
        data[at : at + nbytes] = piece

    waited = False
    with socket.create_connection(("127.0.0.1", server.port), timeout=20) as sock:
        sock.sendall(data)
        sock.settimeout(0.1)
        try:
            answer = sock.recv(1 << 16)
        except (
            TimeoutError
        ):  # it waits for the rest of the request; the client says that none comes
            waited = True
            sock.settimeout(20)
            sock.shutdown(socket.SHUT_WR)
            answer = sock.recv(1 << 16)

    assert re.match(rb"HTTP/1.1 [1-4]\d\d ", answer) or (waited and not answer)
    assert well(http).status_code == 200


@pytest.mark.slow
def test_the_description_finds_no_fault_of_the_server(server: Server, http: httpx.Client) -> None:
    import schemathesis  # here, since each process that collects the tests would import it
    from schemathesis.checks import not_a_server_error

    schema = schemathesis.openapi.from_url(f"{server.url}/openapi.json")
    operations = 0
    for result in schema.get_all_operations():
        operation = result.ok()  # type: ignore[union-attr]  # an Err fails the test, as it should
        operations += 1

        @given(case=operation.as_strategy())
        @settings(quiet, max_examples=10, database=None)
        def attempt(case: schemathesis.Case[Any]) -> None:
            answer = case.call(timeout=20)
            if not (answer.status_code == 504 and asked_for_little(case)):
                case.validate_response(answer, checks=[not_a_server_error])

        attempt()
        assert well(http).status_code == 200

    assert operations >= 12


def asked_for_little(case: schemathesis.Case[Any]) -> bool:
    """Whether the caller himself allowed less time than a call may take here."""
    headers = dict(case.headers or ())
    return float(headers.get("X-Warpcall-Timeout", "60")) < 1
