"""Programs in a worker: several ops one after the other on its device, and its stored tensors.

The tensors of a program do not return to the host between its steps. A tensor that no later step
needs is freed at once. Outputs that are to be stored go into the tensor store, where later calls
find them.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from warpcall.errors import NotFound
from warpcall_kernels import InvalidInput, ops
from warpcall_service.devices.tensors import OpCall, Place, params_of

PROGRAM = b'{"steps":'  # only messages of programs begin so

TensorStore = dict[int, Tensor]  # stored tensors, by the number that the server gave them


@dataclass(frozen=True, slots=True)
class PlannedStep:
    """One op of a program.

    Attributes:
        name: the step's name in the program; empty if the program is a single call.
        work: the op, its parameters and planned outputs.
        sources: the source of each input of the op.
        dead: sources that are not needed after this step.
    """

    name: str
    work: OpCall
    sources: Mapping[str, str]
    dead: Sequence[str]

    def run(self, live: dict[str, Tensor]) -> None:
        """Add the outputs to the live tensors, and remove dead ones."""
        tensors = {name: live[source] for name, source in self.sources.items()}
        outputs = self.work.outputs
        if any(0 not in output.shape for output in outputs):
            results = self._compute(tensors)
        else:  # all are empty; a reference could allocate for a dim of 2^40
            device = next(iter(tensors.values())).device
            results = {o.name: torch.empty(o.shape, dtype=o.dtype, device=device) for o in outputs}
        live |= {f"{self.name}.{name}": result for name, result in results.items()}
        for source in self.dead:
            del live[source]

    def _compute(self, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
        try:
            return self.work.compute(tensors)
        except InvalidInput as error:
            if not self.name:
                raise
            label = step_label(self.name, self.work.name)
            raise InvalidInput(f"{self.name}.{error.argument}", f"{label}: {error}") from None
        except Exception as error:
            if self.name:
                error.add_note(f"in {step_label(self.name, self.work.name)}")
            raise


@dataclass(frozen=True, slots=True)
class PlannedProgram:
    """A program's message, decoded; a device runs it as it runs the `OpCall` of a plain call.

    Attributes:
        inputs: as they lie in the arena.
        outputs: where the answer goes.
        returned: for each of the outputs, where it comes from.
        stored_inputs: names of tensors in the tensor store, with their numbers.
        stored_outputs: what is to stay, and under which numbers.
    """

    tensor_store: TensorStore
    name: str
    inputs: tuple[Place, ...]
    outputs: tuple[Place, ...]
    steps: tuple[PlannedStep, ...]
    returned: Mapping[str, str]
    stored_inputs: Mapping[str, int]
    stored_outputs: Sequence[tuple[str, int]]
    is_empty = False  # with nothing to answer there may be something to store

    @staticmethod
    def decode(message: bytes, tensor_store: TensorStore) -> PlannedProgram:
        """Read what `programs.build_plan` wrote."""
        payload = json.loads(message)
        return PlannedProgram(
            tensor_store=tensor_store,
            name=payload["name"],
            inputs=tuple(Place.of(*entry) for entry in payload["inputs"]),
            outputs=tuple(Place.of(*entry) for entry in payload["outputs"]),
            steps=tuple(map(_step, payload["steps"])),
            returned=payload["returned"],
            stored_inputs=payload["stored_inputs"],
            stored_outputs=payload["stored_outputs"],
        )

    def compute(self, tensors: dict[str, Tensor]) -> dict[str, Tensor]:
        """Run all steps; what they no longer need leaves `tensors`, so that its memory is free.

        Raises:
            NotFound: a tensor is no longer in the tensor store.
        """
        shared = {_storage(tensor) for tensor in tensors.values() if tensor.device.type == "cpu"}
        for name, number in self.stored_inputs.items():
            tensor = self.tensor_store.get(number)
            if tensor is None:
                raise NotFound(
                    f"the tensor {name} is gone: the process of its device was replaced while "
                    "the call waited",
                    field=name,
                )
            tensors[name] = tensor
            shared.add(_storage(tensor))
        for step in self.steps:
            step.run(tensors)
        for source, number in self.stored_outputs:
            self.tensor_store[number] = tensor = _own(tensors[source], shared)
            shared.add(_storage(tensor))
        return {name: tensors[source] for name, source in self.returned.items()}


def step_label(name: str, op: str) -> str:
    """How messages name a step."""
    return f"step {name} ({op})"


def _step(payload: Mapping[str, Any]) -> PlannedStep:
    outputs = tuple(Place.of(*output) for output in payload["outputs"])
    work = OpCall(ops()[payload["op"]], params_of(payload["params"]), (), outputs)
    return PlannedStep(payload["name"], work, payload["sources"], payload["dead"])


def _own(tensor: Tensor, shared: set[int]) -> Tensor:
    """The tensor in C order, in memory that nothing else uses: a copy if necessary."""
    whole = tensor.untyped_storage().nbytes() == tensor.nbytes
    if whole and tensor.is_contiguous() and _storage(tensor) not in shared:
        return tensor
    return tensor.clone(memory_format=torch.contiguous_format)


def _storage(tensor: Tensor) -> int:
    return tensor.untyped_storage().data_ptr()
