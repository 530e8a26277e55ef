"""Declarations of launches: what they say of a case, and what is refused, member by member."""

from __future__ import annotations

import contextlib
import copy
import json
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from warpcall_kernels.verified.declaration import Declaration, InvalidDeclaration, facts
from warpcall_kernels.verified.expressions import Names

TRITON = {
    "requires": ["x.dtype == BF16", "x.stride[1] == 1 and BLOCK <= 128"],
    "sizes": {"rows": "x.shape[0]", "columns": "x.shape[1]", "blocks": "cdiv(columns, BLOCK)"},
    "scratch": {"partial": {"dtype": "F32", "shape": ["rows", "blocks"], "fill": 0}},
    "configurations": [{"BLOCK": 64, "num_warps": 4}, {"BLOCK": 128, "num_warps": 8}],
    "launches": [
        {
            "kernel": "sums",
            "grid": ["blocks", "rows"],
            "arguments": {"x": "x", "partial": "partial", "columns": "columns", "BLOCK": "BLOCK"},
        },
        {
            "kernel": "finish",
            "grid": ["rows"],
            "arguments": {"partial": "partial", "out": "out", "n": "partial.shape[1]"},
            "num_warps": "min(8, next_power_of_2(cdiv(blocks, 32)))",
            "num_stages": 3,
        },
    ],
}
CUDA = {
    "launches": [
        {
            "kernel": "sum",
            "grid": ["cdiv(x.numel, 256)"],
            "block": [16, "x.itemsize", 1],
            "arguments": ["x", "out", "null", {"i32": "x.shape[0]"}, {"fp32": "scale"}],
            "shared_bytes": "4 * x.shape[1]",
            "cluster": [2],
            "early": True,
            "cooperative": False,
        }
    ],
}
NAMES: Names = {
    "x": facts((10, 300), torch.bfloat16),
    "out": facts((10,), torch.float32),
    "scale": 0.5,
}


def test_a_declaration_has_the_numbers_of_a_case_for_each_configuration() -> None:
    declaration = Declaration.from_json(json.loads(json.dumps(TRITON)))

    first, second = declaration.scopes(NAMES)

    assert (first.label, second.label) == ("BLOCK=64, num_warps=4", "BLOCK=128, num_warps=8")
    assert first.scratch == {"partial": ((10, 5), torch.float32, 0)}
    assert second.scratch == {"partial": ((10, 3), torch.float32, 0)}
    sums, finish = declaration.launches
    assert [sums.grid_of(one.names) for one in (first, second)] == [(5, 10, 1), (3, 10, 1)]
    assert [one.names["blocks"] for one in (first, second)] == [5, 3]
    assert sums.options_of(second.names) == {"num_warps": 8}
    assert finish.options_of(second.names) == {"num_warps": 1, "num_stages": 3}
    assert finish.arguments[2].name == "n"
    assert finish.arguments[2].value.value(first.names) == 5
    assert not declaration.for_cuda


def test_a_declaration_for_cuda_has_arguments_in_order() -> None:
    declaration = Declaration.from_json(CUDA)

    (scope,) = declaration.scopes(NAMES)

    (launch,) = declaration.launches
    assert declaration.for_cuda
    assert scope.label == ""
    assert launch.grid_of(scope.names) == (12, 1, 1)
    assert launch.block_of(scope.names) == (16, 2, 1)
    assert launch.cluster_of(scope.names) == (2, 1, 1)
    assert launch.shared_bytes_of(scope.names) == 1200
    assert [one.kind for one in launch.arguments] == ["*", "*", "*", "i32", "fp32"]
    assert [one.value.value(scope.names) for one in launch.arguments[2:]] == [None, 10, 0.5]
    assert (launch.early, launch.cooperative) == (True, False)


def evaluate(declaration: Declaration) -> None:
    for scope in declaration.scopes(NAMES):
        for launch in declaration.launches:
            launch.grid_of(scope.names)
            launch.options_of(scope.names)
            launch.shared_bytes_of(scope.names)
            launch.cluster_of(scope.names)
            if launch.for_cuda:
                launch.block_of(scope.names)


def changed(data: Any, path: str, value: Any) -> Any:
    """A copy in which one member has another value; "-" takes it out."""
    made = copy.deepcopy(data)
    at = made
    *way, last = [int(step) if step.isdigit() else step for step in path.split(".")]
    for step in way:
        at = at[step]
    if value == "-":
        del at[last]
    else:
        at[last] = value
    return made


@pytest.mark.parametrize(
    ("data", "text"),
    [
        ([], "the declaration must be an object"),
        ({}, "the declaration lacks launches"),
        (changed(TRITON, "more", 1), "the declaration has no member 'more'; there are launches, requires"),
        (changed(TRITON, "launches", []), "launches must be a list of 1 to 8"),
        (changed(TRITON, "launches", [TRITON["launches"][0]] * 9), "launches must be a list of 1 to 8"),  # type: ignore[index]
        (changed(TRITON, "requires", "true"), "requires must be a list of 0 to 32"),
        (changed(TRITON, "requires", ["true"] * 33), "requires must be a list of 0 to 32"),
        (changed(TRITON, "requires.1", "a b"), "requires\\[1\\]: 'a b' is no expression"),
        (changed(TRITON, "sizes.F32", 1), "sizes: a name has letters"),
        (changed(TRITON, "sizes", [1]), "sizes must be an object"),
        (changed(TRITON, "sizes", {f"n{n}": 1 for n in range(65)}), "at most 64"),
        (changed(TRITON, "sizes", {"2x": 1}), "sizes: a name has letters"),
        (changed(TRITON, "sizes", {"min": 1}), "sizes: a name has letters"),
        (changed(TRITON, "sizes", {"a" * 65: 1}), "sizes: a name has letters"),
        (changed(TRITON, "sizes.rows", "x.shape["), "sizes.rows: 'x.shape\\[' is no expression"),
        (changed(TRITON, "sizes.BLOCK", 3), "sizes.BLOCK: the name is taken"),
        (changed(TRITON, "sizes.partial", 3), "sizes.partial: the name is taken"),
        (changed(TRITON, "scratch.BLOCK", TRITON["scratch"]["partial"]), "scratch.BLOCK: the name is taken"),  # type: ignore[index]
        (changed(TRITON, "scratch.partial.dtype", "F31"), "scratch.partial.dtype must be one of F64"),
        (changed(TRITON, "scratch.partial.dtype", ["F32"]), "scratch.partial.dtype must be one of F64"),
        (changed(TRITON, "scratch.partial.shape", 3), "scratch.partial.shape must be a list of 0 to 32"),
        (changed(TRITON, "scratch.partial.shape", "-"), "scratch.partial lacks shape"),
        (changed(TRITON, "scratch.partial.fill", "0"), "scratch.partial.fill must be a number"),
        (changed(changed(TRITON, "scratch.partial.fill", 1), "scratch.partial.dtype", "I64"), "scratch.partial.fill: .* 0 or -1 only"),
        (changed(TRITON, "configurations", {}), "configurations must be a list of 0 to 64"),
        (changed(TRITON, "configurations", [{"A": 1}] * 65), "configurations must be a list of 0 to 64"),
        (changed(TRITON, "configurations.1", {"A": 1}), "configurations: each must have the same names"),
        (changed(TRITON, "configurations.1.BLOCK", "64"), "configurations\\[1\\].BLOCK must be a number"),
        (changed(TRITON, "configurations.1.BLOCK", 1 << 63), "configurations\\[1\\].BLOCK must be a number"),
        (changed(TRITON, "configurations.1.num_warps", 64), "configurations\\[1\\].num_warps must be an integer from 1 to 32"),
        (changed(TRITON, "launches.0.kernel", "a b"), "launches\\[0\\].kernel must be the name"),
        (changed(TRITON, "launches.0.kernel", 3), "launches\\[0\\].kernel must be the name"),
        (changed(TRITON, "launches.0.grid", []), "launches\\[0\\].grid must be a list of 1 to 3"),
        (changed(TRITON, "launches.0.grid", [1] * 4), "launches\\[0\\].grid must be a list of 1 to 3"),
        (changed(TRITON, "launches.0.grid.1", "a b"), "launches\\[0\\].grid\\[1\\]: 'a b' is no expression"),
        (changed(TRITON, "launches.0.arguments", ["x"]), "launches\\[0\\].arguments must be an object"),
        (changed(TRITON, "launches.0.arguments.x", {}), "launches\\[0\\].arguments.x: an expression is"),
        (changed(TRITON, "launches.0.shared_bytes", 3), "launches\\[0\\].shared_bytes is for kernels in CUDA"),
        (changed(TRITON, "launches.0.block", [3]), "arguments must be a list"),
        (changed(TRITON, "launches.1", CUDA["launches"][0]), "all have a block"),
        (changed(CUDA, "launches.0.num_warps", 3), "launches\\[0\\].num_warps is for kernels in Triton"),
        (changed(CUDA, "launches.0.block", []), "launches\\[0\\].block must be a list of 1 to 3"),
        (changed(CUDA, "launches.0.early", 1), "launches\\[0\\].early must be true or false"),
        (changed(CUDA, "launches.0.arguments.3", {"int": 1}), "launches\\[0\\].arguments\\[3\\]: a number has its type"),
        (changed(CUDA, "launches.0.arguments.3", {"*": 1}), "launches\\[0\\].arguments\\[3\\]: a number has its type"),
        (changed(CUDA, "launches.0.arguments.3", {"i32": 1, "i64": 1}), "a number has its type"),
        (changed(CUDA, "launches.0.arguments", ["x"] * 129), "arguments must be a list of 0 to 128"),
    ],
)  # fmt: skip
def test_what_is_wrong_in_a_declaration_is_named(data: Any, text: str) -> None:
    with pytest.raises(InvalidDeclaration, match=text):
        Declaration.from_json(data)


@pytest.mark.parametrize(
    ("data", "text"),
    [
        (changed(TRITON, "sizes.rows", "y.shape[0]"), "sizes.rows: .* y is not known; there are BLOCK"),
        (changed(TRITON, "sizes.rows", "x"), "sizes.rows must be a number, and is a tensor"),
        (changed(TRITON, "sizes.rows", "x.dtype"), "sizes.rows must be a number, and is a dtype"),
        (changed(TRITON, "requires.0", "x.dtype == F16"), "requires\\[0\\]: the kernels are not for this case: 'x.dtype == F16' is not true"),
        (changed(TRITON, "requires.1", "rows"), "requires\\[1\\]: .* 'rows' is not true"),
        (changed(TRITON, "requires.1", "x.dtype < F16"), "requires\\[1\\]: .* have no order"),
        (changed(TRITON, "requires.1", "x.dtype + 1 == 1"), "requires\\[1\\]: .* is no number"),
        (changed(TRITON, "sizes.scale", 1), "scale: an input, output or parameter"),
        (changed(TRITON, "scratch.partial.shape", [-1]), "scratch.partial.shape\\[0\\]: '-1' must be an integer"),
        (changed(TRITON, "scratch.partial.shape", [1 << 30, 1 << 20]), "scratch.partial has more than"),
        (changed(TRITON, "launches.0.grid", [1, 65536]), "launches\\[0\\].grid\\[1\\]: '65536' must be an integer from 0 to 65535"),
        (changed(TRITON, "launches.1.num_warps", 33), "launches\\[1\\].num_warps: '33' must be an integer from 1 to 32"),
        (changed(CUDA, "launches.0.block", [0]), "launches\\[0\\].block\\[0\\]: '0' must be an integer from 1"),
        (changed(CUDA, "launches.0.block", [64, 32]), "launches\\[0\\].block: the product"),
        (changed(CUDA, "launches.0.cluster", [4, 8]), "launches\\[0\\].cluster: the product"),
        (changed(CUDA, "launches.0.shared_bytes", 1 << 19), "launches\\[0\\].shared_bytes: '524288' must be"),
    ],
)  # fmt: skip
def test_what_has_no_value_for_a_case_is_named(data: Any, text: str) -> None:
    declaration = Declaration.from_json(data)

    with pytest.raises(InvalidDeclaration, match=text):
        evaluate(declaration)


ANY = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=20) | st.sampled_from(["x", "rows", "x.shape[0]", "BLOCK"]),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner, max_size=4),
    max_leaves=12,
)  # fmt: skip


@settings(max_examples=100, deadline=None)
@given(st.data())
def test_any_data_is_a_declaration_or_refused(data: st.DataObject) -> None:
    made: Any = copy.deepcopy(data.draw(st.sampled_from([TRITON, CUDA])))
    for _ in range(data.draw(st.integers(1, 3))):
        at = made
        while True:
            keys = list(at) if isinstance(at, dict) else list(range(len(at)))
            if not keys:
                break
            key = data.draw(st.sampled_from(keys))
            if isinstance(at[key], dict | list) and at[key] and data.draw(st.booleans()):
                at = at[key]
                continue
            at[key] = data.draw(ANY)
            break

    with contextlib.suppress(InvalidDeclaration):
        evaluate(Declaration.from_json(made))
