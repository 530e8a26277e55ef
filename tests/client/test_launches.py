"""The decorator `warpcall.launches`: what it stores, and what it refuses at once."""

from __future__ import annotations

import subprocess
import sys
from types import SimpleNamespace
from typing import Any

import pytest

import warpcall
from warpcall.verifications import decorator_of


def kernel(x_ptr: Any) -> None:
    """Stands for a kernel, of which only the name counts."""


GOOD: dict[str, Any] = {
    "kernel": kernel,
    "grid": ["cdiv(rows, 32)"],
    "arguments": {"x_ptr": "x", "BLOCK": 64},
}


def declared(**members: Any) -> dict[str, Any]:
    @warpcall.launches(**members)
    def permute(x: Any, dims: Any) -> Any:
        return x

    found: dict[str, Any] = permute.__warpcall_launches__  # type: ignore[attr-defined]
    return found


def test_a_declaration_is_stored_as_json_at_the_function() -> None:
    tuned = SimpleNamespace(fn=SimpleNamespace(fn=kernel))  # as an autotuner over heuristics

    found = declared(
        requires=("x.ndim == 2",),
        sizes={"rows": "x.shape[0]"},
        scratch={"sums": {"dtype": "F32", "shape": ["rows"], "fill": 0}},
        configurations=[{"BLOCK": 64, "num_warps": 4}],
        launches=[
            warpcall.Launch(**GOOD, num_warps=4),
            {**GOOD, "kernel": tuned, "num_stages": "3"},
            warpcall.Launch(
                kernel="add",
                grid=(1, "rows"),
                block=[256],
                arguments=["sums", None, {"i32": "rows"}],
                shared_bytes="4 * rows",
                cluster=[2, 1, 1],
                early=True,
            ),
        ],
    )

    assert found == {
        "requires": ["x.ndim == 2"],
        "sizes": {"rows": "x.shape[0]"},
        "scratch": {"sums": {"dtype": "F32", "shape": ["rows"], "fill": 0}},
        "configurations": [{"BLOCK": 64, "num_warps": 4}],
        "launches": [
            {**GOOD, "kernel": "kernel", "num_warps": 4},
            {**GOOD, "kernel": "kernel", "num_stages": "3"},
            {
                "kernel": "add",
                "grid": [1, "rows"],
                "block": [256],
                "cluster": [2, 1, 1],
                "arguments": ["sums", None, {"i32": "rows"}],
                "shared_bytes": "4 * rows",
                "early": True,
            },
        ],
    }


@pytest.mark.parametrize(
    ("members", "error"),
    [
        ({"launches": {}}, "launches must be a list of Launch, got {}"),
        ({"launches": []}, "launches must have 1 to 8 entries, got 0"),
        ({"launches": [GOOD] * 9}, "launches must have 1 to 8 entries, got 9"),
        ({"launches": ["kernel"]}, r"launches\[0\] must be a mapping with names, got 'kernel'"),
        ({"launches": [{**GOOD, "blocks": 1}]}, r"launches\[0\] has no member 'blocks', it has kernel"),
        ({"launches": [{"kernel": kernel, "grid": [1]}]}, r"launches\[0\] needs the member arguments"),
        ({"launches": [{**GOOD, "kernel": 3}]}, r"launches\[0\].kernel must be a kernel or its name"),
        ({"launches": [{**GOOD, "grid": "rows"}]}, r"launches\[0\].grid must be a list of 1 to 3"),
        ({"launches": [{**GOOD, "grid": [1.5]}]}, r"launches\[0\].grid\[0\] must be an integer or"),
        ({"launches": [{**GOOD, "grid": [True]}]}, r"launches\[0\].grid\[0\] must be an integer or"),
        ({"launches": [{**GOOD, "num_warps": 2.0}]}, r"launches\[0\].num_warps must be an integer or"),
        ({"launches": [{**GOOD, "arguments": "x"}]}, r"launches\[0\].arguments must be a mapping by name"),
        ({"launches": [{**GOOD, "arguments": {"x": [1]}}]}, r"arguments\['x'\] must be the name of a"),
        ({"launches": [{**GOOD, "arguments": [{"i32": 1, "i64": 2}]}]}, r"arguments\[0\] must be one type"),
        ({"launches": [{**GOOD, "early": 1}]}, r"launches\[0\].early must be True or False, got 1"),
        ({"launches": [GOOD], "requires": "x.ndim == 2"}, "requires must be a list of conditions"),
        ({"launches": [GOOD], "sizes": {"rows": None}}, r"sizes\['rows'\] must be an integer or"),
        ({"launches": [GOOD], "scratch": {"a": 4}}, r"scratch\['a'\] must be a mapping with names"),
        ({"launches": [GOOD], "configurations": [{}] * 65}, "configurations must have at most 64"),
        ({"launches": [GOOD], "configurations": {}}, "configurations must be a list, got {}"),
        ({"launches": [GOOD], "sizes": {"a": "1+" * 9000}}, "must have at most 16384 bytes as JSON"),
    ],
)  # fmt: skip
def test_a_wrong_declaration_is_refused_at_once(members: dict[str, Any], error: str) -> None:
    with pytest.raises((TypeError, ValueError), match=error):
        declared(**members)


def test_a_declaration_as_a_decorator_declares_the_same() -> None:
    found = declared(
        requires=["x.dtype == F32"],
        sizes={"rows": "x.shape[0]"},
        scratch={"sums": {"dtype": "F32", "shape": ["rows", 'cdiv(rows, "4")']}},
        configurations=[{"BLOCK": 64}, {"BLOCK": 128}],
        launches=[{**GOOD, "arguments": {"x_ptr": "x", "flag": True, "other": None, "f": 0.5}}],
    )

    text = decorator_of(found)
    scope: dict[str, Any] = {"warpcall": warpcall}
    exec(f"{text}\ndef permute(x, dims): ...", scope)  # noqa: S102

    assert scope["permute"].__warpcall_launches__ == found


def test_the_decorator_needs_neither_torch_nor_numpy() -> None:
    text = (
        "import sys, warpcall\n"
        "@warpcall.launches(launches=[warpcall.Launch(kernel='a', grid=[1], arguments=[])])\n"
        "def f(): ...\n"
        "print([name for name in ('torch', 'triton', 'numpy') if name in sys.modules])\n"
    )

    done = subprocess.run([sys.executable, "-c", text], capture_output=True, text=True, check=True)

    assert done.stdout == "[]\n"
