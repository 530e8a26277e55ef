"""Expressions of declarations: their values, what is refused, and that any text ends at once."""

from __future__ import annotations

import string

import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st

from warpcall_kernels.verified.declaration import bit_pattern, facts
from warpcall_kernels.verified.expressions import (
    MOST_CHARS,
    MOST_NUMBER,
    Expression,
    InvalidExpression,
    Names,
    Value,
)

NAMES: Names = {
    "x": facts((3, 40, 5), torch.float16, (400, 10, 2)),
    "out": facts((3, 0), torch.float32),
    "bias": None,
    "dims": (2, 0, 1),
    "rows": 100,
    "scale": 0.5,
    "causal": True,
    "BLOCK": 64,
}


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("7", 7),
        ("-rows", -100),
        ("1 + 2 * 3 - 4", 3),
        ("(1 + 2) * 3", 9),
        ("rows // 7 + rows % 7", 16),
        ("-7 // 2", -4),
        ("cdiv(rows, BLOCK)", 2),
        ("cdiv(0, BLOCK)", 0),
        ("min(rows, 7, 3) + max(1, 2)", 5),
        ("next_power_of_2(rows)", 128),
        ("next_power_of_2(128)", 128),
        ("next_power_of_2(0)", 1),
        ("x.shape[0] * x.shape[-1]", 15),
        ("x.stride[1]", 10),
        ("x.numel", 600),
        ("x.ndim + x.itemsize", 5),
        ("out.numel", 0),
        ("out.stride[0]", 1),
        ("dims[1]", 0),
        ("x.shape[dims[0]]", 5),
        ("dims", (2, 0, 1)),
        ("scale * 2", 1.0),
        ("1e-3", 1e-3),
        ("rows if causal else 0", 100),
        ("0 if rows > 200 else 1 if rows > 50 else 2", 1),
        ("1 if bias == null else 2", 1),
        ("x != None", True),
        ("1 <= rows < 200 and not rows == 3", True),
        ("rows < 0 or causal", True),
        ("true + True", 2),
        ("x.dtype == F16", True),
        ("x.dtype == BF16 or out.dtype != F32", False),
        ("bias", None),
        ("  rows  ", 100),
        (12, 12),
        (1.5, 1.5),
        (True, True),
        (None, None),
    ],
)
def test_expressions_have_the_values_that_python_gives(text: object, value: Value) -> None:
    found = Expression.parse(text).value(NAMES)

    assert found == value
    assert type(found) is type(value)


def test_only_what_is_asked_for_is_computed() -> None:
    assert Expression.parse("bias.shape[0] if bias != null else 0").value(NAMES) == 0
    assert Expression.parse("bias != null and bias.shape[0] > 3").value(NAMES) is False


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("", "at most 500 characters"),
        ("1 + " * 200 + "1", "at most 500 characters"),
        ([1], "at most 500 characters"),
        ("rows +", "is no expression"),
        ("rows rows", "is no expression"),
        ("'rows'", "has characters"),
        ("0x10", "has characters"),
        ("1_000", "has characters"),
        ("1j", "has characters"),
        ("rows @ 2", "has characters"),
        ("rows / 2", "has characters"),
        ("rows ** 2", "has a part"),
        ("rows & 1", "has characters"),
        ("[rows]", "has a part"),
        ("rows, 2", "has a part"),
        ("lambda", "is no expression"),
        ("x.shape[0:1]", "has characters"),
        ("x.data_ptr", "tensors have shape, stride"),
        ("x.__class__", "tensors have shape, stride"),
        ("x.shape.numel", "has a part"),
        ("x.numel()", "has a part"),
        ("open(1)", "has a part"),
        ("min", "without arguments"),
        ("min(1)", "min takes 2 to 16 arguments"),
        ("cdiv(1, 2, 3)", "cdiv takes 2 arguments"),
        ("min(1, *dims)", "has a part"),
        ("min(1, key=2)", "has characters"),
        ("(" * 250 + "1" + ")" * 249, "is no expression"),
        ("(" * 60 + "-" * 60 + "1" + ")" * 60, "nested too deeply"),
        ("-" * 300 + "1", "nested too deeply"),
        ("+".join("1" for _ in range(200)), "nested too deeply"),
        ("1" * 30, "beyond 2^63"),
        ("1e999", "beyond 2^63"),
        ("x is None", "has a part"),
        ("rows in dims", "has a part"),
        ("x\0", "has characters"),
        ("r\xf6ws", "has characters"),
    ],
)
def test_what_is_no_expression_is_refused(text: object, reason: str) -> None:
    with pytest.raises(InvalidExpression, match=reason.replace("^", r"\^")):
        Expression.parse(text)


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("lines", "lines is not known; there are BLOCK, bias, causal"),
        ("rows // 0", "divides by 0"),
        ("rows % 0", "divides by 0"),
        ("rows // 0.5", "take integers only"),
        ("cdiv(rows, 0)", "cdiv takes an integer and one above 0"),
        ("cdiv(rows, 1.5)", "cdiv takes an integer and one above 0"),
        ("next_power_of_2(-1)", "next_power_of_2 takes"),
        ("next_power_of_2(scale)", "next_power_of_2 takes"),
        ("x + 1", "a tensor is no number"),
        ("bias + 1", "null is no number"),
        ("dims * 2", "is no number"),
        ("bias.shape[0]", "bias is null and no tensor"),
        ("rows.shape[0]", "rows is 100 and no tensor"),
        ("x.shape[3]", "no entry 3 of 3"),
        ("x.shape[-4]", "no entry -4 of 3"),
        ("x.shape[0.0]", "no entry 0.0"),
        ("x[0]", "a tensor has no entries"),
        ("rows[0]", "100 has no entries"),
        ("x < 3", "have no order"),
        ("x == x", "cannot be compared"),
        ("dims == 3", "cannot be compared"),
        ("4000000000 * 4000000000", "beyond 2^63"),
        ("1e300 * 1e300", "beyond 2^63"),
        ("-9223372036854775807 - 2", "beyond 2^63"),
    ],
)
def test_expressions_without_a_value_say_why(text: str, reason: str) -> None:
    with pytest.raises(InvalidExpression, match=reason.replace("^", r"\^")) as caught:
        Expression.parse(text).value(NAMES)
    assert str(caught.value).startswith("'")  # with the expression


def test_integers_have_bounds() -> None:
    assert Expression.parse("rows").integer(NAMES, 1, 100) == 100
    for text, shown in (("rows", "100"), ("scale", "0.5"), ("causal", "True"), ("x", "a tensor")):
        with pytest.raises(InvalidExpression, match=f"integer from 1 to 99, and is {shown}"):
            Expression.parse(text).integer(NAMES, 1, 99)


def test_the_name_of_a_tensor_is_found() -> None:
    assert Expression.parse("x").tensor(NAMES) == "x"
    assert Expression.parse("x if causal else out").tensor(NAMES) == "x"
    assert Expression.parse("bias if bias != null else out").tensor(NAMES) == "out"
    assert Expression.parse("bias").tensor(NAMES) is None
    assert Expression.parse("x.numel").tensor(NAMES) is None


def test_names_are_listed() -> None:
    assert Expression.parse("x.shape[n] + min(a, 3) * null").names == {"x", "n", "a"}


PIECES = [*NAMES, *"+-*%()[].,<>", "//", "==", "1", "0", "7e9", "9" * 18, "min(", "max(", "cdiv(", " if ", " else ", " and ", " not ", "next_power_of_2(", ".shape[", ".numel", "null"]  # fmt: skip


@settings(max_examples=300, deadline=None)
@given(
    st.text(max_size=600)
    | st.text(string.printable, max_size=MOST_CHARS)
    | st.lists(st.sampled_from(PIECES), max_size=60).map("".join)
)
@example("not " * 124 + "1")
@example("min(" * 100 + "1" + ",1)" * 100)
def test_any_text_has_a_value_or_is_refused(text: str) -> None:
    try:
        value = Expression.parse(text).value(NAMES)
    except InvalidExpression:
        return
    if isinstance(value, int | float):
        assert abs(value) <= MOST_NUMBER


@st.composite
def trees(draw: st.DrawFn, depth: int = 4) -> str:
    if depth == 0 or draw(st.booleans()):
        return draw(
            st.sampled_from(["rows", "BLOCK", "x.shape[1]", "dims[0]", "3", "scale", "causal"])
        )
    a, b, c = (draw(trees(depth - 1)) for _ in range(3))
    form = draw(st.sampled_from(["({a} + {b})", "({a} - {b})", "({a} * {b})", "({a} // {b})", "({a} % {b})", "(-{a})", "min({a}, {b})", "max({a}, {b}, {c})", "({a} if {b} < {c} else {b})", "({a} == {b})", "({a} <= {b} < {c})"]))  # fmt: skip
    return form.format(a=a, b=b, c=c)


@settings(max_examples=100, deadline=None)
@given(trees())
def test_values_are_those_of_python(text: str) -> None:
    names = {**NAMES, "dims": (2, 0, 1)}
    try:
        value = Expression.parse(text).value(names)
    except InvalidExpression as error:
        allowed = ("integers only", "by 0", "beyond", "at most 500", "too deeply")
        if not any(word in str(error) for word in allowed):
            raise
        return
    plain = text.replace("x.shape[1]", "40")
    assert value == eval(plain, {"__builtins__": {}, "min": min, "max": max}, dict(names))


@pytest.mark.parametrize(
    ("value", "dtype", "pattern"),
    [
        (0, torch.float32, (0, 4)),
        (1.0, torch.float32, (0x3F800000, 4)),
        (float("-inf"), torch.float16, (0xFC00, 2)),
        (1, torch.bfloat16, (0x3F80, 2)),
        (-1, torch.int8, (0xFF, 1)),
        (True, torch.bool, (1, 1)),
        (255, torch.uint8, (255, 1)),
        (0, torch.int64, (0, 4)),
        (-1, torch.int64, (0xFFFFFFFF, 4)),
        (0.0, torch.float64, (0, 4)),
    ],
)
def test_values_are_filled_in_as_bits(
    value: float, dtype: torch.dtype, pattern: tuple[int, int]
) -> None:
    assert bit_pattern(value, dtype) == pattern


@pytest.mark.parametrize(
    ("value", "dtype"),
    [
        (256, torch.uint8),
        (-1, torch.uint8),
        (1.5, torch.int32),
        (1 << 40, torch.int32),
        (1, torch.int64),
        (1.0, torch.float64),
        (2, torch.bool),
    ],
)
def test_values_that_cannot_be_filled_in_are_refused(value: float, dtype: torch.dtype) -> None:
    with pytest.raises(InvalidExpression):
        bit_pattern(value, dtype)
