"""Uploads that are refused: before anything is checked, or because their check finds something."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.servers import Server, running_server
from tests.service.requests import problem_of, send_raw
from tests.service.uploads.problem_sources import SCALE
from tests.service.uploads.requests import (
    IMPLEMENTATION,
    PATH,
    PROBLEM,
    SETTINGS,
    Kind,
    add_problem,
    names,
    problem_names,
    upload,
    uploaded,
)
from tests.service.uploads.sources import SHORT

MIB = 1 << 20

of_both_kinds = pytest.mark.parametrize(
    "kind", [IMPLEMENTATION, PROBLEM], ids=lambda kind: kind.name
)


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    folder = str(tmp_path_factory.mktemp("data"))
    settings = {"WARPCALL_DATA_DIR": folder, "WARPCALL_UPLOAD_CHECK_S": "1.5"}
    with running_server({**SETTINGS, **settings}) as running:
        yield running


@pytest.fixture
def http(server: Server) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=server.url, timeout=120) as client:
        yield client
        assert names(client) == problem_names(client) == [], "nothing was stored"


@of_both_kinds
@pytest.mark.parametrize(
    ("change", "field"),
    [
        ({"source": ""}, "source"),
        ({"source": "x = 1\0"}, "source"),
        ({"source": ["a"]}, "source"),
        ({"name": ""}, "name"),
        ({"name": "x" * 49}, "name"),
        ({"name": "<script>alert(1)</script>"}, "name"),
        ({"name": "two\nlines"}, "name"),
        ({"name": "line\n"}, "name"),
        ({"name": "a\0b"}, "name"),
        ({"name": "a/b"}, "name"),
        ({"name": "a@b"}, "name"),
        ({"name": "../x"}, "name"),
        ({"name": ".hidden"}, "name"),
        ({"name": "naïve"}, "name"),
        ({"name": "\u202egnp"}, "name"),
        ({"name": 5}, "name"),
        ({"private": "yes"}, "private"),
        ({"more": "x"}, "more"),
    ],
)
def test_a_wrong_field_is_named(
    change: dict[str, Any], field: str, kind: Kind, http: httpx.Client
) -> None:
    answer = http.post(kind.path, json={**kind.fields, "source": kind.sources[0], **change})

    problem_of(answer, 422, "invalid-input", field)


@pytest.mark.parametrize(
    ("change", "field"),
    [
        ({"op": "permute2"}, "op"),
        ({"op": "<b>permute</b>"}, "op"),
        ({"op": ""}, "op"),
        ({"op": "x" * 65}, "op"),
        ({"op": "a\0b"}, "op"),
        ({"function": "not a name"}, "function"),
        ({"function": "f\n"}, "function"),
        ({"function": "f()"}, "function"),
        ({"function": "é"}, "function"),
        ({"function": "x" * 65}, "function"),
        ({"function": "_permute"}, "name"),
        ({"verified": "yes"}, "verified"),
        ({"verified": True, "language": "rust"}, "language"),
        ({"verified": True, "language": "cuda"}, "launches"),
        ({"language": "cuda"}, "language"),
        ({"launches": {"launches": []}}, "launches"),
        ({"verified": True, "launches": [1]}, "launches"),
    ],
)
def test_a_wrong_op_or_function_is_named(
    change: dict[str, Any], field: str, http: httpx.Client
) -> None:
    problem_of(upload(http, SHORT, **change), 422, "invalid-input", field)


def test_a_problem_has_no_op(http: httpx.Client) -> None:
    problem_of(add_problem(http, SCALE, op="permute"), 422, "invalid-input", "op")


@of_both_kinds
@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"null",
        b"\x7fELF\x02\x01\x01" + bytes(1000),
        b'{"op": "permute", "op": "isin", "source": "x"}',
        b'{"a":[' + b"[]," * 100_000 + b"1]}",
    ],
)
def test_a_body_of_another_form_is_refused(body: bytes, kind: Kind, http: httpx.Client) -> None:
    answer = http.post(kind.path, content=body, headers={"content-type": "application/json"})

    problem_of(answer, 422, "invalid-input", "body")


@of_both_kinds
def test_text_that_is_not_utf8_or_not_unicode_is_refused(kind: Kind, http: httpx.Client) -> None:
    head = {"content-type": "application/json"}
    bodies = (b'{"op": "permute", "source": "\xff\xfe"}', b'{"op": "permute", "source": "\\ud800"}')

    for body in bodies:
        answer = http.post(kind.path, content=body, headers=head)
        problem_of(answer, 422, "invalid-input", "body")


@of_both_kinds
def test_a_source_that_is_too_long_is_refused(kind: Kind, http: httpx.Client) -> None:
    long = SHORT + "#" * 262_144
    # As characters it would be short enough.
    wide = SHORT + "#" + "é" * 131_072

    for source in (long, wide):
        body = json.dumps({**kind.fields, "source": source}, ensure_ascii=False).encode()
        answer = http.post(kind.path, content=body, headers={"content-type": "application/json"})
        said = problem_of(answer, 413, "too-large", "source")
        assert said.startswith("source must have at most 262144 bytes of UTF-8, got 262")


@of_both_kinds
def test_a_body_of_ten_mb_is_refused_before_it_is_sent(
    kind: Kind, server: Server, http: httpx.Client
) -> None:
    head = f"POST {kind.path} HTTP/1.1\nHost: localhost\nContent-Type: application/json\nContent-Length: {10 * MIB}"

    answer = send_raw(server, head)

    said = problem_of(answer, 413, "too-large", "body")
    # An implementation lists up to 200 files besides its source, each in 320 bytes.
    most = 561_152 + (200 * 320 if kind.name == "implementation" else 0)
    assert said == f"the JSON of an upload must have at most {most} bytes, got {10 * MIB}"


@of_both_kinds
def test_other_media_types_are_refused(kind: Kind, http: httpx.Client) -> None:
    answer = http.post(kind.path, content=SHORT.encode(), headers={"content-type": "text/x-python"})

    problem_of(answer, 415, "unsupported-media", "content-type")


@pytest.mark.parametrize(
    ("source", "error"),
    [
        ("def other(x, dims):\n    pass\n", "it has no function permute, its functions are: other"),
        ("x = 1\n\x01\x02", "line 2: SyntaxError: invalid non-printable character U+0001"),
        ("x = 1\nwhile True:\n    x += 1\n", "line 3: the import did not end within 1.5 s"),
        ("import cupy\n", "line 1: ModuleNotFoundError: No module named 'cupy'; GET /v1/impl"),
        ("import os\nos._exit(0)\n", "it cannot be checked: its process ended before it had"),
        ("raise ValueError('<b>bold</b>\\n\\x1b[31m\\ud800')\n", "line 1: ValueError: <b>bold"),
    ],
)
def test_a_bad_source_gets_an_error_that_names_the_line(
    source: str, error: str, http: httpx.Client
) -> None:
    field = "function" if "no function" in error else "source"

    said = problem_of(upload(http, source), 422, "invalid-input", field)

    # A loop is interrupted in any of its lines.
    assert said.replace("line 2: the", "line 3: the").startswith(f"{field}: {error}")
    assert said.isprintable()


@of_both_kinds
@pytest.mark.parametrize(
    "path",
    [
        "local/absent",
        "local/%00",
        "local/a%0Ab",
        "nobody/x",
        "LOCAL/x",
        "%3Cb%3E/x",
        "local/" + "x" * 200,
        "../x",
        "é/é",
    ],
)
def test_what_no_path_names_is_not_found(path: str, kind: Kind, http: httpx.Client) -> None:
    for method in ("GET", "DELETE"):
        answer = http.request(method, f"{kind.path}/{path}")
        assert answer.status_code == 404, answer.text


@of_both_kinds
@pytest.mark.parametrize("version", ["", "123", "1234567g", "ABCDEF12", "a" * 65, "12345678%00"])
def test_a_version_that_cannot_be_one_is_refused(
    version: str, kind: Kind, http: httpx.Client
) -> None:
    for method in ("GET", "DELETE"):
        answer = http.request(method, f"{kind.path}/local/x?version={version}")
        problem_of(answer, 422, "invalid-input", "version")


@of_both_kinds
@pytest.mark.parametrize(
    ("query", "field"),
    [
        ("limit=0", "limit"),
        ("limit=501", "limit"),
        ("before=x", "before"),
        ("before=1-1000000000000000000000", "before"),
        ("user=a%00b", "user"),
    ],
)
def test_a_list_is_asked_for_within_limits(
    query: str, field: str, kind: Kind, http: httpx.Client
) -> None:
    problem_of(http.get(f"{kind.path}?{query}"), 422, "invalid-input", field)


def test_implementations_are_asked_for_by_an_op_without_nul(http: httpx.Client) -> None:
    problem_of(http.get(f"{PATH}?op=a%00b"), 422, "invalid-input", "op")


def test_a_process_that_answers_for_the_check_cannot_harm_the_server(http: httpx.Client) -> None:
    """Uploaded code may write to the socket of its check whatever it likes."""
    forged = """
import json, os, struct
for fd in range(3, 1024):
    for payload in ({payloads}):
        try:
            os.write(fd, struct.pack("<I", len(payload)) + payload)
        except OSError:
            break
os._exit(0)
"""
    for payload in (b"[]", b"{}", b'{"doc": 5}', b'{"doc": "x", "more": 1}', b"\xff" * 100, b""):
        source = forged.replace("{payloads}", f"{payload!r},")
        said = problem_of(upload(http, source), 422, "invalid-input", "source")
        assert "gave no valid answer" in said or "it was refused" in said
    huge = forged.replace("{payloads}", "b'[' * 20_000,")
    said = problem_of(upload(http, huge), 422, "invalid-input", "source")
    assert "its answer has 20000 bytes" in said


def test_uploads_are_off_by_default(tmp_path: Path) -> None:
    settings = {"WARPCALL_DATA_DIR": str(tmp_path), "WARPCALL_ARENA_BYTES": "16MiB"}
    with (
        running_server(settings) as server,
        httpx.Client(base_url=server.url, timeout=30) as client,
    ):
        said = problem_of(upload(client, SHORT), 403, "forbidden", None)
        problem = problem_of(add_problem(client, SCALE), 403, "forbidden", None)
        job = {"op": "ann/scale", "cases": [{}]}
        jobs = problem_of(client.post("/v1/jobs/preview", json=job), 403, "forbidden", None)
        environment = client.get(f"{PATH}/environment").json()

    assert said == problem == jobs
    assert said == (
        "this server runs no uploaded code: its operator would have to set "
        "WARPCALL_UPLOADS=sandboxed"
    )
    assert (environment["uploads"], environment["trouble"]) == ("off", "")


def test_the_environment_says_what_sources_may_use(http: httpx.Client) -> None:
    found = http.get(f"{PATH}/environment").json()

    assert (found["uploads"], found["device"], found["cuda"]) == ("trusted", "cpu", None)
    packages = dict(found["packages"])
    assert found["torch"].partition("+")[0] == packages["torch"].partition("+")[0]
    assert found["limits"] == {
        "source_bytes": 262_144,
        "files": 200,
        "tree_bytes": 4 << 20,
        "check_s": 1.5,
        "tmp_bytes": 1 << 30,
        "processes": 2048,
        "memory_bytes": found["limits"]["memory_bytes"],
    }
    assert set(found["tools"]) >= {"nvcc", "ptxas", "cc"}


def test_further_uploads_are_accepted_after_all_this(
    http: httpx.Client, request: pytest.FixtureRequest
) -> None:
    found = uploaded(http, SHORT)

    answer = http.delete(f"{PATH}/{found['name']}")

    assert answer.status_code == 204
