"""Problems and cases that are refused, and what the errors name."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from tests.kernels.problems.row_norm import SIZES, problem
from warpcall_kernels import InvalidInput, Param, Sample, Size, measuring
from warpcall_kernels.op.problem_fields import MAX_ENTRIES


def wrong(value: Any) -> Any:
    """A value of a type that a checker of types would refuse."""
    return value


WRONG_FIELDS = [
    ({"reference": 3}, "reference", "reference must be a function, got 3"),
    ({"reference": dict}, "reference", "reference must be a function, got <class 'dict'>"),
    ({"inputs": None}, "inputs", "inputs must be a function, got None"),
    ({"bytes_moved": 3}, "bytes_moved", "bytes_moved must be a function, got 3"),
    ({"bytes_moved": 0}, "bytes_moved", "bytes_moved must be a function, got 0"),
    ({"sizes": 3}, "sizes", f"sizes must be a tuple of at most {MAX_ENTRIES}, got 3"),
    ({"sizes": SIZES * 17}, "sizes", f"sizes must be a tuple of at most {MAX_ENTRIES}, got"),
    (
        {"sizes": SIZES[0]},
        "sizes",
        f"sizes must be a tuple of at most {MAX_ENTRIES} (a tuple of one is written (one,)), got S",
    ),
    ({"sizes": ("rows",)}, "sizes", "sizes must be a tuple of Size, got 'rows' in it"),
    ({"sizes": SIZES[:1] * 2}, "sizes", "sizes must have different names, got rows twice"),
    ({"sizes": (Size("dtype", "", 1),)}, "sizes", "sizes must not have the name dtype"),
    ({"sizes": (Size("r", "a\nb", 1),)}, "sizes.r.doc", "sizes.r.doc must be one line of at most"),
    (
        {"sizes": (Size("r", "", 0, minimum=1),)},
        "sizes.r",
        f"sizes.r.default must be an integer between 1 and {2**40}, got 0",
    ),
    ({"sizes": (Size("r", "", "a"),)}, "sizes.r", "sizes.r.default must be an integer between"),
    ({"sizes": (Size("r", "", True),)}, "sizes.r", "sizes.r.default must be an integer between"),
    (
        {"sizes": (Size("r", "", 1, minimum=-1),)},
        "sizes.r",
        "sizes.r.minimum must be an integer of at least 0, got -1",
    ),
    (
        {"sizes": (Size("r", "", "c", choices=("a", "b")),)},
        "sizes.r",
        "sizes.r.default must be a or b, got 'c'",
    ),
    ({"params": (3,)}, "params", "params must be a tuple of Param, got 3 in it"),
    (
        {"params": (Param("p", wrong("text"), ""),)},
        "params.p",
        "params.p.kind must be one of bool, int, float, ints, got 'text'",
    ),
    (
        {"params": (Param("p", "int", "", default=9, maximum=8),)},
        "params.p",
        "params.p.default: p must be between ",
    ),
    (
        {"params": (Param("p", "int", "", default=9, maximum=wrong(8.5)),)},
        "params.p",
        "params.p.maximum must be an integer, got 8.5",
    ),
    ({"params": (Param("p", "int", "", required=True),)}, "params.p", "params.p must not be req"),
    ({"params": (Param("rows", "int", "", 1),)}, "params", "params must not have the name rows"),
    ({"dtypes": ()}, "dtypes", "dtypes must be different dtypes, at least one, got ()"),
    ({"dtypes": (torch.int8,) * 2}, "dtypes", "dtypes must be different dtypes, at least one"),
    ({"dtypes": ("F32",)}, "dtypes", "dtypes must be a tuple of dtype, got 'F32' in it"),
    ({"dtypes": (torch.quint8,)}, "dtypes", "dtypes must have dtypes of float64, "),
    ({"tolerance": 0.1}, "tolerance", "tolerance must be None or a dict of numbers by dtype"),
    ({"tolerance": {"F32": 1}}, "tolerance", "tolerance must be by dtype, got 'F32'"),
    (
        {"tolerance": {torch.float32: -1}},
        "tolerance",
        "tolerance must be finite numbers of at least 0, got -1 for float32",
    ),
    ({"tolerance": {torch.float32: float("inf")}}, "tolerance", "tolerance must be finite"),
    ({"tolerance": {torch.float32: float("nan")}}, "tolerance", "tolerance must be finite"),
    ({"equivalent": "a\nb"}, "equivalent", "equivalent must be one line of at most 200"),
    ({"equivalent": "a" * 201}, "equivalent", "equivalent must be one line of at most 200"),
    ({"equivalent": 3}, "equivalent", "equivalent must be one line of at most 200"),
    (
        {"inputs": lambda dtype, rows: {}},
        "inputs",
        (
            "inputs must be callable as inputs(dtype, rows=..., columns=...), it takes (dtype, rows)"
            ": got an unexpected keyword argument 'columns'"
        ),
    ),
    *(
        ({"sizes": (Size(wrong(name), "", 1),)}, "sizes", "sizes must have names of letters")
        for name in ("", "a b", "1a", "_a", "for", "<b>", "größe", "a" * 65, 3)
    ),
]


@pytest.mark.parametrize(("changes", "argument", "message"), WRONG_FIELDS)
def test_a_wrong_declaration_is_refused(
    changes: dict[str, Any], argument: str, message: str
) -> None:
    with pytest.raises(InvalidInput) as raised:
        problem(**changes)

    assert str(raised.value).startswith(message)
    assert raised.value.argument == argument


def returns(found: Any) -> Callable[..., Any]:
    def inputs(dtype: torch.dtype, rows: int, columns: int) -> Any:
        return found

    return inputs


def sample(*args: Any) -> Callable[..., Any]:
    return returns({"x": Sample(*args)})


F32 = torch.float32

WRONG_RESULTS = [
    ({"inputs": returns(None)}, "inputs", "inputs must return a dict of Sample by name, got None"),
    ({"inputs": returns({})}, "inputs", "inputs must return a dict of Sample by name, got {}"),
    ({"inputs": returns({"x": 3})}, "inputs.x", "inputs.x must be a Sample, got 3"),
    ({"inputs": returns({"x y": 3})}, "inputs", "inputs must have names of letters, digits and _"),
    ({"inputs": returns({3: 3})}, "inputs", "inputs must have names of letters, digits and _"),
    (
        {"inputs": returns({f"x{i}": Sample((), F32) for i in range(MAX_ENTRIES + 1)})},
        "inputs",
        f"inputs must return at most {MAX_ENTRIES} tensors, got {MAX_ENTRIES + 1}",
    ),
    ({"inputs": sample((1.5,), F32)}, "inputs.x.shape", "inputs.x.shape must be a list of at most"),
    ({"inputs": sample((-1,), F32)}, "inputs.x.shape", "inputs.x.shape must be a list of at most"),
    ({"inputs": sample(3, F32)}, "inputs.x.shape", "inputs.x.shape must be a list of at most"),
    ({"inputs": sample((3,), "F32")}, "inputs.x", "inputs.x.dtype must be a dtype, got 'F32'"),
    ({"inputs": sample((3,), torch.qint8)}, "inputs.x", "inputs.x must have dtypes of float64"),
    ({"inputs": sample((3,), F32, "odd")}, "inputs.x.values", "inputs.x.values must be one of"),
    (
        {"inputs": sample((3,), F32, "integers", 5, 5)},
        "inputs.x.low",
        "inputs.x.low and high must be integers, low below high, got (5, 5)",
    ),
    (
        {"inputs": sample((3,), F32, "normal", 0, 1, "transposed")},
        "inputs.x.layout",
        "inputs.x.layout transposed needs 2 dims, got shape (3,)",
    ),
    (
        {"inputs": returns({"eps": Sample((3,), F32)})},
        "inputs",
        "inputs must not have the name eps, another has it",
    ),
    (
        {"inputs": lambda dtype, rows, columns: {str(dtype)[6:]: Sample((1,), dtype)}},
        "reference",
        "reference must be callable as reference(float32=..., eps=...), it takes (x",
    ),
    (
        {
            "inputs": lambda dtype, rows, columns: {
                "x" if dtype == F32 else "y": Sample((1,), dtype)
            }
        },
        "inputs",
        "inputs must return x for all dtypes and sizes, got y for bfloat16 and {'rows': 8, 'col",
    ),
    (
        {"reference": lambda x: x},
        "reference",
        (
            "reference must be callable as reference(x=..., eps=...), it takes (x): got an "
            "unexpected keyword argument 'eps'"
        ),
    ),
    (
        {"reference": lambda x, eps: [x]},
        "reference",
        "reference must return a tensor or a tuple of tensors, got [tensor(",
    ),
    (
        {"reference": lambda x, eps: (x, None)},
        "reference",
        "reference must return a tensor or a tuple of tensors, got None as out1",
    ),
    ({"reference": lambda x, eps: ()}, "reference", "reference must return 1 to 32 tensors, got 0"),
    (
        {"reference": lambda x, eps: (x,) * 33},
        "reference",
        "reference must return 1 to 32 tensors, got 33",
    ),
    (
        {"reference": lambda x, eps: torch.zeros(3)},
        "reference",
        "reference must compute on the device of its inputs, out is on cpu: pass device=x.device",
    ),
    (
        {"reference": lambda x, eps: x if x.dtype == F32 else (x, x)},
        "reference",
        "reference must always return out, got out0, out1",
    ),
    (
        {"bytes_moved": lambda y: 1},
        "bytes_moved",
        "bytes_moved must be callable as bytes_moved(x=..., eps=...), it takes (y)",
    ),
    *(
        (
            {"bytes_moved": lambda x, eps, value=value: value},
            "bytes_moved",
            f"bytes_moved must return an integer between 0 and {2**62}, got {value}",
        )
        for value in (-1, 1.5, True, 2**62 + 1, None)
    ),
]


@pytest.mark.parametrize(("changes", "argument", "message"), WRONG_RESULTS)
def test_what_a_function_must_not_return_is_refused(
    changes: dict[str, Any], argument: str, message: str
) -> None:
    with pytest.raises(InvalidInput) as raised:
        problem(**changes).op("p")

    assert str(raised.value).startswith(message)
    assert raised.value.argument == argument


@pytest.mark.parametrize("name", ["", 3, "a\nb", "a" * 201])
def test_the_name_of_a_problem_is_one_line(name: Any) -> None:
    with pytest.raises(InvalidInput, match=r"name must (be one line|not be empty)"):
        problem().op(name)


def test_inputs_that_change_with_a_size_are_refused_when_a_case_has_it() -> None:
    def odd(dtype: torch.dtype, rows: int, columns: int) -> dict[str, Sample]:
        return {"x" if rows == 8 else "y": Sample((rows, columns), dtype)}

    op = problem(inputs=odd).op("p")

    with pytest.raises(InvalidInput, match="inputs must return x for all dtypes and sizes, got y"):
        measuring.make_case(op, {"sizes": {"rows": 9}})


@pytest.mark.parametrize(
    ("spec", "argument", "message"),
    [
        ({"shape": [1, 2]}, "shape", "case has no 'shape', it takes dtype, params, sizes"),
        ({"dtype": "F16"}, "dtype", "dtype must be one of float32, bfloat16, got float16"),
        ({"dtype": None}, "dtype", "dtype must be one of float64, float32, "),
        ({"sizes": {"rows": 0}}, "sizes.rows", "sizes.rows must be an integer between 1 and"),
        ({"sizes": {"row": 1}}, "sizes.row", "p has no size 'row', it has rows, columns"),
        ({"sizes": {"columns": 0}}, "sizes", "p x=F32[8,0] eps=1e-06 gives nothing"),
        ({"params": {"eps": "a"}}, "eps", "eps must be a finite number, got 'a'"),
        ({"inputs": {}}, "x", "p needs the input x"),
        (
            {"inputs": {"x": {"shape": [2], "dtype": "F16"}}},
            "x",
            "x must be one of float32, bfloat16, got float16",
        ),
        (
            {"sizes": {"rows": 2**40, "columns": 2**40}},
            "x",
            f"x has shape ({2**40}, {2**40}), which is too large for a tensor",
        ),
    ],
)
def test_a_wrong_case_is_refused(spec: dict[str, Any], argument: str, message: str) -> None:
    with pytest.raises(InvalidInput) as raised:
        measuring.make_case(problem().op("p"), spec)

    assert str(raised.value).startswith(message)
    assert raised.value.argument == argument


def test_a_sweep_of_a_problem_has_no_shapes() -> None:
    with pytest.raises(InvalidInput, match="sweep has no 'shapes', it takes dtypes, params, sizes"):
        measuring.count(problem().op("p"), {"shapes": [[1]], "dtypes": ["F32"]})
