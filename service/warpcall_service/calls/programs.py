"""Programs: several ops in one request, wired by name.

{"steps": [{"name": "t", "op": "permute", "inputs": {"x": "x"}, "params": {"dims": [1, 0]}},
           {"name": "s", "op": "masked-softmax", "inputs": {"x": "t", "mask": "m"}}],
 "outputs": {"y": "s"}}

An input is a tensor of the call, or an output of an earlier step: `t` if that step has one output,
or `b.grad_x` if it has several. This module checks the form of a program. The worker checks whether
the ops take these inputs, in `worker/program_planner.py`.
"""

from __future__ import annotations

import json
import re
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from typing import Any

from warpcall import wire
from warpcall.errors import InvalidInput
from warpcall.wire import TensorInfo
from warpcall_service.formats.params import Params
from warpcall_service.lanes.engine import LocalEngine
from warpcall_service.lanes.messages import frame
from warpcall_service.lanes.plan import MAX_MESSAGE_BYTES, Plan
from warpcall_service.text import brief

MAX_STEPS = 256
MAX_CACHED = 128  # checked programs, of at most MAX_MESSAGE_BYTES each
NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,63}")
SOURCE = re.compile(rf"{NAME.pattern}(\.{NAME.pattern})?")
MEMBERS = {"name": str, "op": str, "inputs": dict, "params": dict}

# Read like the declaration of an op that has one parameter.
DECLARATION: Mapping[str, Any] = {
    "name": "program",
    "params": [{"name": wire.PROGRAM_KEY, "kind": "json"}],
}

Checked = Mapping[str, Any]  # what `worker/program_planner.plan_program` returns


class Checker:
    """Has programs checked by a worker, and caches the results."""

    def __init__(self, engine: LocalEngine) -> None:
        self._engine = engine
        self._cached: OrderedDict[bytes, Checked] = OrderedDict()

    async def check_program(
        self, params: Params, tensors: Sequence[TensorInfo], stored: Sequence[TensorInfo]
    ) -> Checked:
        """Check the program that is a parameter of a call.

        Args:
            tensors: of the call's body.
            stored: stored tensors that the call reads.

        Raises:
            Problem: what is wrong with the program, and in which step.
        """
        if params.keys() != {wire.PROGRAM_KEY}:
            raise InvalidInput(
                f"a program has the parameter {wire.PROGRAM_KEY} and no other, "
                f"got {brief(', '.join(params) or 'none')}",
                field=wire.PROGRAM_KEY,
            )
        steps, outputs = decode(params[wire.PROGRAM_KEY])
        steps_names = {step["name"] for step in steps}
        for info in (*tensors, *stored):
            if not NAME.fullmatch(info.name) or info.name in steps_names:
                raise InvalidInput(
                    "the tensors of a program must have names like x or mask_2 that no step has, "
                    f"got {brief(info.name)}",
                    field=info.name,
                )
        return await self._check(steps, outputs, tensors, stored)

    async def check_call(
        self,
        op: str,
        params: Params,
        tensors: Sequence[TensorInfo],
        stored: Sequence[TensorInfo],
    ) -> Checked:
        """Check a call of one op, which is a program of one step without a name."""
        inputs = {info.name: info.name for info in (*tensors, *stored)}
        step = {"name": "", "op": op, "inputs": inputs, "params": params}
        return await self._check([step], None, tensors, stored)

    async def _check(
        self,
        steps: Sequence[Mapping[str, Any]],
        outputs: Mapping[str, str] | None,
        tensors: Sequence[TensorInfo],
        stored: Sequence[TensorInfo],
    ) -> Checked:
        request = frame(
            {
                "steps": steps,
                "outputs": outputs,
                "tensors": [[t.name, t.dtype, t.shape] for t in tensors],
                "stored": [[t.name, t.dtype, t.shape] for t in stored],
            }
        )
        checked = self._cached.get(request)
        if checked is None:
            checked = await self._engine.request_plan(request, "the program")
            if len(request) <= MAX_MESSAGE_BYTES:
                self._cached[request] = checked
                if len(self._cached) > MAX_CACHED:
                    self._cached.popitem(last=False)
        else:
            self._cached.move_to_end(request)
        return checked


def pass_through(tensors: Sequence[TensorInfo]) -> Checked:
    """A program without steps whose outputs are its inputs: a put or a get."""
    nbytes = sum(info.nbytes for info in tensors)
    outputs = [[info.name, info.name, info.dtype, info.shape] for info in tensors]
    return {"steps": [], "outputs": outputs, "peak_nbytes": nbytes, "peak_step": ""}


def build_plan(
    name: str,
    checked: Checked,
    inputs: Sequence[TensorInfo],
    stored_inputs: Mapping[str, int],
    stored_outputs: Mapping[str, int],
) -> Plan:
    """The plan of a checked program.

    Args:
        name: of the call, for messages.
        stored_inputs: numbers of the stored tensors that it reads, by name.
        stored_outputs: numbers for the outputs that it stores, by name.

    Raises:
        InvalidInput: the message to the worker would be too long.
    """
    outputs = [
        TensorInfo(name, code, tuple(shape))
        for name, _, code, shape in checked["outputs"]
        if name not in stored_outputs
    ]
    placed = wire.lay_out(outputs)
    sources = {name: source for name, source, *_ in checked["outputs"]}
    text = json.dumps(
        {
            "steps": checked["steps"],  # first: see worker.programs.PROGRAM
            "name": name,
            "inputs": [[i.name, i.dtype, i.shape, i.begin, i.strides] for i in inputs],
            "outputs": [[o.name, o.dtype, o.shape, o.begin] for o in placed],
            "returned": {o.name: sources[o.name] for o in placed},
            "stored_inputs": stored_inputs,
            "stored_outputs": [[sources[name], number] for name, number in stored_outputs.items()],
        },
        separators=(",", ":"),
    ).encode()
    if len(text) > MAX_MESSAGE_BYTES:
        raise InvalidInput(
            f"a program and its tensors must be described in {MAX_MESSAGE_BYTES} bytes, "
            f"got {len(text)}",
            field=wire.PROGRAM_KEY,
        )
    return Plan(
        op=name,
        params={},
        inputs=tuple(inputs),
        outputs=placed,
        input_nbytes=max((i.begin + i.nbytes for i in inputs), default=0),
        output_nbytes=placed[-1].end if placed else 0,
        message=text,
    )


def decode(program: object) -> tuple[list[dict[str, Any]], dict[str, str]]:
    """Check the form of a program; returns its steps and outputs.

    Raises:
        InvalidInput: the message names the step and the member at fault.
    """
    if not isinstance(program, dict) or program.keys() != {"steps", "outputs"}:
        raise _bad("the program must have steps and outputs", program)
    steps, outputs = program["steps"], program["outputs"]
    if not isinstance(steps, list) or not 1 <= len(steps) <= MAX_STEPS:
        raise _bad(f"steps must be a list of 1 to {MAX_STEPS} steps", steps, "steps")
    names: set[str] = set()
    decoded = [_step(step, i, names) for i, step in enumerate(steps, 1)]
    if not isinstance(outputs, dict) or not 1 <= len(outputs) <= wire.MAX_TENSORS:
        raise _bad(
            f"outputs must map 1 to {wire.MAX_TENSORS} names to what the steps give",
            outputs,
            "outputs",
        )
    for name, source in outputs.items():
        if not NAME.fullmatch(name):
            raise _bad("the names of outputs must be like y or grad_x", name, "outputs")
        _check_source(source, f"the output {name}", f"outputs.{name}")
    return decoded, outputs


def _step(step: object, position: int, names: set[str]) -> dict[str, Any]:
    where = f"step {position}"
    if not isinstance(step, dict) or not {"name", "op", "inputs"} <= step.keys() <= MEMBERS.keys():
        raise _bad(f"{where} must have name, op, inputs and perhaps params", step, "steps")
    name = step["name"]
    if not isinstance(name, str) or not NAME.fullmatch(name) or name in names:
        raise _bad(f"the name of {where} must be like t or step_2, and its own", name, "steps")
    names.add(name)
    for member, kind in MEMBERS.items():
        if not isinstance(step.get(member, {} if kind is dict else None), kind):
            wanted = "a string" if kind is str else "an object"
            raise _bad(f"step {name}: {member} must be {wanted}", step[member], f"{name}.{member}")
    for argument, source in step["inputs"].items():
        _check_source(source, f"step {name} ({step['op']:.60}): {argument}", f"{name}.{argument}")
    return {
        "name": name,
        "op": step["op"],
        "inputs": step["inputs"],
        "params": step.get("params", {}),
    }


def _check_source(source: object, what: str, field: str) -> None:
    if not isinstance(source, str) or not SOURCE.fullmatch(source):
        raise _bad(
            f"{what} must name a tensor, a step, or an output of one such as b.grad_x",
            source,
            field,
        )


def _bad(message: str, got: object, field: str = wire.PROGRAM_KEY) -> InvalidInput:
    return InvalidInput(f"{message}, got {brief(got)}", field=field)
