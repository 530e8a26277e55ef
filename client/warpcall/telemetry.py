"""Whether the standard variables of OpenTelemetry ask for traces, for the client and the server.

Nothing here imports OpenTelemetry.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Mapping

EXPORTER = "OTEL_TRACES_EXPORTER"
ENDPOINTS = ("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "OTEL_EXPORTER_OTLP_ENDPOINT")
PROTOCOLS = ("OTEL_EXPORTER_OTLP_TRACES_PROTOCOL", "OTEL_EXPORTER_OTLP_PROTOCOL")
PROTOCOL = "http/protobuf"
NEEDED = "opentelemetry.exporter.otlp.proto.http"  # it needs the SDK and the API


def asks_for_traces(variables: Mapping[str, str]) -> bool:
    """Whether the variables name an exporter of traces, or where a collector is.

    `OTEL_SDK_DISABLED=true` and `OTEL_TRACES_EXPORTER=none` have precedence.
    """
    if variables.get("OTEL_SDK_DISABLED", "").strip().lower() == "true":
        return False
    if exporter := variables.get(EXPORTER, "").strip():
        return exporter != "none"
    return any(variables.get(name, "").strip() for name in ENDPOINTS)


def why_not(variables: Mapping[str, str]) -> str:
    """Why traces that the variables ask for cannot be made; empty if they can."""
    exporters = [name.strip() for name in variables.get(EXPORTER, "otlp").split(",")]
    if exporters != [""] and "otlp" not in exporters:
        return f"{EXPORTER} must be otlp or none, got {variables[EXPORTER]!r:.60}"
    for name in PROTOCOLS:
        if given := variables.get(name, "").strip():
            if given != PROTOCOL:
                return f"{name} must be {PROTOCOL}, got {given!r:.60}"
            break  # the first one has precedence
    if not _is_installed():
        return "OpenTelemetry is not installed; the extra `telemetry` has it"
    return ""


def _is_installed() -> bool:
    try:
        return importlib.util.find_spec(NEEDED) is not None
    except ModuleNotFoundError:
        return False
