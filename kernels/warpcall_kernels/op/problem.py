"""Problems: ops of a user's own, declared by a reference and by inputs that follow from sizes.

`Problem(...)` checks what can be checked without calling the user's functions, `Problem.op` the
rest. All errors are InvalidInput, and name the argument of `Problem` that is wrong. Exceptions of
the user's functions are raised as they are.
"""

from __future__ import annotations

import inspect
import math
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from warpcall_kernels.op import problem_fields as fields
from warpcall_kernels.op.cases import SHORT_DTYPES, Case, Sample
from warpcall_kernels.op.declaration import (
    INT64_MAX,
    Input,
    Meta,
    Op,
    Output,
    Param,
    ParamValue,
    Size,
    TensorLike,
    dtype_name,
)
from warpcall_kernels.op.errors import InvalidInput, brief, listed
from warpcall_kernels.op.sources import unwrapped
from warpcall_kernels.op.tolerance import RowTolerance
from warpcall_kernels.op.uncompiled import without_compiler

DEFAULT_DTYPES = (torch.float32, torch.float16, torch.bfloat16)
MAX_BYTES_MOVED = 2**62
SMALL_ELEMENTS = 256 * 256  # of the inputs of a small case

Samples = dict[str, Sample]


@dataclass(frozen=True, eq=False)  # equal by identity, and so hashable
class Problem:
    """The declaration of an op by its reference. `op` makes the library's `Op` of it.

    Args:
        reference: plain torch that defines correctness. It takes the inputs and parameters by name
            and returns a tensor or a tuple of tensors. Their shapes and dtypes follow from those of
            the inputs and from the parameters, so that it also runs on the device "meta".
        inputs: returns the tensors to draw, by name, from a dtype and the sizes, these by name. The
            names are always the same.
        sizes: the sizes that `inputs` takes.
        params: the parameters that the reference takes besides the inputs. None is required.
        dtypes: the dtypes that a benchmark may choose. The first one is the default.
        tolerance: by dtype of an output, the error of an element against the reference in fp64,
            relative to the larger of the element and the root mean square of its row. The norm of
            the errors of all elements must be at most half of that. Other dtypes have the numbers
            of `DEFAULT_TOLERANCE`. None means bit-exact. `RowTolerance` says what a row is.
        bytes_moved: returns the compulsory traffic in bytes from shapes and dtypes of the inputs
            (`Meta`) and from the parameters, by name. By default each input is read once and each
            output written once.
        equivalent: one line that says what is computed; may be empty.
        has_odd_cases: whether implementations should be right in odd cases, too: other sizes and
            layouts than a benchmark names, NaN and infinities.

    Raises:
        InvalidInput: an argument cannot be used.
    """

    reference: Callable[..., Any]
    inputs: Callable[..., Mapping[str, Sample]]
    sizes: tuple[Size, ...] = ()
    params: tuple[Param, ...] = ()
    dtypes: tuple[torch.dtype, ...] = DEFAULT_DTYPES
    tolerance: Mapping[torch.dtype, float] | None = field(default_factory=dict)
    bytes_moved: Callable[..., int] | None = None
    equivalent: str = ""
    has_odd_cases: bool = True

    def __post_init__(self) -> None:
        checked = {
            "reference": fields.function("reference", self.reference),
            "inputs": fields.function("inputs", self.inputs),
            "sizes": fields.sizes(self.sizes),
            "params": fields.params(self.params),
            "dtypes": fields.dtypes(self.dtypes),
            "tolerance": fields.tolerance(self.tolerance),
            "bytes_moved": None
            if self.bytes_moved is None
            else fields.function("bytes_moved", self.bytes_moved),
            "equivalent": fields.line("equivalent", self.equivalent),
        }
        for name, value in checked.items():
            object.__setattr__(self, name, value)  # lists have become tuples
        fields.distinct("params", [p.name for p in self.params], [s.name for s in self.sizes])
        fields.signature("inputs", self.inputs, ["dtype"], [s.name for s in self.sizes])

    def op(self, name: str) -> Op:
        """The op of this problem.

        It calls `inputs` with the default sizes, and with each choice of a size, for each dtype; and
        for each dtype the other functions, without memory for tensors.

        A problem becomes an op of this library when its file is moved here, with
        `OP = PROBLEM.op("row-norm")` as its last line. `dataclasses.replace` adds what such an op
        should have: kernels as its `function`, and small cases for tests.

        Args:
            name: such as "row-norm", or "ann/row-norm" if it is not of this library.

        Raises:
            InvalidInput: what the functions return cannot be used.
        """
        if not fields.line("name", name):
            raise InvalidInput("name", "name must not be empty")
        declared = _Declared(self, name)
        return Op(
            name=name,
            function=self.reference,
            reference=self.reference,
            infer=declared.infer,
            bytes_moved=declared.bytes_moved,
            inputs=declared.inputs(),
            outputs=declared.outputs(),
            equivalent=self.equivalent,
            cases=declared.cases(),
            params=declared.params,
            has_odd_cases=self.has_odd_cases,
            tolerance=None if self.tolerance is None else RowTolerance(self.tolerance),
            derive=declared.derive,
            sizes=self.sizes,
            dtypes=self.dtypes,
            doc=_doc(self),
        )


class _Declared:
    """The parts of an op that follow from a problem's functions, whose results are checked."""

    def __init__(self, problem: Problem, name: str) -> None:
        self._problem = problem
        self._name = name
        self._names: tuple[str, ...] | None = None  # of the inputs
        self._outputs: list[str] | None = None  # their names
        self.params = (*problem.params, *(_as_param(s) for s in problem.sizes if s.passed))
        self._params: dict[str, ParamValue] = {p.name: p.default for p in self.params}
        self._sizes = {size.name: size.default for size in problem.sizes}
        self._drawn = {dtype: self.derive(dtype, **self._sizes) for dtype in problem.dtypes}
        names = self._names = tuple(self._drawn[problem.dtypes[0]])
        params = list(self._params)
        fields.distinct("inputs", names, params)
        fields.signature("reference", problem.reference, [], [*names, *params])
        if problem.bytes_moved is not None:
            fields.signature("bytes_moved", problem.bytes_moved, [], [*names, *params])

    def derive(self, dtype: torch.dtype, **sizes: int | str) -> Samples:
        """The inputs of a benchmark, as `Op.derive`."""
        found = self._problem.inputs(dtype, **sizes)
        if not isinstance(found, Mapping) or not found:
            raise InvalidInput(
                "inputs", f"inputs must return a dict of Sample by name, got {brief(found)}"
            )
        samples = fields.samples(found)
        if self._names is not None and set(samples) != set(self._names):
            raise InvalidInput(
                "inputs",
                f"inputs must return {listed(self._names)} for all dtypes and sizes, got "
                f"{listed(samples)} for {dtype_name(dtype)} and {brief(sizes)}",
            )
        return samples

    def infer(self, **given: Any) -> dict[str, Meta]:
        """The outputs of the reference, which runs on the device "meta", as `Op.infer`."""
        assert self._names is not None
        tensors = {name: _without_memory(name, given[name]) for name in self._names}
        with torch.no_grad(), without_compiler():
            result = self._problem.reference(**tensors, **self._values(given))
        outputs = fields.outputs(result)
        if self._outputs is not None and list(outputs) != self._outputs:
            raise InvalidInput(
                "reference",
                f"reference must always return {listed(self._outputs)}, got {listed(outputs)}",
            )
        return outputs

    def bytes_moved(self, **given: Any) -> int:
        """The compulsory traffic in bytes, as `Op.bytes_moved`."""
        assert self._names is not None
        metas = {n: Meta(tuple(given[n].shape), given[n].dtype) for n in self._names}
        values = self._values(given)
        if self._problem.bytes_moved is None:
            outputs = self.infer(**metas, **values)
            return sum(meta.nbytes for meta in (*metas.values(), *outputs.values()))
        found = self._problem.bytes_moved(**metas, **values)
        if type(found) is int and 0 <= found <= MAX_BYTES_MOVED:
            return found
        raise InvalidInput(
            "bytes_moved",
            f"bytes_moved must return an integer between 0 and {MAX_BYTES_MOVED}, got "
            f"{brief(found)}",
        )

    def inputs(self) -> tuple[Input, ...]:
        """The inputs, with all dtypes that they have for some dtype and choice of a size."""
        assert self._names is not None
        dtypes: dict[str, dict[torch.dtype, None]] = {name: {} for name in self._names}
        for dtype in self._problem.dtypes:
            for sizes in self._choices():
                for name, sample in self.derive(dtype, **sizes).items():
                    dtypes[name][sample.dtype] = None
        return tuple(
            Input(
                name,
                tuple(dtypes[name]),
                str(list(one.shape)),
                "with default sizes",
                values=one.values,
                low=one.low,
                high=one.high,
            )
            for name, one in self._drawn[self._problem.dtypes[0]].items()
        )

    def outputs(self) -> tuple[Output, ...]:
        """The outputs; those of the first dtype say how many there are."""
        found = []
        for samples in self._drawn.values():
            metas = {name: Meta(sample.shape, sample.dtype) for name, sample in samples.items()}
            found.append(self.infer(**metas, **self._params))
            self._outputs = list(found[0])
            self.bytes_moved(**metas, **self._params)
        same = {name: {outputs[name].dtype for outputs in found} for name in found[0]}
        return tuple(
            Output(
                name,
                str(list(meta.shape)),
                "with default sizes",
                dtype=meta.dtype if len(same[name]) == 1 else None,
            )
            for name, meta in found[0].items()
        )

    def cases(self) -> tuple[Case, ...]:
        """The default sizes in each dtype."""
        sizes = "".join(f"{name}={value} " for name, value in self._sizes.items())
        return tuple(
            Case(
                f"{sizes}{SHORT_DTYPES.get(dtype, dtype_name(dtype))}",
                samples,
                size="large"
                if sum(math.prod(s.shape) for s in samples.values()) > SMALL_ELEMENTS
                else "small",
            )
            for dtype, samples in self._drawn.items()
        )

    def _choices(self) -> Iterator[dict[str, int | str]]:
        """The default sizes, and those with another choice of one size."""
        yield dict(self._sizes)
        for size in self._problem.sizes:
            for choice in size.choices:
                if choice != size.default:
                    yield {**self._sizes, size.name: choice}

    def _values(self, given: Mapping[str, Any]) -> dict[str, ParamValue]:
        return {name: given[name] for name in self._params}


def _as_param(size: Size) -> Param:
    doc = f"the size {size.name}, which --size chooses"
    return Param(size.name, "int", doc, default=size.default, minimum=size.minimum)  # type: ignore[arg-type]  # checked: a number


def _without_memory(name: str, like: TensorLike) -> Tensor:
    meta = Meta(tuple(like.shape), like.dtype)
    if meta.nbytes > INT64_MAX:
        raise InvalidInput(name, f"{name} has shape {meta.shape}, which is too large for a tensor")
    return torch.empty(meta.shape, dtype=meta.dtype, device="meta")


def _doc(problem: Problem) -> str:
    """The docstring of the problem's module, or else of its reference."""
    module = sys.modules.get(getattr(unwrapped(problem.inputs), "__module__", None) or "")
    found = getattr(module, "__doc__", None) or inspect.getdoc(problem.reference)
    return inspect.cleandoc(found) if isinstance(found, str) else ""
