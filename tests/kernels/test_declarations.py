"""Declarations: parameters and inputs are checked before anything is computed."""

from __future__ import annotations

import dataclasses
import json
import math
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from warpcall_kernels import InvalidInput, KernelError, Op
from warpcall_kernels.op.cases import Case, Sample, SampleLayout
from warpcall_kernels.op.declaration import MAX_LIST, Input, Meta, Output, Param


def _repeat(x: Tensor, times: int = 2, dims: tuple[int, ...] | None = None) -> Tensor:
    """Repeat along a new first dim."""
    return x.expand(times, *x.shape).contiguous()


def _infer(x: Any, times: int, dims: tuple[int, ...] | None, bias: Any = None) -> dict[str, Meta]:
    if len(x.shape) > 4:
        raise InvalidInput("x", f"x must have at most 4 dims, got {len(x.shape)}")
    return {"out": Meta((times, *x.shape), x.dtype)}


REPEAT = Op(
    name="repeat",
    function=_repeat,
    reference=_repeat,
    infer=_infer,
    bytes_moved=lambda x, times, dims: (1 + times) * int(x.nbytes),
    inputs=(
        Input("x", (torch.float32, torch.bfloat16), "[...]", "what to repeat"),
        Input("bias", (torch.float32,), "[]", "ignored", optional=True),
    ),
    outputs=(Output("out", "[times, ...]", "the repeats"),),
    equivalent="x.expand(times, *x.shape)",
    cases=(),
    params=(
        Param("times", "int", "how often", default=2, minimum=0, maximum=8),
        Param("dims", "ints", "ignored", minimum=-3),
    ),
)


def test_defaults_are_filled_in() -> None:
    assert REPEAT.check_params({}) == {"times": 2, "dims": None}


def test_lists_become_tuples() -> None:
    assert REPEAT.check_params({"times": 0, "dims": [1, -3]}) == {"times": 0, "dims": (1, -3)}


@pytest.mark.parametrize(
    ("params", "argument", "message"),
    [
        ({"tims": 2}, "tims", "repeat has no parameter 'tims', it takes times, dims"),
        ({"times": 9}, "times", "times must be between 0 and 8, got 9"),
        ({"times": -1}, "times", "times must be between 0 and 8, got -1"),
        ({"times": 2.0}, "times", "times must be an integer, got 2.0"),
        ({"times": True}, "times", "times must be an integer, got True"),
        ({"times": "2"}, "times", "times must be an integer, got '2'"),
        ({"dims": 1}, "dims", "dims must be a list of integers, got 1"),
        ({"dims": [0, False]}, "dims", "dims must be a list of integers, got [0, False]"),
        ({"dims": [0, -4]}, "dims", f"dims must be between -3 and {2**63 - 1}, got -4"),
        ({"dims": [0] * 65}, "dims", f"dims must have at most {MAX_LIST} entries, got 65"),
    ],
)
def test_a_wrong_parameter_is_named(params: dict[str, Any], argument: str, message: str) -> None:
    with pytest.raises(InvalidInput) as raised:
        REPEAT.check_params(params)

    assert str(raised.value) == message
    assert raised.value.argument == argument


def test_a_required_parameter_must_be_given_and_not_null() -> None:
    op = dataclasses.replace(REPEAT, params=(Param("dims", "ints", "the dims", required=True),))

    for params in ({}, {"dims": None}):
        with pytest.raises(InvalidInput, match="repeat needs the parameter dims"):
            op.check_params(params)


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf, 10**400])
def test_a_float_must_be_finite(value: float) -> None:
    with pytest.raises(InvalidInput, match="scale must be finite"):
        Param("scale", "float", "a factor").check(value)


def test_an_integer_is_a_float_too() -> None:
    checked = Param("scale", "float", "a factor").check(3)

    assert isinstance(checked, float)
    assert checked == 3.0


@pytest.mark.parametrize("value", [0, 1, "true", [True]])
def test_a_boolean_is_nothing_else(value: object) -> None:
    with pytest.raises(InvalidInput, match="invert must be a boolean"):
        Param("invert", "bool", "whether").check(value)


def test_a_message_quotes_only_the_start_of_what_came() -> None:
    with pytest.raises(InvalidInput) as raised:
        REPEAT.check_params({"times": "9" * 10**6})

    assert len(str(raised.value)) < 120


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=8,
)


@given(st.sampled_from(["bool", "int", "float", "ints"]), JSON)
def test_any_json_is_either_canonical_or_refused(kind: Any, value: object) -> None:
    param = Param("p", kind, "anything", required=True)

    try:
        checked = param.check(value)
    except InvalidInput:
        return

    expected = {"bool": bool, "int": int, "float": float, "ints": tuple}[kind]
    assert type(checked) is expected
    assert param.check(checked) == checked


def test_the_outputs_follow_from_shapes_and_dtypes() -> None:
    x = Meta((3, 4), torch.bfloat16)

    assert REPEAT.check({"x": x}, REPEAT.check_params({"times": 5})) == {
        "out": Meta((5, 3, 4), torch.bfloat16)
    }


@pytest.mark.parametrize(
    ("inputs", "argument", "message"),
    [
        ({}, "x", "repeat needs the input x"),
        (
            {"x": Meta((1,), torch.float32), "y": Meta((1,), torch.float32)},
            "y",
            "repeat has no input 'y', it takes x, bias",
        ),
        (
            {"x": Meta((1,), torch.int8)},
            "x",
            "x must be one of float32, bfloat16, got int8",
        ),
        ({"x": Meta((1,) * 5, torch.float32)}, "x", "x must have at most 4 dims, got 5"),
    ],
)
def test_a_wrong_input_is_named(inputs: dict[str, Meta], argument: str, message: str) -> None:
    with pytest.raises(InvalidInput) as raised:
        REPEAT.check(inputs, REPEAT.check_params({}))

    assert str(raised.value) == message
    assert raised.value.argument == argument


def test_invalid_input_is_one_of_our_errors_and_a_value_error() -> None:
    assert issubclass(InvalidInput, KernelError)
    assert issubclass(InvalidInput, ValueError)


def test_compute_runs_and_names_the_outputs() -> None:
    computed = REPEAT.compute({"x": torch.ones(3)}, REPEAT.check_params({"times": 4}))

    assert computed.keys() == {"out"}
    assert torch.equal(computed["out"], torch.ones(4, 3))


def test_the_schema_of_a_parameter_says_its_bounds() -> None:
    described = json.loads(json.dumps(REPEAT.describe()))

    assert [p["schema"] for p in described["params"]] == [
        {"type": "integer", "description": "how often", "minimum": 0, "maximum": 8, "default": 2},
        {
            "type": "array",
            "description": "ignored",
            "items": {"type": "integer", "minimum": -3},
            "maxItems": MAX_LIST,
        },
    ]


LAYOUTS: list[SampleLayout] = ["contiguous", "transposed", "strided", "offset", "expanded"]


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize(
    "dtype",
    [torch.bool, torch.uint8, torch.int64, torch.bfloat16, torch.float64, torch.complex64],
    ids=str,
)
def test_a_sample_has_its_shape_dtype_and_layout(dtype: torch.dtype, layout: SampleLayout) -> None:
    sample = Sample((4, 6), dtype, layout=layout)

    drawn = sample.draw(torch.Generator().manual_seed(0))
    again = sample.draw(torch.Generator().manual_seed(0))

    assert (drawn.shape, drawn.dtype) == ((4, 6), dtype)
    assert torch.equal(drawn, again)
    strides = {"transposed": (1, 4), "strided": (12, 2), "expanded": (0, 1)}
    assert drawn.stride() == strides.get(layout, (6, 1))
    assert drawn.storage_offset() == (layout == "offset")


def test_special_samples_hold_every_special_value() -> None:
    drawn = Sample((1000,), torch.float32, "special").draw(torch.Generator().manual_seed(0))

    assert drawn.isnan().any()
    assert drawn.isposinf().any()
    assert drawn.isneginf().any()
    assert (drawn.view(torch.int32) == 0).any()
    assert (drawn.view(torch.int32) == -(2**31)).any()


@pytest.mark.parametrize("dtype", [torch.int8, torch.uint8, torch.int16, torch.int32], ids=str)
def test_integer_samples_reach_over_their_whole_range(dtype: torch.dtype) -> None:
    drawn = Sample((4096,), dtype).draw(torch.Generator().manual_seed(0)).double()

    low, high = torch.iinfo(dtype).min, torch.iinfo(dtype).max
    assert drawn.min() < low + (high - low) / 100
    assert drawn.max() > high - (high - low) / 100


def test_a_case_draws_the_same_tensors_every_time() -> None:
    case = Case(
        "two", {"a": Sample((), torch.int32), "b": Sample((0, 3), torch.float16)}, {}, seed=7
    )

    first, second = case.tensors(), case.tensors()

    assert first.keys() == {"a", "b"}
    assert all(torch.equal(first[name], second[name]) for name in first)
