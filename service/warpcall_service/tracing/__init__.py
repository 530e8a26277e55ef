"""Traces of requests and of jobs, which go to a collector of OpenTelemetry by OTLP."""
