"""What an op is: one declaration from which routes, schemas, SDK methods, docs and tests follow.

Every public module of this package ends with `OP = Op(...)`. Nothing else registers an op.
"""

from __future__ import annotations

import hashlib
import inspect
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, Protocol

import torch
from torch import Tensor

from warpcall_kernels.op.cases import Case, Sample, Values
from warpcall_kernels.op.errors import InvalidInput

ParamValue = bool | int | float | tuple[int, ...] | None
ParamKind = Literal["bool", "int", "float", "ints"]

MAX_LIST = 64  # entries of an "ints" parameter; no op takes a tensor of more dims than torch's 64
INT64_MAX = 2**63 - 1


class TensorLike(Protocol):
    """All that a check may look at, so that it serves tensors and mere descriptions alike."""

    @property
    def shape(self) -> Sequence[int]: ...
    @property
    def dtype(self) -> torch.dtype: ...


@dataclass(frozen=True, slots=True)
class Meta:
    """Shape and dtype of a tensor that need not exist."""

    shape: tuple[int, ...]
    dtype: torch.dtype

    @property
    def nbytes(self) -> int:
        return math.prod(self.shape) * self.dtype.itemsize


@dataclass(frozen=True)
class Input:
    """A tensor that an op takes. `shape` is for readers, such as "[..., K]"; `infer` checks it.

    `values` is what a benchmark draws unless told, "integers" from [low, high).
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
    """A tensor that an op gives. `when` says on what a sometimes absent one depends.

    Without a `dtype` it has that of the inputs, or the one they promote to.
    """

    name: str
    shape: str
    doc: str
    when: str = ""
    dtype: torch.dtype | None = None


@dataclass(frozen=True)
class Param:
    """A value that steers an op. Not required and without a default, it is None unless given."""

    name: str
    kind: ParamKind
    doc: str
    default: ParamValue = None
    required: bool = False
    minimum: int | None = None  # of an int or of each of the ints
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
            f"got {_brief(value)}",
        )

    def _finite(self, value: float) -> float:
        try:
            number = float(value)
        except OverflowError:
            number = math.inf
        if not math.isfinite(number):
            raise InvalidInput(self.name, f"{self.name} must be finite, got {_brief(value)}")
        return number

    def _in_range(self, value: int) -> int:
        low = -INT64_MAX - 1 if self.minimum is None else self.minimum
        high = INT64_MAX if self.maximum is None else self.maximum
        if not low <= value <= high:
            raise InvalidInput(
                self.name, f"{self.name} must be between {low} and {high}, got {_brief(value)}"
            )
        return value

    def json_schema(self) -> dict[str, Any]:
        """This parameter as JSON Schema."""
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
    """What a benchmark chooses beside shape, dtype and parameters, such as the taps of a filter.

    A number from `minimum` on, or one of `choices`.
    """

    name: str
    doc: str
    default: int | str
    minimum: int = 0
    choices: tuple[str, ...] = ()


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
    """A named operation and all that the rest of the house needs to know about it.

    `function`, `reference`, `infer` and `bytes_moved` take the inputs and parameters by name.

    Args:
        name: as in the route, such as "masked-softmax".
        function: the public function; contiguous results, on any device.
        reference: plain torch, defines correctness; may return a view of its input.
        infer: from the inputs' shapes and dtypes, the outputs' by name, in order; raises
            InvalidInput for what does not fit. It looks at no values.
        bytes_moved: compulsory traffic in bytes: each input read once, each output written once.
        equivalent: one line of torch that says what is computed.
        tolerance: by dtype of the output, the allowed rtol = atol against the fp64 reference;
            None means bit-exact.
        differentiable: inputs that have a gradient.
        cases: what tests and benchmarks run.
        common: further calls that servers get: compiled ahead with the cases (`compile/warm.py`).
        derive: from one shape and dtype, the checked parameters and the sizes by name, the inputs of
            a benchmark; without it, all required inputs have that shape and dtype.
        sizes: what `derive` takes by name.
        sweep: further large cases for benchmarks only, of odd sizes that no kernel was tuned for.
        tuning: the constants that `python -m bench.kernels tune` times.
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
    tolerance: Mapping[torch.dtype, float] | None = None
    differentiable: tuple[str, ...] = ()
    limits: str = ""
    common: tuple[Case, ...] = ()
    derive: Callable[..., Mapping[str, Sample]] | None = None
    sizes: tuple[Size, ...] = ()
    sweep: tuple[Case, ...] = ()
    tuning: tuple[TunedConstants, ...] = ()

    def check_params(self, given: Mapping[str, object]) -> dict[str, ParamValue]:
        """Canonical parameters with defaults filled in; raises InvalidInput."""
        known = {p.name: p for p in self.params}
        for name in given:
            if name not in known:
                raise InvalidInput(
                    name, f"{self.name} has no parameter {_brief(name)}, it takes {_names(known)}"
                )
        missing = [p.name for p in self.params if p.required and given.get(p.name) is None]
        if missing:
            raise InvalidInput(missing[0], f"{self.name} needs the parameter {missing[0]}")
        return {p.name: p.check(given.get(p.name, p.default)) for p in self.params}

    def check(
        self, inputs: Mapping[str, TensorLike], params: Mapping[str, ParamValue]
    ) -> dict[str, Meta]:
        """The outputs of this op on such inputs; raises InvalidInput before anything is computed."""
        known = {i.name: i for i in self.inputs}
        for name, tensor in inputs.items():
            if name not in known:
                raise InvalidInput(
                    name, f"{self.name} has no input {_brief(name)}, it takes {_names(known)}"
                )
            if tensor.dtype not in known[name].dtypes:
                raise InvalidInput(
                    name,
                    f"{name} must be one of {_names(map(dtype_name, known[name].dtypes))}, "
                    f"got {dtype_name(tensor.dtype)}",
                )
        missing = [i.name for i in self.inputs if not i.optional and i.name not in inputs]
        if missing:
            raise InvalidInput(missing[0], f"{self.name} needs the input {missing[0]}")
        return self.infer(**inputs, **params)

    def compute(
        self, tensors: Mapping[str, Tensor], params: Mapping[str, ParamValue]
    ) -> dict[str, Tensor]:
        """Outputs by name. On the CPU they may be views of the inputs: copy before these change."""
        on_cpu = all(t.device.type == "cpu" for t in tensors.values())
        result = (self.reference if on_cpu else self.function)(**tensors, **params)
        parts = result if isinstance(result, tuple) else (result,)
        named = zip((o.name for o in self.outputs), parts, strict=True)
        return {name: part for name, part in named if part is not None}

    def describe(self) -> dict[str, Any]:
        """This declaration as plain JSON-ready data; dtypes by torch name, such as "bfloat16"."""
        doc = inspect.getdoc(self.function) or ""
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
            "source_sha256": self.source_sha256,
        }

    @property
    def source_sha256(self) -> str:
        """Hash of the file that declares the op, so that a result names the code that made it."""
        file = inspect.getsourcefile(inspect.unwrap(self.function))
        return hashlib.sha256(Path(str(file)).read_bytes()).hexdigest()


def dtype_name(dtype: torch.dtype) -> str:
    """The short torch name: "bfloat16", not "torch.bfloat16"."""
    return str(dtype).removeprefix("torch.")


def _names(names: Iterable[str]) -> str:
    return ", ".join(names) or "none"


def _brief(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 60 else text[:57] + "..."
