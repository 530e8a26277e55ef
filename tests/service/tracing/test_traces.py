"""Traces of calls and jobs: a real server and the SDK send them to a collector over a socket."""

from __future__ import annotations

import asyncio
import socket
import uuid
from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Self

import httpx
import numpy as np
import pytest
from opentelemetry import trace
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor

from tests.app.harness import running_app
from tests.servers import Server, running_server
from tests.service.job_requests import BRIEF, JOB
from tests.service.tracing.collector import Collector, Span, running_collector
from tests.waiting import until
from warpcall import AsyncClient, Client, wire
from warpcall.errors import InvalidInput

SMALL = np.arange(1024, dtype=np.float32).reshape(32, 32)
LARGE = np.ones((2048, 2048), np.float32)  # 16 MB: streamed both ways
STAGES = ["upload", "queue", "h2d", "kernel", "d2h", "reply", "response"]
SHARE = 0.02  # of a span that its children may leave out
KIND_SERVER, KIND_CLIENT, STATUS_ERROR = 2, 3, 2


@pytest.fixture(scope="module")
def collector() -> Iterator[Collector]:
    with running_collector() as running:
        yield running


@pytest.fixture(scope="module")
def server(collector: Collector) -> Iterator[Server]:
    settings = {"WARPCALL_DEVICES": "cpu", "WARPCALL_ARENA_BYTES": "128MiB"}
    with running_server({**settings, **BRIEF, **collector.settings}) as running:
        yield running


@pytest.fixture(scope="module")
def program(collector: Collector) -> Iterator[trace.Tracer]:
    """The tracer of a program that uses the SDK: its spans go to the collector, too."""
    from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter

    provider = TracerProvider(resource=Resource.create({"service.name": "program"}))
    exporter = OTLPSpanExporter(f"{collector.url}/v1/traces")
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    trace.set_tracer_provider(provider)
    yield provider.get_tracer("tests")
    provider.shutdown()


class Wire:
    """One kept-alive connection, on which a test writes each header itself."""

    def __init__(self, server: Server) -> None:
        self._sock = socket.create_connection(("127.0.0.1", server.port), timeout=30)

    def call(self, *fields: str) -> str:
        """Call permute; the request's id in the answer."""
        info = wire.TensorInfo("x", "F32", SMALL.shape)
        body = wire.encode_header(wire.lay_out([info])) + SMALL.tobytes()
        head = [
            "POST /v1/kernels/permute?dims=1,0 HTTP/1.1",
            "Host: localhost",
            f"Content-Type: {wire.MEDIA_TYPE}",
            *fields,
            f"Content-Length: {len(body)}",
        ]
        self._sock.sendall("\r\n".join([*head, "", ""]).encode("latin-1") + body)
        answer = b""
        while len(answer) < 4096 or not answer.endswith(SMALL.T.tobytes()):
            received = self._sock.recv(1 << 16)
            assert received, answer
            answer += received
        assert answer.startswith(b"HTTP/1.1 200 "), answer[:200]
        return answer.partition(b"x-request-id: ")[2].partition(b"\r\n")[0].decode()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._sock.close()


def new_traceparent(flags: str = "01") -> str:
    return f"00-{uuid.uuid4().hex}-{uuid.uuid4().hex[:16]}-{flags}"


def span_of(collector: Collector, request_id: str) -> Span:
    """The server's span of a request."""
    return collector.wait_for(
        lambda span: (
            span.kind == KIND_SERVER and span.attributes.get("warpcall.request_id") == request_id
        )
    )


def parent_of(collector: Collector, span: Span) -> Span:
    return collector.wait_for(lambda other: other.span_id == span.parent_id)


def check_stages(collector: Collector, span: Span) -> None:
    """A call has each stage, and nothing of its time is outside of these."""
    children = collector.children(span)
    left_out = span.seconds - sum(child.seconds for child in children)

    assert sorted(child.name for child in children) == sorted(STAGES)
    assert abs(left_out) <= SHARE * span.seconds
    assert all(span.began <= child.began <= child.ended <= span.ended for child in children)


@pytest.mark.parametrize("x", [SMALL, LARGE], ids=["4 KB", "16 MB"])
def test_a_call_of_the_sdk_is_one_trace_with_every_stage(
    server: Server, collector: Collector, program: trace.Tracer, x: np.ndarray[Any, Any]
) -> None:
    with Client(server.url) as gpu, program.start_as_current_span("work") as work:
        answers = [gpu.call("permute", {"x": x}, {"dims": [1, 0]}) for _ in range(4)]

    for answer in answers:  # from the second or third on in the short way
        of_server = span_of(collector, answer.request_id)
        of_client = parent_of(collector, of_server)
        assert of_client.trace_id == f"{work.get_span_context().trace_id:032x}"
        assert of_client.parent_id == f"{work.get_span_context().span_id:016x}"
        assert (of_client.name, of_client.kind) == ("POST permute", KIND_CLIENT)
        assert of_client.began <= of_server.began
        assert of_server.name == "POST /v1/kernels/permute"
        assert of_server.attributes["http.route"] == "/v1/kernels/permute"
        assert of_server.attributes["http.response.status_code"] == 200
        assert of_server.attributes["warpcall.op"] == "permute"
        check_stages(collector, of_server)


def test_stages_have_the_figures_of_server_timing(
    server: Server, collector: Collector, program: trace.Tracer
) -> None:
    with Client(server.url) as gpu, program.start_as_current_span("work"):
        answer = gpu.call("permute", {"x": LARGE}, {"dims": [1, 0]})

    span = span_of(collector, answer.request_id)
    found = {child.name: child.seconds * 1e3 for child in collector.children(span)}
    assert {name: found[name] for name in ("queue", "h2d", "kernel", "d2h")} == pytest.approx(
        {name: answer.timing_ms[name] for name in ("queue", "h2d", "kernel", "d2h")}, abs=0.001
    )


def test_awaited_calls_are_traced_too(
    server: Server, collector: Collector, program: trace.Tracer
) -> None:
    async def call() -> tuple[str, str]:
        async with AsyncClient(server.url) as gpu:
            with program.start_as_current_span("work") as work:
                answer = await gpu.call("permute", {"x": SMALL}, {"dims": [1, 0]})
        return f"{work.get_span_context().trace_id:032x}", answer.request_id

    trace_id, request_id = asyncio.run(call())

    assert span_of(collector, request_id).trace_id == trace_id


def test_repeated_calls_are_traced_in_the_short_way(server: Server, collector: Collector) -> None:
    with Wire(server) as connection:
        sent = [new_traceparent() for _ in range(6)]
        ids = [connection.call(f"traceparent: {value}") for value in sent]

    for value, request_id in zip(sent, ids, strict=True):
        span = span_of(collector, request_id)
        assert f"00-{span.trace_id}-{span.parent_id}-01" == value
        check_stages(collector, span)


@pytest.mark.parametrize(
    "fields",
    [
        ["traceparent: "],
        ["traceparent: 00-x"],
        [f"traceparent: {new_traceparent()}-more"],
        [f"traceparent: ff{new_traceparent()[2:]}"],
        [f"traceparent: {new_traceparent().upper()}Z"],
        [f"traceparent: 00-{'0' * 32}-{'1' * 16}-01"],
        [f"traceparent: 00-{'1' * 32}-{'0' * 16}-01"],
        [f"traceparent: {'0' * 3000}"],
        ["traceparent: \xff\xfe"],
        [f"traceparent: {new_traceparent()}", f"traceparent: {new_traceparent()}"],
    ],
)
def test_a_malformed_traceparent_begins_a_trace(
    server: Server, collector: Collector, fields: list[str]
) -> None:
    with Wire(server) as connection:
        ids = [connection.call(*fields) for _ in range(3)]

    for request_id in ids:
        span = span_of(collector, request_id)
        assert span.parent_id == ""
        assert span.trace_id not in "".join(fields).lower()


def test_a_later_version_of_the_header_is_read(server: Server, collector: Collector) -> None:
    value = f"01{new_traceparent()[2:]}-of-tomorrow"
    with Wire(server) as connection:
        ids = [connection.call(f"traceparent: {value}") for _ in range(3)]

    assert {span_of(collector, one).trace_id for one in ids} == {value[3:35]}


def test_a_caller_that_samples_nothing_gets_no_spans(server: Server, collector: Collector) -> None:
    unsampled, sampled = new_traceparent("00"), new_traceparent()
    with Wire(server) as connection:
        for _ in range(3):
            connection.call(f"traceparent: {unsampled}")
        last = connection.call(f"traceparent: {sampled}")

    span_of(collector, last)
    assert collector.of(unsampled[3:35]) == []


def test_the_tracestate_is_kept(server: Server, collector: Collector) -> None:
    fields = f"traceparent: {new_traceparent()}", "tracestate: vendor=a1"
    with Wire(server) as connection:
        ids = [connection.call(*fields) for _ in range(3)]
        malformed = connection.call(fields[0], "tracestate: =,=,=")

    assert {span_of(collector, one).tracestate for one in ids} == {"vendor=a1"}
    assert span_of(collector, malformed).tracestate == ""


def test_an_error_is_in_both_spans(
    server: Server, collector: Collector, program: trace.Tracer
) -> None:
    with (
        Client(server.url) as gpu,
        program.start_as_current_span("work") as work,
        pytest.raises(InvalidInput) as raised,
    ):
        gpu.permute(SMALL, dims=(3, 4))

    trace_id = f"{work.get_span_context().trace_id:032x}"
    of_server = collector.wait_for(lambda span: span.trace_id == trace_id and span.kind == 2)
    of_client = parent_of(collector, of_server)
    for span in (of_server, of_client):
        assert span.attributes["http.response.status_code"] == 422
        assert span.attributes["error.type"] == "invalid-input"
    assert (of_client.status, of_client.message) == (STATUS_ERROR, raised.value.detail)
    assert of_server.status == 0  # the caller's mistake is no error of the server
    assert collector.children(of_server) == []


def test_other_routes_have_a_span_with_their_route(server: Server, collector: Collector) -> None:
    value = new_traceparent()
    with httpx.Client(base_url=server.url, headers={"traceparent": value}) as http:
        missing = http.get("/v1/jobs/abcdef012345")
        http.get("/healthz")
        http.get("/v1/nowhere")

    span = span_of(collector, missing.headers["x-request-id"])
    assert (span.name, span.attributes["url.path"]) == (
        "GET /v1/jobs/{id}",
        "/v1/jobs/abcdef012345",
    )
    until(lambda: len(collector.of(value[3:35])) == 2)
    assert {one.name for one in collector.of(value[3:35])} == {"GET /v1/jobs/{id}", "GET"}


def test_the_token_of_a_share_link_is_in_no_span(server: Server, collector: Collector) -> None:
    token = "a" * 43
    with httpx.Client(base_url=server.url) as http:
        answer = http.get(f"/v1/shared/{token}")

    span = span_of(collector, answer.headers["x-request-id"])
    assert token not in repr(span)
    assert span.attributes["url.path"] == "/v1/shared/..."


def test_a_job_is_a_trace_of_its_own_that_links_to_its_submission(
    server: Server, collector: Collector, program: trace.Tracer
) -> None:
    shapes = ([8, 8], [16, 8])
    cases = [{"shape": shape, "dtype": "F32", "params": {"dims": [1, 0]}} for shape in shapes]
    request: Mapping[str, Any] = {**JOB, "cases": cases, "fresh": True}
    with Client(server.url) as gpu:
        with program.start_as_current_span("work") as work:
            job = gpu.jobs.submit("permute", **{k: v for k, v in request.items() if k != "op"})
        job.wait()

    run = collector.wait_for(lambda span: span.attributes.get("warpcall.job") == job.id)
    submission = collector.wait_for(
        lambda span: (
            span.trace_id == f"{work.get_span_context().trace_id:032x}"
            and span.name == "POST /v1/jobs"
            and span.kind == KIND_SERVER
        )
    )
    assert run.links == ((submission.trace_id, submission.span_id),)
    assert run.trace_id != submission.trace_id
    assert (run.name, run.parent_id) == ("job permute", "")
    assert run.attributes["warpcall.state"] == "succeeded"
    parts = collector.children(run)
    assert [part.name for part in parts] == ["queue", "start", "case", "case", "end"]
    assert abs(run.seconds - sum(part.seconds for part in parts)) <= SHARE * run.seconds
    measured = [part for part in parts if part.name == "case"]
    assert [part.attributes["warpcall.case"] for part in measured] == [0, 1]
    for part in measured:
        phases = {phase.name for phase in collector.children(part)}
        assert {"preparing", "correctness", "warmup", "rounds"} <= phases


def test_the_server_that_runs_a_job_makes_its_trace(collector: Collector, tmp_path: Path) -> None:
    value = new_traceparent()
    with running_app(runs_jobs=False, data_dir=tmp_path) as other, other.client() as http:
        headers = {"traceparent": value}
        submitted = http.post("/v1/jobs", json=JOB, headers=headers).json()
        http.post("/v1/jobs", json={**JOB, "fresh": True}, headers={"traceparent": "00-x"})

    settings = {"WARPCALL_DATA_DIR": str(tmp_path), "WARPCALL_DEVICES": "cpu"}
    with running_server({**settings, **BRIEF, **collector.settings}):
        run = collector.wait_for(
            lambda span: span.attributes.get("warpcall.job") == submitted["id"]
        )
        second = collector.wait_for(
            lambda span: span.name == "job permute" and span.began > run.began
        )

    assert run.links == ((value[3:35], value[36:52]),)
    assert second.links == ()


def test_more_requests_than_can_be_traced_are_answered_and_counted() -> None:
    with ExitStack() as stack:
        collector = stack.enter_context(running_collector())
        settings = {"WARPCALL_DEVICES": "cpu", **collector.settings}
        server = stack.enter_context(running_server(settings))
        connection = stack.enter_context(Wire(server))

        ids = {connection.call() for _ in range(400)}

        metrics = server.get("/metrics")[1]
        left_out = int(float(metrics.partition("\nwarpcall_traces_left_out_total ")[2].split()[0]))
        until(lambda: len(ids & {known(span) for span in collector.spans}) == len(ids) - left_out)

    assert 0 < left_out < len(ids)


def known(span: Span) -> object:
    return span.attributes.get("warpcall.request_id")
