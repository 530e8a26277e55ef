"""A problem whose code runs in another process: its cases, and its reference.

This process never runs code of the problem's author. It asks for a description of each case, checks
it as it checks what users write, and lets the other process compute what the reference does.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from warpcall_kernels import Op
from warpcall_kernels.execution import answers
from warpcall_kernels.execution.inputs import layout_of, values_of
from warpcall_kernels.execution.process import (
    Deadlines,
    RemoteFailed,
    RemoteProcess,
    StartPeer,
    reaching,
)
from warpcall_kernels.execution.spec import DTYPES, JobCase, samples_of
from warpcall_kernels.execution.windows import Window
from warpcall_kernels.op.cases import checked_shape
from warpcall_kernels.op.declaration import Meta, Output, ParamValue
from warpcall_kernels.op.errors import InvalidInput
from warpcall_kernels.op.tolerance import RowTolerance

MOST_OUTPUTS = 32
MOST_BYTES = 1 << 62


def remote_problem(start: StartPeer, load: Mapping[str, Any], name: str = "") -> RemoteProblem:
    """A problem that another process loads.

    Args:
        start: starts that process.
        load: data from which it loads the problem.
        name: of the problem, if the process must not choose it.
    """
    return RemoteProblem(RemoteProcess(start, load), name)


class RemoteProblem:
    """A problem in another process."""

    def __init__(self, process: RemoteProcess, name: str = "") -> None:
        self._process = process
        self._name = name

    def case(
        self, spec: Mapping[str, Any], *, timed: bool = True, deadlines: Deadlines | None = None
    ) -> JobCase:
        """The case that a spec describes, as `make_case`.

        Raises:
            InvalidInput: the problem cannot be used, or not with this spec.
        """
        limits = deadlines or Deadlines()
        try:
            self._process.begin(limits)
            found = self._process.ask(
                "describe", limits.compile_s, "the case", spec=dict(spec), timed=timed
            )
            return self._case(found, limits)
        except RemoteFailed as failed:
            raise InvalidInput("op", failed.error.removeprefix("InvalidInput: ")) from None
        except (KeyError, TypeError, ValueError) as error:
            if isinstance(error, InvalidInput):
                raise
            raise InvalidInput("op", "the problem describes its case wrongly") from None

    def _case(self, found: Mapping[str, Any], limits: Deadlines) -> JobCase:
        inputs, params = samples_of(found["spec"])
        outputs = {
            name: Meta(checked_shape("outputs", shape), DTYPES[code])
            for name, (shape, code) in list(found["outputs"].items())[:MOST_OUTPUTS]
        }
        nbytes = found["bytes_moved"]
        if type(nbytes) is not int or not 0 <= nbytes <= MOST_BYTES:
            raise ValueError("bytes_moved")
        tolerance = found["tolerance"]
        by_dtype = None if tolerance is None else {DTYPES[c]: e for c, e in tolerance.items()}
        if by_dtype is not None and not all(
            type(e) in (int, float) and math.isfinite(e) for e in by_dtype.values()
        ):
            raise ValueError("tolerance")

        def reference(**given: Any) -> tuple[Tensor, ...]:
            tensors = {name: given[name] for name in inputs}
            values = {name: v for name, v in given.items() if name not in inputs}
            return self._reference(tensors, values, limits)

        op = Op(
            name=self._name or str(found["name"])[:160],
            function=reference,
            reference=reference,
            infer=lambda **_: outputs,
            bytes_moved=lambda **_: nbytes,
            inputs=(),
            outputs=tuple(Output(name, str(list(m.shape)), "") for name, m in outputs.items()),
            equivalent="",
            cases=(),
            tolerance=None if by_dtype is None else RowTolerance(by_dtype),
        )
        return JobCase(op, inputs, params, self._process)

    def _reference(
        self, inputs: Mapping[str, Tensor], params: Mapping[str, ParamValue], limits: Deadlines
    ) -> tuple[Tensor, ...]:
        """What the reference returns for some inputs."""
        self._process.begin(limits)
        device = next((t.device for t in inputs.values()), torch.device("cpu"))
        layouts = {name: layout_of(t) for name, t in inputs.items()}
        window = Window(self._process.peer.pid, device)
        described = {name: layout.to_json() for name, layout in layouts.items()}
        limit_s = limits.compile_s
        answer = self._process.ask("reference_inputs", limit_s, "the reference", layouts=described)
        try:
            (places,) = answers.sets([answer.get("inputs")], layouts)
        except answers.Unsound:
            raise self._process.broken("the reference") from None
        with reaching():
            for name, flat in values_of(inputs).flat.items():
                at = places[name]["address"] + layouts[name].begin * layouts[name].dtype.itemsize
                window.write({**places[name], "address": at}, flat.view(torch.uint8))
        answer = self._process.ask("reference", limit_s, "the reference", params=dict(params))
        with reaching():
            found = tuple(
                self._output(window, kind, address, device)
                for kind, address in zip(answer["kinds"], answer["outputs"], strict=True)
            )
        window.close()
        self._process.stop()  # its threads would take time from what is measured
        return found

    def _output(self, window: Window, kind: Any, address: Any, device: torch.device) -> Tensor:
        try:
            meta = Meta(checked_shape("outputs", kind[0]), DTYPES[kind[1]])
            answers.addresses([address])
        except (KeyError, TypeError, ValueError, IndexError, answers.Unsound):
            raise self._process.broken("the reference") from None
        if not meta.nbytes:
            return torch.empty(meta.shape, dtype=meta.dtype, device=device)
        return window.read(address, meta.nbytes).clone().view(meta.dtype).view(meta.shape)
