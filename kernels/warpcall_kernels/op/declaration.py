"""The declaration of an op, from which its route, schema, SDK method, docs and tests follow.

Every public module of `warpcall_kernels` ends with `OP = Op(...)`. Nothing else registers an op.
"""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, Protocol

import torch
from torch import Tensor

from warpcall_kernels.op.cases import Case, Sample, Values
from warpcall_kernels.op.errors import InvalidInput, brief, listed
from warpcall_kernels.op.sources import source_sha256
from warpcall_kernels.op.tolerance import Tolerance

ParamValue = bool | int | float | tuple[int, ...] | None
ParamKind = Literal["bool", "int", "float", "ints"]

MAX_LIST = 64  # entries of an "ints" parameter: torch's limit on the dims of a tensor
INT64_MAX = 2**63 - 1


class TensorLike(Protocol):
    """What `infer` may look at. Both a tensor and a `Meta`, which has no values, are such."""

    @property
    def shape(self) -> Sequence[int]: ...
    @property
    def dtype(self) -> torch.dtype: ...


@dataclass(frozen=True, slots=True)
class Meta:
    """Shape and dtype of a tensor, without its values."""

    shape: tuple[int, ...]
    dtype: torch.dtype

    @property
    def nbytes(self) -> int:
        return math.prod(self.shape) * self.dtype.itemsize


@dataclass(frozen=True)
class Input:
    """A tensor that an op takes.

    Args:
        name: name of the input, as in the reference's signature.
        dtypes: the dtypes that it may have.
        shape: its shape for readers, such as "[..., K]"; `infer` checks the real one.
        doc: what it is, in a few words.
        optional: whether a call may leave it out.
        values: what a benchmark draws for it by default, as in `Sample`.
        low, high: the bounds of "integers", as in `Sample`.
    """

    name: str
    dtypes: tuple[torch.dtype, ...]
    shape: str
    doc: str
    optional: bool = False
    values: Values = "normal"
    low: int = 0
    high: int = 100


@dataclass(frozen=True)
class Output:
    """A tensor that an op returns.

    Args:
        name: name of the output.
        shape: its shape for readers, such as "[..., K]".
        doc: what it is, in a few words.
        when: the condition under which it is returned; empty if it always is.
        dtype: its dtype; None if that is the dtype to which the inputs promote.
    """

    name: str
    shape: str
    doc: str
    when: str = ""
    dtype: torch.dtype | None = None


@dataclass(frozen=True)
class Param:
    """A parameter of an op: a value that is not a tensor.

    Args:
        name: name of the parameter.
        kind: its type; "ints" is a list of integers.
        doc: what it does, in a few words.
        default: its value if a call leaves it out.
        required: whether a call must give it.
        minimum, maximum: inclusive bounds of an "int" or each of the "ints"; by default int64's.
    """

    name: str
    kind: ParamKind
    doc: str
    default: ParamValue = None
    required: bool = False
    minimum: int | None = None
    maximum: int | None = None

    def check(self, value: object) -> ParamValue:
        """Return `value` in its canonical type, or raise InvalidInput that names this parameter."""
        if value is None and not self.required:
            return None
        if self.kind == "bool":
            if isinstance(value, bool):
                return value
        elif self.kind == "int":
            if isinstance(value, int) and not isinstance(value, bool):
                return self._in_range(value)
        elif self.kind == "float":
            if isinstance(value, int | float) and not isinstance(value, bool):
                return self._finite(value)
        elif isinstance(value, list | tuple):
            if len(value) > MAX_LIST:
                raise InvalidInput(
                    self.name,
                    f"{self.name} must have at most {MAX_LIST} entries, got {len(value)}",
                )
            if all(isinstance(v, int) and not isinstance(v, bool) for v in value):
                return tuple(self._in_range(v) for v in value)
        wanted = {"bool": "a boolean", "int": "an integer", "float": "a finite number"}
        raise InvalidInput(
            self.name,
            f"{self.name} must be {wanted.get(self.kind, 'a list of integers')}, "
            f"got {brief(value)}",
        )

    def _finite(self, value: float) -> float:
        try:
            number = float(value)
        except OverflowError:
            number = math.inf
        if not math.isfinite(number):
            raise InvalidInput(self.name, f"{self.name} must be finite, got {brief(value)}")
        return number

    def _in_range(self, value: int) -> int:
        low = -INT64_MAX - 1 if self.minimum is None else self.minimum
        high = INT64_MAX if self.maximum is None else self.maximum
        if not low <= value <= high:
            raise InvalidInput(
                self.name, f"{self.name} must be between {low} and {high}, got {brief(value)}"
            )
        return value

    def json_schema(self) -> dict[str, Any]:
        """The JSON Schema of this parameter."""
        types = {"bool": "boolean", "int": "integer", "float": "number", "ints": "array"}
        schema: dict[str, Any] = {"type": types[self.kind], "description": self.doc}
        bounds: dict[str, Any] = {}
        if self.minimum is not None:
            bounds["minimum"] = self.minimum
        if self.maximum is not None:
            bounds["maximum"] = self.maximum
        if self.kind == "ints":
            schema |= {"items": {"type": "integer", **bounds}, "maxItems": MAX_LIST}
        else:
            schema |= bounds
        if self.default is not None:
            schema["default"] = self.default
        return schema


@dataclass(frozen=True)
class Size:
    """A size that a benchmark chooses besides shape and parameters, such as the taps of a filter.

    Args:
        name: name of the size, as `derive` takes it.
        doc: what it is, in a few words.
        default: its value if a benchmark does not choose one.
        minimum: the least value of a number.
        choices: the values to choose from; empty for a number.
        passed: whether a problem's reference and implementations get it, too, as a parameter of this
            name. It is for numbers.
    """

    name: str
    doc: str
    default: int | str
    minimum: int = 0
    choices: tuple[str, ...] = ()
    passed: bool = False


@dataclass(frozen=True)
class TunedConstants:
    """Constants of a module that were chosen together by timing, and how to time them again.

    Args:
        module: the module that holds them, relative to this package, such as "_softmax.rows".
        names: the constants; "TILES[2]" names an entry of a dict.
        candidates: the values to time, each in the order of `names`.
        cases: the cases to time, by the beginnings of their names: large cases or those of `sweep`.
    """

    module: str
    names: tuple[str, ...]
    candidates: Sequence[tuple[Any, ...]]
    cases: tuple[str, ...]


@dataclass(frozen=True, eq=False)  # equal by identity, and so hashable
class Op:
    """A named operation, and everything that service, SDK, tests and benchmarks know about it.

    `function`, `reference`, `infer` and `bytes_moved` take the inputs and parameters by name.

    Args:
        name: as in the route, such as "masked-softmax".
        function: the public function; it returns contiguous tensors, on any device.
        reference: plain torch that defines correctness; it may return a view of its input.
        infer: returns shape and dtype of the outputs, by name and in order, from those of the
            inputs; raises InvalidInput for inputs that do not fit. It looks at no values.
        bytes_moved: returns the compulsory traffic in bytes: each input is read once and each
            output written once.
        inputs, outputs, params: what it takes and returns, in the order of the signature.
        equivalent: one line of torch that says what is computed.
        cases: what tests and benchmarks run.
        tolerance: how far results may be from the reference in fp64, as `op/tolerance.py` says.
            None means bit-exact.
        differentiable: the inputs that have a gradient.
        limits: what callers should know about sizes and devices; may be empty.
        common: further calls that servers often get. `compile/warm.py` compiles their kernels
            ahead, with those of the cases.
        derive: returns the inputs of a benchmark from one shape and dtype, the checked parameters
            and the sizes; without it, all required inputs have that shape and dtype.
        sizes: the sizes that `derive` takes.
        sweep: further large cases for benchmarks only, of odd sizes that no kernel was tuned for.
        tuning: the constants that `python -m bench.kernels tune` times.
        dtypes: the dtypes of a benchmark that chooses no shape, the default first: `derive` then
            takes one of them and the sizes, these by name, and nothing else. Empty for other ops.
        doc: the description; by default the docstring of `function`.
        tags: remarks on each result of the reference, such as "interpreted".
        has_odd_cases: whether implementations should be right in odd cases (`op/odd_cases.py`), too.
    """

    name: str
    function: Callable[..., Any]
    reference: Callable[..., Any]
    infer: Callable[..., dict[str, Meta]]
    bytes_moved: Callable[..., int]
    inputs: tuple[Input, ...]
    outputs: tuple[Output, ...]
    equivalent: str
    cases: tuple[Case, ...]
    params: tuple[Param, ...] = ()
    tolerance: Tolerance | None = None
    differentiable: tuple[str, ...] = ()
    limits: str = ""
    common: tuple[Case, ...] = ()
    derive: Callable[..., Mapping[str, Sample]] | None = None
    sizes: tuple[Size, ...] = ()
    sweep: tuple[Case, ...] = ()
    tuning: tuple[TunedConstants, ...] = ()
    dtypes: tuple[torch.dtype, ...] = ()
    doc: str = ""
    tags: tuple[str, ...] = ()
    has_odd_cases: bool = True

    def check_params(self, given: Mapping[str, object]) -> dict[str, ParamValue]:
        """Canonical parameters with defaults filled in; raises InvalidInput."""
        known = {p.name: p for p in self.params}
        for name in given:
            if name not in known:
                raise InvalidInput(
                    name, f"{self.name} has no parameter {brief(name)}, it takes {listed(known)}"
                )
        missing = [p.name for p in self.params if p.required and given.get(p.name) is None]
        if missing:
            raise InvalidInput(missing[0], f"{self.name} needs the parameter {missing[0]}")
        return {p.name: p.check(given.get(p.name, p.default)) for p in self.params}

    def check(
        self, inputs: Mapping[str, TensorLike], params: Mapping[str, ParamValue]
    ) -> dict[str, Meta]:
        """Check a call and return shapes and dtypes of its outputs; raises InvalidInput."""
        known = {i.name: i for i in self.inputs}
        for name, tensor in inputs.items():
            if name not in known:
                raise InvalidInput(
                    name, f"{self.name} has no input {brief(name)}, it takes {listed(known)}"
                )
            if tensor.dtype not in known[name].dtypes:
                raise InvalidInput(
                    name,
                    f"{name} must be one of {listed(map(dtype_name, known[name].dtypes))}, "
                    f"got {dtype_name(tensor.dtype)}",
                )
        missing = [i.name for i in self.inputs if not i.optional and i.name not in inputs]
        if missing:
            raise InvalidInput(missing[0], f"{self.name} needs the input {missing[0]}")
        return self.infer(**inputs, **params)

    def compute(
        self, tensors: Mapping[str, Tensor], params: Mapping[str, ParamValue]
    ) -> dict[str, Tensor]:
        """Compute the outputs, by name: on a GPU by the kernels, on the CPU by the reference.

        On the CPU outputs may be views of the inputs: copy them before the inputs change.
        """
        on_cpu = all(t.device.type == "cpu" for t in tensors.values())
        result = (self.reference if on_cpu else self.function)(**tensors, **params)
        parts = result if isinstance(result, tuple) else (result,)
        named = zip((o.name for o in self.outputs), parts, strict=True)
        return {name: part for name, part in named if part is not None}

    def describe(self) -> dict[str, Any]:
        """This declaration as JSON data, with dtypes by torch name, such as "bfloat16".

        Only problems have "dtypes".
        """
        doc = self.doc or inspect.getdoc(self.function) or ""
        return {
            "name": self.name,
            "summary": doc.partition("\n")[0],
            "description": doc,
            "equivalent": self.equivalent,
            "limits": self.limits,
            "inputs": [
                {
                    "name": i.name,
                    "dtypes": [dtype_name(d) for d in i.dtypes],
                    "shape": i.shape,
                    "doc": i.doc,
                    "optional": i.optional,
                }
                for i in self.inputs
            ],
            "outputs": [
                {
                    "name": o.name,
                    "dtype": o.dtype and dtype_name(o.dtype),
                    "shape": o.shape,
                    "doc": o.doc,
                    "when": o.when,
                }
                for o in self.outputs
            ],
            "params": [
                {
                    "name": p.name,
                    "kind": p.kind,
                    "doc": p.doc,
                    "default": p.default,
                    "required": p.required,
                    "schema": p.json_schema(),
                }
                for p in self.params
            ],
            "sizes": [
                {
                    "name": s.name,
                    "doc": s.doc,
                    "default": s.default,
                    "minimum": s.minimum,
                    "choices": list(s.choices),
                }
                for s in self.sizes
            ],
            **({"dtypes": [dtype_name(d) for d in self.dtypes]} if self.dtypes else {}),
            "source_sha256": self.source_sha256,
        }

    @property
    def source_sha256(self) -> str:
        """SHA-256 of the file that declares the op, so that a benchmark's result names its code."""
        return source_sha256(self.function)


def dtype_name(dtype: torch.dtype) -> str:
    """The name of a dtype without "torch.", such as "bfloat16"."""
    return str(dtype).removeprefix("torch.")
