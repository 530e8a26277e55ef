"""Checks a whole program in the worker's planning thread, before any of its steps runs."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from warpcall import wire
from warpcall.errors import InvalidInput, NotFound
from warpcall_kernels import InvalidInput as RefusedByOp
from warpcall_kernels import ops
from warpcall_kernels.op.declaration import Meta
from warpcall_service.devices.tensors import DTYPES, wire_code
from warpcall_service.worker.programs import step_label


def plan_program(request: Mapping[str, Any]) -> dict[str, Any]:
    """Plan the steps: their outputs, the source of each input, and the memory they need.

    Args:
        request: has `steps` as `calls.programs.decode` returns them; `outputs`, the sources by
            name (None means all outputs of the only step); and `tensors` and `stored`, the name, dtype and
            shape of each uploaded and each stored tensor.

    Raises:
        Problem: what is wrong, and in which step.
    """
    uploaded = _metas(request["tensors"])
    steps = request["steps"]
    found = _Sources({**uploaded, **_metas(request["stored"])})
    planned = [_step(step, found) for step in steps]
    if request["outputs"] is None:
        outputs = {name: f"{planned[0]['name']}.{name}" for name, _, _ in planned[0]["outputs"]}
    else:
        outputs = {
            name: found.find(source, f"the output {name}", f"outputs.{name}")
            for name, source in request["outputs"].items()
        }
    found.refuse_unused(outputs.values())
    _mark_dead(planned, set(outputs.values()))
    peak_nbytes, peak_step = _peak(planned, uploaded, found.metas)
    return {
        "steps": planned,
        "outputs": [
            [name, source, *_described(name, found.metas[source])]
            for name, source in outputs.items()
        ],
        "peak_nbytes": peak_nbytes,
        "peak_step": peak_step,
    }


class _Sources:
    """The sources for a step's inputs: the call's tensors, and outputs of earlier steps."""

    def __init__(self, given: Mapping[str, Meta]) -> None:
        self.metas = dict(given)
        self._given = list(given)
        self._outputs: dict[str, list[str]] = {}  # by step
        self._used: set[str] = set()

    def add(self, step: str, outputs: Mapping[str, Meta]) -> None:
        self._outputs[step] = list(outputs)
        self.metas |= {f"{step}.{name}": meta for name, meta in outputs.items()}

    def find(self, source: str, what: str, field: str) -> str:
        """The full name of a source; the name of a step with one output means that output."""
        step, dot, _ = source.partition(".")
        outputs = self._outputs.get(step)
        if outputs is None and source not in self.metas:
            known = ", ".join((*self._given, *self._outputs)) or "nothing"
            raise InvalidInput(
                f"{what} must come from a tensor or an earlier step ({known}), got {source!r}",
                field=field,
            )
        if outputs is not None and not dot:
            if len(outputs) != 1:
                choice = " or ".join(f"{step}.{name}" for name in outputs)
                raise InvalidInput(f"{what} must be {choice}, got {source!r}", field=field)
            source = f"{step}.{outputs[0]}"
        if source not in self.metas:
            gives = ", ".join(outputs or ())
            raise InvalidInput(
                f"{what} must be an output of {step}, which gives {gives}, got {source!r}",
                field=field,
            )
        self._used.add(source)
        return source

    def refuse_unused(self, outputs: Iterable[str]) -> None:
        """Refuse tensors and steps that nothing uses: they are mistakes, or wasted time."""
        used = {source.partition(".")[0] for source in (*self._used, *outputs)}
        for name in self._given:
            if name not in used:
                raise InvalidInput(f"no step and no output uses the tensor {name}", field=name)
        for step in self._outputs:
            if step not in used:
                raise InvalidInput(f"no step and no output uses the step {step}", field=step)


def _step(step: Mapping[str, Any], found: _Sources) -> dict[str, Any]:
    name = step["name"]
    op = ops().get(wire.op_name(step["op"]))
    if op is None:
        there = wire.no_such_op(step["op"], ops())
        raise NotFound(f"step {name}: {there}" if name else there, field=f"{name}.op")
    label = f"{step_label(name, op.name)}: " if name else ""
    prefix = f"{name}." if name else ""
    sources = {
        argument: found.find(source, f"{label}{argument}", f"{prefix}{argument}")
        for argument, source in step["inputs"].items()
    }
    try:
        params = op.check_params(step["params"])
        outputs = op.check({a: found.metas[source] for a, source in sources.items()}, params)
    except RefusedByOp as error:
        raise InvalidInput(f"{label}{error}", field=f"{prefix}{error.argument}") from None
    found.add(name, outputs)
    return {
        "name": name,
        "op": op.name,
        "params": params,
        "sources": sources,
        "outputs": [
            [output, *_described(f"{label}{output}", meta)] for output, meta in outputs.items()
        ],
    }


def _mark_dead(steps: Sequence[dict[str, Any]], lasting: set[str]) -> None:
    """Add to each step the sources that no later step and no output needs."""
    needed = set(lasting)
    for step in reversed(steps):
        given = (f"{step['name']}.{output}" for output, *_ in step["outputs"])
        touched = {*step["sources"].values(), *given}
        step["dead"] = sorted(touched - needed)
        needed |= touched


def _peak(
    steps: Sequence[Mapping[str, Any]], uploaded: Iterable[str], metas: Mapping[str, Meta]
) -> tuple[int, str]:
    """The most bytes that exist at a time beside stored tensors, and the step at which they do."""
    live = set(uploaded)
    peak = sum(metas[name].nbytes for name in live), ""
    for step in steps:
        live |= {f"{step['name']}.{output}" for output, *_ in step["outputs"]}
        peak = max(peak, (sum(metas[source].nbytes for source in live), step["name"]))
        live -= set(step["dead"])
    return peak


def _metas(described: Sequence[tuple[str, str, Sequence[int]]]) -> dict[str, Meta]:
    return {name: Meta(tuple(shape), DTYPES[code]) for name, code, shape in described}


def _described(name: str, meta: Meta) -> tuple[str, tuple[int, ...]]:
    return wire_code(name, meta.dtype), meta.shape
