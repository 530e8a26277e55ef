"""A problem of KernelBench: `Model`, `get_inputs` and `get_init_inputs`; implementations are `ModelNew`.

Both models are made once for a case, after the same seed was set, so that they draw the same weights
if they make them in the same order. Only their calls are timed.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

import torch
from torch import Tensor, nn

from warpcall_kernels.imported import draws
from warpcall_kernels.imported.files import Files
from warpcall_kernels.op.cases import Sample
from warpcall_kernels.op.declaration import Size
from warpcall_kernels.op.errors import InvalidInput, listed
from warpcall_kernels.op.problem import Problem
from warpcall_kernels.op.problem_fields import NAME

SEED = 42  # before each model is made, as KernelBench does it
DTYPES = (torch.float32, torch.float16, torch.bfloat16)
MOST_MODELS = 4  # that are kept: of a case, of its widened inputs, and without memory

Models = dict[tuple[Any, ...], Callable[..., Any]]


def problem(
    folder: Path,
    texts: Mapping[str, str],
    file: str,
    sizes: Mapping[str, int],
    module: str = "",
) -> Problem:
    """The problem of a file.

    Args:
        folder: of the source that calls this.
        texts: of all files by name.
        file: the one with `Model`.
        sizes: constants of it that a benchmark may choose, with their values.
        module: whose docstring describes the problem.
    """
    case = _Case(Files(folder, texts), file, sizes)
    dtypes = case.dtypes
    models: Models = {}

    def inputs(dtype: torch.dtype, **chosen: int) -> dict[str, Sample]:
        return dict(case.traced(chosen, dtype).samples)

    def reference(**given: Any) -> Any:
        chosen = {name: given.pop(name) for name in sizes}
        first = next(iter(given.values()))
        dtype = _dtype_of(given.values(), dtypes[0])
        key = (first.device, dtype, *chosen.items())
        if key not in models:
            if len(models) >= MOST_MODELS:
                models.clear()
            models[key] = case.model("Model", file, chosen, dtype, first.device)
        return models[key](given)

    inputs.__module__ = module
    return Problem(
        reference=reference,
        inputs=inputs,
        sizes=tuple(
            Size(name, f"{name} of {file}", value, minimum=0, passed=True)
            for name, value in sizes.items()
        ),
        dtypes=dtypes,
        has_odd_cases=False,
    )


def implementation(
    folder: Path, texts: Mapping[str, str], file: str, new: str, sizes: Sequence[str]
) -> tuple[Callable[..., Any], Callable[..., Any]]:
    """The setup that makes `ModelNew`, and the function that calls it.

    Args:
        folder, texts, file: as in `problem`.
        new: the file with `ModelNew`.
        sizes: names of the constants that a benchmark may choose.
    """
    files = Files(folder, texts)

    def setup(**given: Any) -> Any:
        chosen = {name: given.pop(name) for name in sizes}
        case = _Case(files, file, chosen)
        dtype = _dtype_of(given.values(), case.dtypes[0])
        device = next(one.device for one in given.values())
        return case.model("ModelNew", new, chosen, dtype, device)

    def compute(*, state: Any, **given: Any) -> Any:
        return state(given)

    compute.__doc__ = f"ModelNew of {new}."
    return setup, compute


class _Case:
    """What a file says for a choice of sizes."""

    def __init__(self, files: Files, file: str, sizes: Mapping[str, int]) -> None:
        self._files = files
        self._file = file
        self._sizes = dict(sizes)

    @property
    def dtypes(self) -> tuple[torch.dtype, ...]:
        """The dtypes that a benchmark may choose."""
        found = self._traced(self._sizes).samples.values()
        floats = {one.dtype for one in found if one.dtype.is_floating_point}
        if not floats or floats == {torch.float32}:
            return DTYPES
        return (next(one.dtype for one in found if one.dtype.is_floating_point),)

    def traced(self, sizes: Mapping[str, int], dtype: torch.dtype) -> draws.Traced:
        """The inputs, those of the first dtype of floats in another one."""
        found = self._traced(sizes)
        default = self.dtypes[0]
        samples = {
            name: _in_dtype(sample, dtype) if sample.dtype == default else sample
            for name, sample in found.samples.items()
        }
        return draws.Traced(found.tree, samples)

    def model(
        self, name: str, file: str, sizes: Mapping[str, int], dtype: torch.dtype, device: Any
    ) -> Callable[[Mapping[str, Tensor]], Any]:
        """What calls a model of a file with inputs by name."""
        module = self._module(sizes)
        made = _made(_class(self._files.module(file, sizes), name, file), module, dtype, device)
        tree = self._traced(sizes).tree
        fixed = [
            one.to(dtype) if one.is_floating_point() else one
            for one in draws.constants(_function(module, "get_inputs"), device, memory=False)
        ]

        def call(inputs: Mapping[str, Tensor]) -> Any:
            return _contiguous(made(*draws.filled(tree, inputs, fixed, device, lambda d: d)))

        return call

    def _traced(self, sizes: Mapping[str, int]) -> draws.Traced:
        module = self._module(sizes)
        names = _names(_class(module, "Model", self._file), sizes)
        found = draws.trace(_function(module, "get_inputs"), names, memory=False)
        if not isinstance(found.tree, list | tuple):
            raise InvalidInput("inputs", "get_inputs() must return a list of tensors")
        if not found.samples:
            raise InvalidInput("inputs", "get_inputs() must return a tensor of random values")
        return found

    def _module(self, sizes: Mapping[str, int]) -> ModuleType:
        return self._files.module(self._file, sizes)


def _names(model: type[nn.Module], taken: Mapping[str, int]) -> list[str]:
    """Names for the inputs of a model: those of the arguments of `forward`."""
    found = []
    for one in [*inspect.signature(model.forward).parameters.values()][1:]:
        if one.kind in (one.VAR_POSITIONAL, one.VAR_KEYWORD) or not NAME.fullmatch(one.name):
            break
        found.append(f"{one.name}_" if one.name in taken else one.name)
    return found


def _made(model: type[nn.Module], module: ModuleType, dtype: torch.dtype, device: Any) -> Any:
    """An instance of a model on a device."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(SEED)
        init = _function(module, "get_init_inputs")()
        args, kwargs = ((), init) if isinstance(init, dict) else (init, {})
        torch.manual_seed(SEED)
        if torch.device(device).type == "meta":
            try:
                with torch.device("meta"):
                    made = model(*args, **kwargs)
            except (RuntimeError, NotImplementedError):  # it reads values of a tensor
                made = model(*args, **kwargs)
        else:
            made = model(*args, **kwargs)
    for part in made.modules():
        if isinstance(part, nn.modules.dropout._DropoutNd) and part.p and part.training:
            raise InvalidInput(
                "reference",
                f"{model.__name__} has {part}, whose results are random in training mode: call "
                "self.eval() at the end of __init__",
            )
    return made.to(device, dtype)


def _class(module: ModuleType, name: str, file: str) -> type[nn.Module]:
    found = vars(module).get(name)
    if not isinstance(found, type) or not issubclass(found, nn.Module):
        raise InvalidInput(name, f"{file} must have a class {name}(nn.Module)")
    return found


def _function(module: ModuleType, name: str) -> Callable[[], Any]:
    found = vars(module).get(name)
    if not callable(found):
        raise InvalidInput(name, f"{module.__name__}.py must have a function {name}()")
    return found  # type: ignore[no-any-return]


def _dtype_of(inputs: Any, default: torch.dtype) -> torch.dtype:
    """The dtype of a model with these inputs."""
    return next((one.dtype for one in inputs if one.dtype.is_floating_point), default)


def _in_dtype(sample: Sample, dtype: torch.dtype) -> Sample:
    return Sample(
        *(sample.shape, dtype, sample.values, sample.low, sample.high),
        *(sample.layout, sample.scale, sample.shift),
    )


def _contiguous(result: Any) -> Any:
    """A result as an implementation returns it."""
    if isinstance(result, Tensor):
        return result.contiguous()
    if not isinstance(result, list | tuple):
        raise InvalidInput("reference", f"a model must return tensors, got {type(result).__name__}")
    if not all(isinstance(one, Tensor) for one in result):
        kinds = listed(sorted({type(one).__name__ for one in result}))
        raise InvalidInput("reference", f"a model must return tensors, got {kinds}")
    return tuple(one.contiguous() for one in result)
