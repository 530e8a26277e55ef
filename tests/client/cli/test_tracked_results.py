"""Results as files of tools that track benchmarks."""

from __future__ import annotations

import json
from dataclasses import fields
from typing import Any

from warpcall._jobs.tracked import bencher, github_action_benchmark
from warpcall.jobs.results import Measurement, Results

EMPTY: dict[str, Any] = {field.name: None for field in fields(Measurement)}
TIMED: dict[str, Any] = {
    "median_us": 2.0, "ci_low_us": 1.5, "ci_high_us": 2.25, "gb_per_s": 123.4, "share_of_limit": 0.5
}  # fmt: skip
WITHOUT = [
    {"median_us": 2.0, "tags": ["interpreted"]},
    {"median_us": 2.0, "tags": ["suspect"]},
    {"median_us": 2.0, "status": "wrong_result"},
    {},  # was only checked
    {"median_us": 1.0, "implementation": "copy"},
]


def found(*rows: dict[str, Any]) -> Results:
    known = {**EMPTY, "case": "permute x=F32[8,8] dims=1,0", "implementation": "ann/mine", "status": "ok", "tags": []}  # fmt: skip
    return Results(
        id="j1", state="succeeded", environment="H200", fingerprint=None, remarks=[],
        measurements=[Measurement(**{**known, **row}) for row in rows], cases=[],
    )  # fmt: skip


def test_bencher_gets_nanoseconds_with_their_interval() -> None:
    alone = {"median_us": 3.5, "implementation": "torch"}

    assert json.loads(bencher(found(TIMED, alone, *WITHOUT))) == {
        "permute x=F32[8,8] dims=1,0 / ann/mine": {
            "latency": {"value": 2000.0, "lower_value": 1500.0, "upper_value": 2250.0}
        },
        "permute x=F32[8,8] dims=1,0 / torch": {"latency": {"value": 3500.0}},
    }
    assert json.loads(bencher(found(*WITHOUT))) == {}


def test_the_github_action_gets_a_list_of_times_of_which_smaller_ones_are_better() -> None:
    assert json.loads(github_action_benchmark(found(TIMED, {"median_us": 3.5}, *WITHOUT))) == [
        {
            "name": "permute x=F32[8,8] dims=1,0 / ann/mine",
            "unit": "us",
            "value": 2.0,
            "range": "± 0.5",
            "extra": "123 GB/s, 50 % of a copy's speed",
        },
        {"name": "permute x=F32[8,8] dims=1,0 / ann/mine", "unit": "us", "value": 3.5},
    ]
    assert json.loads(github_action_benchmark(found(*WITHOUT))) == []
