"""A task of gpu-mode: `generate_input` and `ref_kernel`; implementations are `custom_kernel`.

Both functions get one structure of tensors and other values. Memory in it that is empty or zero is
made anew for each call, because a function may write its results there.
"""

from __future__ import annotations

import ast
import inspect
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from warpcall_kernels.imported import draws
from warpcall_kernels.imported.files import Files
from warpcall_kernels.op.cases import Sample
from warpcall_kernels.op.declaration import Size
from warpcall_kernels.op.errors import InvalidInput
from warpcall_kernels.op.problem import Problem
from warpcall_kernels.op.problem_fields import DEFAULT_TOLERANCE, NAME

REFERENCE = "reference.py"
SEED = 42  # for `generate_input`, whose random values are not used

Values = Mapping[str, Sequence[Any]]


def problem(
    folder: Path,
    texts: Mapping[str, str],
    sizes: Mapping[str, int],
    values: Values,
    tolerance: float | None,
    module: str = "",
) -> Problem:
    """The problem of a task.

    Args:
        folder: of the source that calls this.
        texts: of all files by name, among them `reference.py`.
        sizes: arguments of `generate_input` with their defaults.
        values: for arguments that are no counts, the values that a size numbers from 0.
        tolerance: for outputs of floats, if it is more than the default of their dtype.
        module: whose docstring describes the problem.
    """
    task = _Task(Files(folder, texts), values)
    found = task.traced(dict(sizes)).samples
    floats = [one.dtype for one in found.values() if one.dtype.is_floating_point]
    dtype = (floats or [one.dtype for one in found.values()])[0]

    def inputs(dtype: torch.dtype, **chosen: int) -> dict[str, Sample]:
        return dict(task.traced(chosen).samples)

    def reference(**given: Any) -> Any:
        chosen = {name: given.pop(name) for name in sizes}
        device = next(iter(given.values())).device
        data = task.data_of(chosen, device)
        return _contiguous(task.function(REFERENCE, "ref_kernel")(data(given)))

    inputs.__module__ = module
    return Problem(
        reference=reference,
        inputs=inputs,
        sizes=tuple(
            Size(name, _doc(name, values), value, minimum=0, passed=True)
            for name, value in sizes.items()
        ),
        dtypes=(dtype,),
        tolerance={one: max(DEFAULT_TOLERANCE[one], tolerance or 0.0) for one in _FLOATS},
        has_odd_cases=False,
    )


def implementation(
    folder: Path, texts: Mapping[str, str], submission: str, sizes: Sequence[str], values: Values
) -> tuple[Callable[..., Any], Callable[..., Any]]:
    """The setup that imports a submission, and the function that calls its `custom_kernel`.

    Args:
        folder, texts, values: as in `problem`.
        submission: the file with `custom_kernel`.
        sizes: names of the arguments of `generate_input`.
    """
    task = _Task(Files(folder, texts), values)

    def setup(**given: Any) -> Any:
        chosen = {name: given.pop(name) for name in sizes}
        device = next(iter(given.values())).device
        return task.function(submission, "custom_kernel"), task.data_of(chosen, device)

    def compute(*, state: Any, **given: Any) -> Any:
        function, data = state
        return _contiguous(function(data(given)))

    compute.__doc__ = f"custom_kernel of {submission}."
    return setup, compute


_FLOATS = (torch.float64, torch.float32, torch.float16, torch.bfloat16)


class _Task:
    """The functions of a task."""

    def __init__(self, files: Files, values: Values) -> None:
        self._files = files
        self._values = values
        self._known: dict[tuple[Any, ...], Any] = {}  # of the last choice of sizes

    def function(self, file: str, name: str) -> Callable[..., Any]:
        """A function of a file."""
        found = vars(self._files.module(file)).get(name)
        if not callable(found):
            raise InvalidInput(name, f"{file} must have a function {name}")
        return found  # type: ignore[no-any-return]

    def traced(self, sizes: Mapping[str, int]) -> draws.Traced:
        """The structure of the data, and the tensors to draw."""
        found = draws.trace(self._make(sizes), [*self._names()], memory=True)
        if not found.samples:
            raise InvalidInput("inputs", "generate_input must return a tensor of random values")
        names = {name: f"{name}_" if name in sizes else name for name in found.samples}
        return _renamed(found, names)

    def data_of(
        self, sizes: Mapping[str, int], device: torch.device
    ) -> Callable[[Mapping[str, Tensor]], Any]:
        """What makes the data of inputs by name."""
        key = (device, *sizes.items())
        if key not in self._known:
            if len(self._known) >= 4:  # a case, its widened inputs, and without memory
                self._known.clear()
            traced = self.traced(sizes)
            fixed = draws.constants(self._make(sizes), device, memory=True)
            self._known[key] = traced, fixed
        traced, fixed = self._known[key]
        tree, samples = traced.tree, traced.samples

        def data(inputs: Mapping[str, Tensor]) -> Any:
            # The reference also runs in double precision, with inputs of other dtypes.
            wide = any(inputs[name].dtype != one.dtype for name, one in samples.items())
            cast = _widened if wide else _same
            return draws.filled(tree, inputs, fixed, device, cast)

        return data

    def _names(self) -> Sequence[str]:
        """The names of what `generate_input` returns, if its last line says them."""
        module = self._files.module(REFERENCE)
        try:
            tree = ast.parse(inspect.getsource(module))
        except (OSError, SyntaxError):
            return ()
        for node in tree.body:
            if isinstance(node, ast.FunctionDef) and node.name == "generate_input":
                last = node.body[-1]
                if isinstance(last, ast.Return) and isinstance(last.value, ast.Tuple | ast.Name):
                    parts = last.value.elts if isinstance(last.value, ast.Tuple) else [last.value]
                    found = [_name_of(one) for one in parts]
                    return [n if n and found.count(n) == 1 else "" for n in found]
        return ()

    def _make(self, sizes: Mapping[str, int]) -> Callable[[], Any]:
        function = self.function(REFERENCE, "generate_input")
        given: dict[str, Any] = {
            name: self._values[name][number] if name in self._values else number
            for name, number in sizes.items()
        }
        if "seed" in inspect.signature(function).parameters:
            given["seed"] = SEED
        return lambda: function(**given)


def _name_of(node: ast.expr) -> str:
    """The name of a variable in an expression such as `a` or `a.T.contiguous()`."""
    while isinstance(node, ast.Attribute | ast.Call):
        node = node.value if isinstance(node, ast.Attribute) else node.func
    return node.id if isinstance(node, ast.Name) and NAME.fullmatch(node.id) else ""


def _renamed(found: draws.Traced, names: Mapping[str, str]) -> draws.Traced:
    def renamed(tree: Any) -> Any:
        if isinstance(tree, draws.Input):
            return draws.Input(names[tree.name])
        if isinstance(tree, dict):
            return {key: renamed(one) for key, one in tree.items()}
        if isinstance(tree, list | tuple):
            return draws.like(tree, [renamed(one) for one in tree])
        return tree

    return draws.Traced(
        renamed(found.tree), {names[name]: one for name, one in found.samples.items()}
    )


def _doc(name: str, values: Values) -> str:
    """What a size of this name is, in a line."""
    if name not in values:
        return f"{name} of generate_input"
    numbered = ", ".join(f"{number} is {value!r}" for number, value in enumerate(values[name]))
    return f"{name} of generate_input: {numbered}"[:200]


def _same(dtype: torch.dtype) -> torch.dtype:
    return dtype


def _widened(dtype: torch.dtype) -> torch.dtype:
    return torch.float64 if dtype.is_floating_point else dtype


def _contiguous(result: Any) -> Any:
    """A result as an implementation returns it."""
    if isinstance(result, list | tuple):
        return tuple(one.contiguous() if isinstance(one, Tensor) else one for one in result)
    return result.contiguous() if isinstance(result, Tensor) else result
