"""Benchmark jobs: submit, watch, cancel, read."""
