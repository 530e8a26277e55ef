"""Spans of the client's requests: when they are made, and what the server gets of them.

Each program is a process of its own: what OpenTelemetry's SDK is set to stays until a process ends.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest

from tests.client.scripted import ScriptedServer, Visit, well
from tests.service.tracing.collector import running_collector

SAMPLED = 1  # of the flags in a traceparent
CALL = """
import sys, numpy, warpcall
x = numpy.zeros((2, 3), numpy.float32)
def call():
    with warpcall.Client(sys.argv[1], retries=2) as gpu:
        gpu.permute(x, dims=(1, 0))
"""
AWAITED = """
import asyncio, sys, numpy, warpcall
x = numpy.zeros((2, 3), numpy.float32)
def call():
    async def work():
        async with warpcall.AsyncClient(sys.argv[1]) as gpu:
            await gpu.permute(x, dims=(1, 0))
    asyncio.run(work())
"""
NOTHING = "call(); assert not [name for name in sys.modules if name.startswith('opentelemetry')]"
OWN = """
from opentelemetry import trace
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor, ConsoleSpanExporter
from opentelemetry.sdk.trace.sampling import ALWAYS_OFF
"""


class Headers:
    """Keeps the headers of requests, and answers these."""

    def __init__(self) -> None:
        self.seen: list[Mapping[str, str]] = []

    def __call__(self, visit: Visit) -> None:
        self.seen.append(visit.headers)
        well(visit)


def run(program: str, url: str, **variables: str) -> str:
    """What a program prints."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("OTEL_")}
    done = subprocess.run(
        [sys.executable, "-c", program, url],
        env={**kept, **variables},
        check=False,
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout


@pytest.mark.parametrize(
    ("call", "exporter"),
    [(CALL, ""), (AWAITED, ""), pytest.param(CALL, "none", marks=pytest.mark.slow)],
)
def test_without_a_span_or_variables_nothing_is_imported_or_sent(call: str, exporter: str) -> None:
    headers = Headers()
    with ScriptedServer(headers) as server:
        run(call + NOTHING, server.url, OTEL_TRACES_EXPORTER=exporter)

    assert len(headers.seen) == 1
    assert not {"traceparent", "tracestate", "baggage"} & {*headers.seen[0]}


@pytest.mark.parametrize("call", [CALL, AWAITED])
def test_variables_alone_make_spans_which_are_sent_before_the_program_ends(call: str) -> None:
    headers = Headers()
    with running_collector() as collector, ScriptedServer(headers) as server:
        run(f"{call}call(); call()", server.url, OTEL_EXPORTER_OTLP_ENDPOINT=collector.url)

    sent = [re.findall("[0-9a-f]+", one["traceparent"]) for one in headers.seen]
    assert [(span.trace_id, span.span_id) for span in collector.spans] == [
        (trace_id, span_id) for _, trace_id, span_id, _ in sent
    ]
    assert all(int(flags, 16) & SAMPLED for *_, flags in sent)
    assert len({span.trace_id for span in collector.spans}) == 2
    assert {span.service for span in collector.spans} == {"warpcall-client"}


def test_the_span_of_the_program_is_the_parent_and_its_provider_is_used() -> None:
    program = f"""{CALL}{OWN}
provider = TracerProvider()
trace.set_tracer_provider(provider)
provider.add_span_processor(SimpleSpanProcessor(ConsoleSpanExporter(formatter=lambda s:
    f"{{s.name}} {{s.parent.span_id if s.parent else 0:016x}} {{s.context.span_id:016x}}\\n")))
with provider.get_tracer("mine").start_as_current_span("mine"):
    call()
call()
"""
    headers = Headers()
    with ScriptedServer(headers) as server:
        inner, mine = [line.split() for line in run(program, server.url).splitlines()]

    assert (inner[:2], mine[:3]) == (["POST", "permute"], ["mine", "0" * 16, inner[2]])
    assert headers.seen[0]["traceparent"].split("-")[2] == inner[3]
    assert "traceparent" not in headers.seen[1]  # without an active span


@pytest.mark.slow
def test_a_span_that_is_not_sampled_is_passed_on_as_such() -> None:
    program = f"""{CALL}{OWN}
trace.set_tracer_provider(TracerProvider(sampler=ALWAYS_OFF))
with trace.get_tracer("mine").start_as_current_span("mine"):
    call()
"""
    headers = Headers()
    with ScriptedServer(headers) as server:
        run(program, server.url)

    flags = headers.seen[0]["traceparent"].rpartition("-")[2]
    assert not int(flags, 16) & SAMPLED


@pytest.mark.slow
def test_a_call_that_is_repeated_is_one_span() -> None:
    headers = Headers()

    def busy(visit: Visit) -> None:
        headers.seen.append(visit.headers)
        visit.body()
        visit.answer(503, b"{}", {"Retry-After": "0"})

    with running_collector() as collector, ScriptedServer(busy, headers) as server:
        run(f"{CALL}call()", server.url, OTEL_EXPORTER_OTLP_ENDPOINT=collector.url)

    assert len(headers.seen) == 2
    assert len({one["traceparent"] for one in headers.seen}) == 1
    assert [span.attributes["http.response.status_code"] for span in collector.spans] == [200]


@pytest.mark.slow
def test_without_the_extra_the_variables_change_nothing(tmp_path: Path) -> None:
    in_its_place = tmp_path / "opentelemetry/exporter"
    in_its_place.mkdir(parents=True)
    (in_its_place / "__init__.py").touch()
    path = os.pathsep.join([str(tmp_path), *filter(None, [os.environ.get("PYTHONPATH")])])

    headers = Headers()
    with ScriptedServer(headers) as server:
        run(
            f"{CALL}call()",
            server.url,
            OTEL_EXPORTER_OTLP_ENDPOINT="http://127.0.0.1:4318",
            PYTHONPATH=path,
        )

    assert "traceparent" not in headers.seen[0]


@pytest.mark.slow
def test_a_variable_that_cannot_be_used_is_an_error_of_the_client() -> None:
    program = f"""{CALL}
try:
    call()
except warpcall.InvalidInput as error:
    print(error)
"""
    variables = {"OTEL_TRACES_EXPORTER": "otlp", "OTEL_BSP_MAX_EXPORT_BATCH_SIZE": "5000"}
    with ScriptedServer(well) as server:
        said = run(program, server.url, **variables)

    assert said.startswith("a variable OTEL_* cannot be used: ")
