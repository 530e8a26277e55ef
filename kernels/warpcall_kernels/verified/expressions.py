"""Expressions over the sizes of a case, such as "cdiv(x.shape[1], BLOCK)", in declarations of launches.

They look like Python and are never run as Python: the syntax tree is walked here. Texts, trees and numbers
are bounded, so that any expression ends at once.
"""

from __future__ import annotations

import ast
import math
import operator
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

from warpcall_kernels.execution import spec
from warpcall_kernels.op.errors import brief, listed

MOST_CHARS = 500
MOST_NODES = 300
MOST_DEPTH = 40
MOST_NUMBER = (1 << 63) - 1
# What a text is made of. It leaves out the parts of Python that its parser takes and that are not needed
# here, such as texts, and numbers that are written in another way.
WORDS = re.compile(
    r"(?:\s|[A-Za-z_]\w*|\d+(?:\.\d*)?(?:[eE][+-]?\d+)?(?!\w)|//|[<>=!]=|[-+*%<>()\[\].,])*+",
    re.ASCII,
)
MEMBERS = ("shape", "stride", "numel", "itemsize", "ndim", "dtype")
DTYPES = {
    code: dtype
    for code, dtype in spec.DTYPES.items()
    if not dtype.is_complex and not code.startswith("F8")
}


class InvalidExpression(Exception):
    """An expression that has no value. The text says why, and what is allowed."""


class TensorFacts(NamedTuple):
    """What expressions may ask of a tensor.

    Attributes:
        stride: in elements.
        dtype: its code, such as "BF16"; empty for one that is not in DTYPES.
    """

    shape: tuple[int, ...]
    stride: tuple[int, ...]
    itemsize: int
    dtype: str

    @property
    def numel(self) -> int:
        return math.prod(self.shape)

    @property
    def ndim(self) -> int:
        return len(self.shape)


Value = bool | int | float | str | tuple[int, ...] | TensorFacts | None
Names = Mapping[str, Value]


def _cdiv(a: int, b: int) -> int:
    return -(-a // b)


def _next_power_of_2(number: int) -> int:
    return 1 << max(0, number - 1).bit_length()


# The functions, and how many arguments each takes at least and at most.
FUNCTIONS: Mapping[str, tuple[Callable[..., Any], int, int]] = {
    "min": (min, 2, 16),
    "max": (max, 2, 16),
    "cdiv": (_cdiv, 2, 2),
    "next_power_of_2": (_next_power_of_2, 1, 1),
}
CONSTANTS: Names = {
    "null": None,
    "None": None,
    "true": True,
    "True": True,
    "false": False,
    "False": False,
    **{code: code for code in DTYPES},
}
RESERVED = frozenset((*CONSTANTS, *FUNCTIONS))
BINARY: Mapping[type[ast.operator], Callable[[Any, Any], Any]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.FloorDiv: operator.floordiv,
    ast.Mod: operator.mod,
}
COMPARISONS: Mapping[type[ast.cmpop], Callable[[Any, Any], bool]] = {
    ast.Eq: operator.eq,
    ast.NotEq: operator.ne,
    ast.Lt: operator.lt,
    ast.LtE: operator.le,
    ast.Gt: operator.gt,
    ast.GtE: operator.ge,
}


@dataclass(frozen=True)
class Expression:
    """A checked expression.

    Attributes:
        text: as it was given.
        names: that it refers to.
    """

    text: str
    names: frozenset[str]
    _tree: ast.expr

    @classmethod
    def parse(cls, given: object) -> Expression:
        """The expression of a text, or of a number, true, false or null of JSON.

        Raises:
            InvalidExpression: it is none.
        """
        text = (
            "null" if given is None else str(given) if type(given) in (bool, int, float) else given
        )
        if not isinstance(text, str) or not 0 < len(text) <= MOST_CHARS:
            raise InvalidExpression(
                f"an expression is a text of at most {MOST_CHARS} characters or a number, got {brief(given)}"
            )
        if WORDS.fullmatch(text) is None:
            raise InvalidExpression(
                f"{brief(text)} has characters or numbers that expressions do not have; operators are "
                "+ - * // %, comparisons, `a if c else b`, and, or, not"
            )
        try:
            tree = ast.parse(text.strip(), mode="eval").body
        except (SyntaxError, ValueError, RecursionError, MemoryError):
            raise InvalidExpression(f"{brief(text)} is no expression") from None
        names: set[str] = set()
        _check(tree, text, names, MOST_DEPTH, [MOST_NODES])
        return cls(text, frozenset(names), tree)

    def value(self, names: Names) -> Value:
        """Its value, for these values of names.

        Raises:
            InvalidExpression: it has none.
        """
        try:
            return _value(self._tree, names)
        except InvalidExpression as error:
            raise InvalidExpression(f"{brief(self.text)}: {error}") from None

    def integer(self, names: Names, low: int = 0, high: int = MOST_NUMBER) -> int:
        """Its value, which must be an integer of these bounds.

        Raises:
            InvalidExpression: it is none.
        """
        value = self.value(names)
        if type(value) is not int or not low <= value <= high:
            raise InvalidExpression(
                f"{brief(self.text)} must be an integer from {low} to {high}, and is {_shown(value)}"
            )
        return value

    def number(self, names: Names) -> float:
        """Its value, which must be a number.

        Raises:
            InvalidExpression: it is none.
        """
        value = self.value(names)
        if not isinstance(value, int | float):
            raise InvalidExpression(f"{brief(self.text)} must be a number, and is {_shown(value)}")
        return value

    def tensor(self, names: Names) -> str | None:
        """The name of the tensor that it is; None for another value, also for a tensor that is null."""
        tree = self._tree
        while isinstance(tree, ast.IfExp):
            tree = tree.body if _condition(tree.test, names) else tree.orelse
        if isinstance(tree, ast.Name) and isinstance(names.get(tree.id), TensorFacts):
            return tree.id
        return None


def _check(tree: ast.expr, text: str, names: set[str], depth: int, left: list[int]) -> None:
    """Check that a tree has known parts only, and collect its names."""
    left[0] -= 1
    if depth == 0 or left[0] < 0:
        raise InvalidExpression(f"{brief(text)} is nested too deeply or too long")
    parts: list[ast.expr] = []
    match tree:
        case ast.Constant(value=value) if value is None or isinstance(value, int | float):
            if value is not None and not abs(value) <= MOST_NUMBER:
                raise InvalidExpression(f"{brief(text)} has a number beyond 2^63")
        case ast.Name(id=name):
            if name in FUNCTIONS:
                raise InvalidExpression(f"{brief(text)} has {name} without arguments")
            if name not in CONSTANTS:
                names.add(name)
        case ast.UnaryOp(op=ast.USub() | ast.Not(), operand=operand):
            parts = [operand]
        case ast.BinOp(left=a, op=op, right=b) if type(op) in BINARY:
            parts = [a, b]
        case ast.BoolOp(values=values):
            parts = values
        case ast.Compare(left=a, ops=ops, comparators=others) if all(
            type(o) in COMPARISONS for o in ops
        ):
            parts = [a, *others]
        case ast.IfExp(test=test, body=body, orelse=orelse):
            parts = [test, body, orelse]
        case ast.Call(func=ast.Name(id=name), args=args, keywords=[]) if name in FUNCTIONS:
            _, least, most = FUNCTIONS[name]
            if not least <= len(args) <= most:
                counts = str(least) if least == most else f"{least} to {most}"
                raise InvalidExpression(f"{brief(text)}: {name} takes {counts} arguments")
            parts = args
        case ast.Attribute(value=ast.Name(id=name), attr=member):
            if member not in MEMBERS:
                raise InvalidExpression(
                    f"{brief(text)}: tensors have {listed(MEMBERS)}, not {member}"
                )
            parts = [tree.value]
        case ast.Subscript(value=ast.Name() | ast.Attribute() as value, slice=index):
            parts = [value, index]
        case _:
            raise InvalidExpression(
                f"{brief(text)} has a part that expressions do not have; functions are "
                f"{listed(FUNCTIONS)}; tensors have {listed(MEMBERS)}"
            )
    for part in parts:
        _check(part, text, names, depth - 1, left)


def _value(tree: ast.expr, names: Names) -> Value:
    match tree:
        case ast.Constant(value=value):
            assert value is None or isinstance(value, int | float)
            return value
        case ast.Name(id=name):
            if name in CONSTANTS:
                return CONSTANTS[name]
            if name not in names:
                raise InvalidExpression(
                    f"{name[:60]} is not known; there are {listed(sorted(names))[:500]}"
                )
            return names[name]
        case ast.UnaryOp(op=ast.Not(), operand=operand):
            return not _condition(operand, names)
        case ast.UnaryOp(operand=operand):
            return _bounded(-_number(operand, names))
        case ast.BinOp(left=a, op=op, right=b):
            return _binary(op, _number(a, names), _number(b, names))
        case ast.BoolOp(op=ast.And(), values=values):
            return all(_condition(value, names) for value in values)
        case ast.BoolOp(values=values):
            return any(_condition(value, names) for value in values)
        case ast.Compare(left=a, ops=ops, comparators=others):
            return _compared(_value(a, names), ops, others, names)
        case ast.IfExp(test=test, body=body, orelse=orelse):
            return _value(body if _condition(test, names) else orelse, names)
        case ast.Call(func=ast.Name(id=name), args=args):
            return _called(name, [_number(one, names) for one in args])
        case ast.Attribute(value=ast.Name(id=name) as of, attr=member):
            tensor = _value(of, names)
            if not isinstance(tensor, TensorFacts):
                raise InvalidExpression(f"{name[:60]} is {_shown(tensor)} and no tensor")
            found: Value = getattr(tensor, member)
            return found if isinstance(found, tuple | str) else _bounded(found)
        case ast.Subscript(value=of, slice=index):
            entries, number = _value(of, names), _number(index, names)
            if not isinstance(entries, tuple) or isinstance(entries, TensorFacts):
                raise InvalidExpression(f"{_shown(entries)} has no entries")
            if type(number) is not int or not -len(entries) <= number < len(entries):
                raise InvalidExpression(f"there is no entry {_shown(number)} of {len(entries)}")
            return _bounded(entries[number])
    raise AssertionError(tree)


def _number(tree: ast.expr, names: Names) -> int | float:
    value = _value(tree, names)
    if not isinstance(value, int | float):
        raise InvalidExpression(f"{_shown(value)} is no number")
    return value


def _condition(tree: ast.expr, names: Names) -> bool:
    return bool(_number(tree, names))


def _binary(op: ast.operator, a: float, b: float) -> float:
    if isinstance(op, ast.FloorDiv | ast.Mod):
        if isinstance(a, float) or isinstance(b, float):
            raise InvalidExpression("// and % take integers only")
        if not b:
            raise InvalidExpression("it divides by 0")
    return _bounded(BINARY[type(op)](a, b))


def _compared(value: Value, ops: list[ast.cmpop], others: list[ast.expr], names: Names) -> bool:
    for op, tree in zip(ops, others, strict=True):
        other = _value(tree, names)
        if isinstance(op, ast.Eq | ast.NotEq):
            plain = all(
                v is None or isinstance(v, int | float | str | TensorFacts) for v in (value, other)
            )
            both = isinstance(value, TensorFacts) and isinstance(other, TensorFacts)
            if not plain or both:
                raise InvalidExpression(f"{_shown(value)} and {_shown(other)} cannot be compared")
        elif not isinstance(value, int | float) or not isinstance(other, int | float):
            raise InvalidExpression(f"{_shown(value)} and {_shown(other)} have no order")
        if not COMPARISONS[type(op)](value, other):
            return False
        value = other
    return True


def _called(name: str, values: list[int | float]) -> int | float:
    if name == "cdiv" and (any(isinstance(v, float) for v in values) or values[1] <= 0):
        raise InvalidExpression(
            f"cdiv takes an integer and one above 0, got {values[0]} and {values[1]}"
        )
    if name == "next_power_of_2" and (
        isinstance(values[0], float) or not 0 <= values[0] <= 1 << 62
    ):
        raise InvalidExpression(f"next_power_of_2 takes an integer from 0 to 2^62, got {values[0]}")
    result: int | float = FUNCTIONS[name][0](*values)
    return _bounded(result)


def _bounded(value: Any) -> int | float:
    """A number, unless it is beyond 2^63 or not finite."""
    if not abs(value) <= MOST_NUMBER:
        raise InvalidExpression("a number is beyond 2^63")
    result: int | float = value
    return result


def _shown(value: Value) -> str:
    if isinstance(value, TensorFacts):
        return "a tensor"
    return "null" if value is None else brief(value)
