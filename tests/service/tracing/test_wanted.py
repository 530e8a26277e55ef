"""When traces are made: what the variables of OpenTelemetry say, and what is installed."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

import demo.server
from tests.servers import SMALL, running_server
from tests.service.tracing.collector import running_collector
from tests.waiting import until
from warpcall.telemetry import asks_for_traces, why_not

URL = "http://127.0.0.1:4318"
ENDPOINT = {"OTEL_EXPORTER_OTLP_ENDPOINT": URL}
CPU = {"WARPCALL_DEVICES": "cpu"}


@pytest.mark.parametrize(
    ("variables", "asked"),
    [
        ({}, False),
        (ENDPOINT, True),
        ({"OTEL_EXPORTER_OTLP_TRACES_ENDPOINT": f"{URL}/v1/traces"}, True),
        ({"OTEL_EXPORTER_OTLP_ENDPOINT": ""}, False),
        ({"OTEL_TRACES_EXPORTER": "otlp"}, True),
        ({"OTEL_TRACES_EXPORTER": "none", **ENDPOINT}, False),
        ({"OTEL_SDK_DISABLED": "True", **ENDPOINT}, False),
        ({"OTEL_EXPORTER_OTLP_METRICS_ENDPOINT": URL, "OTEL_SERVICE_NAME": "gpu"}, False),
    ],
)
def test_traces_are_made_if_the_variables_ask(variables: dict[str, str], asked: bool) -> None:
    assert asks_for_traces(variables) is asked


@pytest.mark.parametrize(
    ("variables", "reason"),
    [
        (ENDPOINT, ""),
        ({"OTEL_TRACES_EXPORTER": "console,otlp"}, ""),
        ({"OTEL_TRACES_EXPORTER": "zipkin"}, "OTEL_TRACES_EXPORTER must be otlp or none"),
        ({"OTEL_EXPORTER_OTLP_PROTOCOL": "grpc"}, "OTEL_EXPORTER_OTLP_PROTOCOL must be http"),
        (
            {
                "OTEL_EXPORTER_OTLP_PROTOCOL": "grpc",
                "OTEL_EXPORTER_OTLP_TRACES_PROTOCOL": "http/protobuf",
            },
            "",
        ),
    ],
)
def test_what_cannot_be_done_has_a_reason(variables: dict[str, str], reason: str) -> None:
    found = why_not(variables)

    assert found.startswith(reason)
    assert bool(found) is bool(reason)


@pytest.mark.slow
def test_nothing_is_imported_where_nothing_asks() -> None:
    imports = {"PYTHONPROFILEIMPORTTIME": "1"}  # Python writes the name of each module
    with running_server({**CPU, **imports}) as server:
        server.get("/v1/kernels")

        log = server.log.read_text()
    assert "warpcall_service.tracing.wanted" in log
    assert "opentelemetry.sdk" not in log  # FastAPI imports the API
    assert "opentelemetry.exporter" not in log


@pytest.mark.slow
def test_a_server_without_the_extra_says_so_and_serves(tmp_path: Path) -> None:
    in_its_place = tmp_path / "opentelemetry/exporter"
    in_its_place.mkdir(parents=True)
    (in_its_place / "__init__.py").touch()
    path = os.pathsep.join([str(tmp_path), *filter(None, [os.environ.get("PYTHONPATH")])])

    # Not a fork, which has other paths.
    with demo.server.running_server({**SMALL, **CPU, **ENDPOINT, "PYTHONPATH": path}) as server:
        status, _ = server.get("/v1/kernels")
        log = server.log.read_text()

    assert status == 200
    assert "no traces are made: OpenTelemetry is not installed; the extra `telemetry` has it" in log


def test_a_server_serves_and_stops_while_no_collector_answers() -> None:
    with running_collector() as collector:
        settings = collector.settings
    with running_server({**CPU, **settings}) as server:
        assert server.get("/v1/kernels")[0] == 200
        until(lambda: "opentelemetry" in server.log.read_text())
        log = server.log.read_text()

    assert "Traceback" not in log


def test_a_variable_that_cannot_be_used_stops_the_start() -> None:
    wrong = {"OTEL_BSP_MAX_EXPORT_BATCH_SIZE": "5000"}  # more than the queue may have

    with (
        pytest.raises(RuntimeError, match=r"a variable OTEL_\* cannot be used: .*batch"),
        running_server({**CPU, **ENDPOINT, **wrong}),
    ):
        raise AssertionError("it started")
