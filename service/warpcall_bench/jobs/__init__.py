"""Benchmark jobs: submitted, queued fairly, run one at a time on each device, kept."""
