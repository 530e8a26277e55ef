"""To which names a server without keys answers: a page whose name was rebound reaches nothing."""

from __future__ import annotations

import re
import socket
from collections.abc import Iterator

import httpx
import pytest

from tests.servers import Server, running_server
from tests.service.databases import Database
from tests.service.requests import PERMUTE, SAFETENSORS, Raw, header, problem_of, send_raw, tensor

STRANGER = "rebound.example:8000"
NOT_DESCRIBED = ("/", "/docs", "/static/app.js", "/openapi.json", "/jobs", "/nothing")
ADVERTISED = "GPU.example.org"


@pytest.fixture(scope="module")
def published(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """A server of which the operator says that callers know it by a name."""
    settings = {
        "WARPCALL_DATA_DIR": str(tmp_path_factory.mktemp("published")),
        "WARPCALL_ADVERTISED_URL": f"https://{ADVERTISED}:8443/lab",
    }
    with running_server(settings) as running:
        yield running


def asked(server: Server, host: str, path: str = "/healthz", method: str = "GET") -> Raw:
    return send_raw(server, f"{method} {path} HTTP/1.1\nHost: {host}\nContent-Length: 0")


def refused(answer: Raw, given: str = STRANGER) -> None:
    detail = problem_of(answer, 403, "forbidden", "host")
    assert f"got '{given}'" in detail
    assert "localhost, 127.0.0.1, [::1]" in detail
    assert "WARPCALL_ADVERTISED_URL" in detail


def test_no_route_answers_to_the_name_of_a_stranger(server: Server) -> None:
    paths = httpx.get(f"{server.url}/openapi.json").json()["paths"]
    described = [(method.upper(), path) for path, known in paths.items() for method in known]
    pages = [(method, path) for path in NOT_DESCRIBED for method in ("GET", "HEAD", "POST")]

    for method, path in [*described, *pages]:
        filled = re.sub(r"\{[^}]*\}", "x", path)
        answer = send_raw_head(server, method, filled, STRANGER)
        assert answer.startswith(b"HTTP/1.1 403 "), (method, path, answer[:200])

    assert len(described) > 60


def send_raw_head(server: Server, method: str, path: str, host: str) -> bytes:
    """The first bytes of an answer, which has no body if the method is HEAD."""
    head = f"{method} {path} HTTP/1.1\r\nHost: {host}\r\nContent-Length: 0\r\n\r\n"
    with socket.create_connection(("127.0.0.1", server.port), timeout=10) as sock:
        sock.sendall(head.encode())
        return sock.recv(65536)


@pytest.mark.parametrize(
    "host",
    [
        "localhost",
        "LocalHost:1",
        "localhost.",
        "127.0.0.1",
        "127.0.0.1:8000",
        "[::1]",
        "[::1]:8000",
    ],
)
def test_a_server_answers_to_the_names_of_its_own_machine(host: str, server: Server) -> None:
    assert asked(server, host).status == 200


@pytest.mark.parametrize(
    "host",
    [
        *(STRANGER, "rebound.example", "REBOUND.example.", "localhost.rebound.example", ""),
        *("127.0.0.1.rebound.example", "localhost@rebound.example", "x", "0.0.0.0", "10.0.0.1"),
        *("[::1", "[::1]x", "localhost:80:80", "localhost:x", "localhost..", "::1", "[::2]"),
        *("localhost,rebound.example", "localhost rebound.example", "l\u00f6calhost"),
    ],
)
def test_other_names_are_refused(host: str, server: Server) -> None:
    given = host.encode().decode("latin-1")

    refused(asked(server, host), given)


@pytest.mark.parametrize(
    "lines",
    [
        "X-Forwarded-Host: localhost",
        "Forwarded: host=localhost;for=127.0.0.1",
        "X-Forwarded-For: 127.0.0.1\nX-Forwarded-Proto: http",
        "X-Host: localhost",
        "Sec-Fetch-Site: same-origin",
    ],
)
def test_no_other_header_changes_the_name(lines: str, insecure: Server) -> None:
    refused(send_raw(insecure, f"GET /healthz HTTP/1.1\nHost: {STRANGER}\n{lines}"))


def test_a_target_with_a_name_does_not_change_it(server: Server) -> None:
    own = f"GET http://localhost:{server.port}/healthz HTTP/1.1\nHost: {STRANGER}"
    strange = f"GET http://{STRANGER}/healthz HTTP/1.1\nHost: {STRANGER}"

    for head in (own, strange):
        refused(send_raw(server, head))


def test_old_clients_name_no_host_or_one_of_the_server(server: Server) -> None:
    assert send_raw(server, "GET /healthz HTTP/1.0").status == 200
    assert send_raw(server, "GET /healthz HTTP/1.0\nHost: localhost").status == 200
    refused(send_raw(server, f"GET /healthz HTTP/1.0\nHost: {STRANGER}"))


def test_two_names_are_none(server: Server) -> None:
    for hosts in (("localhost", STRANGER), (STRANGER, "localhost")):
        answer = send_raw(server, "GET /healthz HTTP/1.1\nHost: {}\nHost: {}".format(*hosts))
        problem_of(answer, 400, "bad-request", "host")


def test_calls_that_repeat_earlier_ones_answer_to_no_stranger(server: Server) -> None:
    body = header({"x": tensor("F32", [1], 0, 4)}) + bytes(4)

    def call(host: str) -> bytes:
        lines = (
            f"POST {PERMUTE}?dims=0 HTTP/1.1",
            f"Host: {host}",
            f"Content-Type: {SAFETENSORS}",
            f"Content-Length: {len(body)}",
        )
        return "\r\n".join([*lines, "", ""]).encode() + body

    with socket.create_connection(("127.0.0.1", server.port), timeout=10) as sock:
        statuses = []
        for host in ("localhost", "localhost", "localhost", STRANGER, "localhost"):
            sock.sendall(call(host))
            statuses.append(status_of(sock))

    assert statuses == [200, 200, 200, 403, 200]


def status_of(sock: socket.socket) -> int:
    """Read a whole answer, and return its status."""
    data = b""
    while b"\r\n\r\n" not in data:
        data += sock.recv(65536)
    head, _, rest = data.partition(b"\r\n\r\n")
    found = re.search(rb"content-length: (\d+)", head)
    assert found is not None
    while len(rest) < int(found[1]):
        rest += sock.recv(65536)
    return int(head.split()[1])


@pytest.mark.parametrize("host", [ADVERTISED, "gpu.example.org:1", "GPU.EXAMPLE.ORG.", "localhost"])
def test_a_server_answers_to_the_name_that_its_operator_advertises(
    host: str, published: Server
) -> None:
    assert asked(published, host).status == 200


@pytest.mark.parametrize("host", [f"www.{ADVERTISED}", "example.org", "gpu", STRANGER])
def test_the_advertised_name_opens_no_other(host: str, published: Server) -> None:
    refused(asked(published, host), host)


def test_no_browser_reaches_the_unix_socket(published: Server) -> None:
    with (
        httpx.HTTPTransport(uds=str(published.uds)) as transport,
        httpx.Client(transport=transport, base_url="http://any.example") as http,
    ):
        assert http.get("/healthz").status_code == 200
        assert http.get("/v1/me").status_code == 200


def test_a_server_with_keys_answers_to_every_name_that_leads_to_it(sqlite: Database) -> None:
    key = sqlite.key("alice")
    with running_server(sqlite.settings) as running:
        head = f"GET /v1/me HTTP/1.1\nHost: {STRANGER}"
        keyless = send_raw(running, head)
        keyed = send_raw(running, f"{head}\nAuthorization: Bearer {key}")

    assert (keyless.status, keyed.status) == (401, 200)


@pytest.mark.parametrize(
    ("host", "status"),
    [
        *(
            ("127.0.0.1:80", 200),
            ("192.0.2.7", 200),
            ("[2001:db8::7]:80", 200),
            ("[::ffff:192.0.2.7]", 200),
            ("gpu-box", 200),
        ),
        *((socket.gethostname(), 200), (STRANGER, 403), ("gpu-box.rebound.example", 403)),
    ],
)
def test_an_open_server_answers_to_addresses_and_plain_names_too(
    host: str, status: int, insecure: Server
) -> None:
    assert asked(insecure, host).status == status


@pytest.fixture(scope="module")
def insecure(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """A server without keys that other machines reach."""
    settings = {
        "WARPCALL_DATA_DIR": str(tmp_path_factory.mktemp("insecure")),
        "WARPCALL_TRUSTED_PROXIES": "127.0.0.1",
        "WARPCALL_HOST": "0.0.0.0",
        "WARPCALL_INSECURE": "true",
    }
    with running_server(settings) as running:
        yield running
