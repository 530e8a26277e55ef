"""The process of a job with uploaded implementations: what it loads, and what their errors are."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.service.job_requests import known_tags
from tests.service.uploads.sources import LONG, PLAIN, TRITON, WRONG
from tests.service.worker.processes import frames_of_job
from warpcall_bench.runs.messages import Task

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("forked_programs")]

SPEC = {"shape": [6, 5], "dtype": "F32", "params": {"dims": [1, 0]}}


def measured(folder: Path, sources: dict[str, str], *others: str) -> dict[str, dict[str, Any]]:
    """Results by implementation of one small case; `others` are measured beside the uploads."""
    task: Task = {
        "device": "cpu",
        "modules": {},
        "uploads": [
            {"name": name, "op": "permute", "function": "permute", "source": source}
            for name, source in sources.items()
        ],
        "problem": None,
        "sandboxed": False,
        "op": "permute",
        "implementations": [*others, *sources],
        "precision": "quick",
        "seed": 1,
        "cases": [(0, SPEC)],
        "memory_bytes": 8 << 30,
        "threads": 1,
    }
    frames = frames_of_job(task, folder)
    assert frames[-1] == ("ended", {"class": "ok", "detail": ""})
    (result,) = (value for kind, value in frames if kind == "result")
    return {one["name"]: one for one in result["case"]["implementations"]}


ASKS = """
import triton
from warpcall_kernels.op.launch import runs_kernel

def permute(x, dims):
    assert triton.knobs.runtime.interpret, "uploaded kernels are not interpreted"
    assert not runs_kernel(x), "shipped kernels are interpreted"
    return x.permute(dims).contiguous()
"""


def test_uploads_are_timed_beside_the_shipped_implementations(tmp_path: Path) -> None:
    sources = {
        "ann/plain": PLAIN,
        "ann/long": LONG,
        "ann/fast@3f2a91c0": TRITON,
        "bob/asks": ASKS,
    }

    found = measured(tmp_path, sources, "warpcall")

    assert {name: (one["status"], one["error"]) for name, one in found.items()} == dict.fromkeys(
        ("warpcall", *sources), ("ok", None)
    )
    assert known_tags(found["ann/fast@3f2a91c0"]) == ["interpreted"]
    assert known_tags(found["ann/long"]) == []
    assert found["warpcall"]["tags"] == ["plain torch"]
    assert [one["relative"] for one in found.values()] == [None] * len(found)
    assert {*found["ann/plain"]["tags"]} <= {"unconfirmed"}, "it is too short for our clock"
    assert list(tmp_path.iterdir()) == [], "the sources were deleted"


AHEAD = """
import time
from warpcall_kernels.execution import serve

results = {}
ping = serve._Serving.do_ping


def permute(x, dims):
    if x.data_ptr() in results:
        time.sleep(0.001)
        return results.pop(x.data_ptr())
    time.sleep(0.01)
    return x.permute(dims).contiguous()


def ahead(self, request):
    for call in self._calls.values():
        for inputs in call._sets.first(2):
            results[inputs["x"].data_ptr()] = inputs["x"].permute(1, 0).contiguous()
    return ping(self, request)


serve._Serving.do_ping = ahead
"""


def test_an_upload_cannot_compute_ahead_of_our_clock(tmp_path: Path) -> None:
    found = measured(tmp_path, {"ann/ahead": AHEAD}, "torch")

    assert found["ann/ahead"]["status"] == "wrong_result", "it had the values of the call before"
    assert found["torch"]["status"] == "ok"


# Sources that fail, each with the begin of its error.
FAILING = {
    "absent": (
        "import nothing_like_this\n",
        "ModuleNotFoundError: No module named 'nothing_like_this'",
    ),
    "syntax": ("def permute(x dims):\n    pass\n", "SyntaxError: invalid syntax"),
    "other": ("def other():\n    pass\n", "AttributeError: module"),
    "exits": ("raise SystemExit(3)\n", "UploadedCodeEnded: it raised SystemExit: 3"),
    "exits-later": (
        "def permute(x, dims):\n    raise SystemExit(3)\n",
        "UploadedCodeEnded: it raised System",
    ),
    "raises": ("def permute(x, dims):\n    raise KeyError('a')\n", "KeyError: 'a'"),
    "wrong": (WRONG, "out differs from the reference"),
}


def test_uploads_that_fail_fail_alone(tmp_path: Path) -> None:
    sources = {f"ann/{name}": source for name, (source, _) in FAILING.items()}

    found = measured(tmp_path, {**sources, "ann/plain": PLAIN})

    assert found["ann/plain"]["status"] == "ok"
    for name, (_, error) in FAILING.items():
        assert found[f"ann/{name}"]["status"] != "ok", name
        assert found[f"ann/{name}"]["error"].startswith(error)
