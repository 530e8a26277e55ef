"""Answers of the jobs API, with all the fields that a server sends."""

from __future__ import annotations

from typing import Any

JOB: dict[str, Any] = {
    "id": "j1",
    "user": "alice",
    "op": "permute",
    "implementations": ["warpcall", "torch"],
    "precision": "quick",
    "priority": "normal",
    "tags": ["a"],
    "note": "",
    "name": "",
    "outcome": None,
    "state": "running",
    "exit_class": None,
    "detail": "",
    "cases_total": 1,
    "cases_done": 0,
    "first_case": "permute x=F32[8,8] dims=1,0",
    "attempts": 1,
    "cancel_requested": False,
    "created_at": "2026-01-01T00:00:00.000Z",
    "started_at": "2026-01-01T00:00:01.000Z",
    "finished_at": None,
    "estimated_s": 8,
    "took_s": 0.0,
    "position": None,
    "starts_in_s": 0.0,
    "ends_in_s": 7.5,
    "device": "cpu",
    "environment": None,
    "private": False,
    "node": "0123456789abcdef",
    "host": "",
    "device_name": "",
    "times": None,
    "kind": "benchmark",
    "gpu": "",
    "group": "",
    "has_device": True,
}
SUBMITTED = {**JOB, "reused": False}
DETAILS = {
    **JOB,
    "request": {"op": "permute", "cases": [{}]},
    "fingerprint": None,
    "sources": {},
    "problem_sha256": None,
}
AT = "2026-01-01T00:00:02.000Z"
