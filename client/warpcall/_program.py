"""Programs: several ops that run together on the server, in one request."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

from warpcall import wire
from warpcall._answer import Answer
from warpcall._arrays import arrays_of, is_array
from warpcall._blocking import run_now, untraced
from warpcall._core import Core
from warpcall._extras.gradients import refuse_gradients
from warpcall._extras.suggestions import Suggests
from warpcall._generated.program_ops import ProgramOps
from warpcall._steps import Ref, Step, StepInput
from warpcall._tensors import BaseStoredTensor, new_id
from warpcall.errors import InvalidInput


class Steps(ProgramOps, Suggests):
    """The steps of a program and the tensors that are sent with it, each tensor once."""

    def __init__(self, core: Core) -> None:
        self._core = core
        self._steps: list[dict[str, Any]] = []
        self._inputs: dict[str, Any] = {}
        # By id() of each input. `_inputs` keeps the objects alive, so that ids stay unique.
        self._names: dict[int, str] = {}

    def step(
        self, op: str, inputs: Mapping[str, StepInput | None], params: Mapping[str, object]
    ) -> Step:
        """Add a step that runs any op. Nothing runs before `run`."""
        inputs = arrays_of(inputs)
        name = f"{op.replace('-', '_').replace('.', '_')}_{len(self._steps) + 1}"
        self._steps.append(
            {
                "name": name,
                "op": op,
                "inputs": {k: self._source(k, v) for k, v in inputs.items() if v is not None},
                "params": {k: v for k, v in params.items() if v is not None},
            }
        )
        return Step(self, name)

    async def _run(
        self,
        outputs: Mapping[str, Ref],
        store: Collection[str],
        ttl_s: float | None,
        timeout_s: float | None,
    ) -> Answer[Any]:
        for name in store:
            if name not in outputs:
                raise InvalidInput(
                    f"store must name outputs, {', '.join(outputs) or 'none'}, got {name!r}",
                    field="store",
                )
        wired = {name: self._source(name, ref) for name, ref in outputs.items()}
        program = {"steps": self._steps, "outputs": wired}
        return await self._core.run(
            wire.PROGRAMS_PATH,
            "program",
            self._inputs,
            {wire.PROGRAM_KEY: program},
            {name: new_id() for name in store},
            ttl_s,
            timeout_s,
        )

    def _source(self, name: str, value: object) -> str:
        if isinstance(value, Ref):
            if value.step.program is not self:
                raise InvalidInput(
                    f"{name} must come from this program, got another program's", field=name
                )
            return f"{value.step.name}.{value.output}"
        refuse_gradients({name: value}, "a program")
        known = self._names.get(id(value))
        if known is None:
            if not is_array(value) and not isinstance(value, BaseStoredTensor):
                raise InvalidInput(
                    f"{name} must be an array, a stored tensor or an output of a step, "
                    f"got {type(value).__name__}",
                    field=name,
                )
            known = self._names[id(value)] = f"x{len(self._inputs) + 1}"
            self._inputs[known] = value
        return known


class Program(Steps):
    """Ops that run together on a device, in one request. Intermediate results stay there.

        p = gpu.program()
        t = p.transpose_add(a, b)              # nothing runs yet: t refers to the output
        y = p.masked_softmax(t, causal=True)
        print(p.run(y=y).outputs["y"])

    The arrays that its ops take are sent with it. The server checks all steps before it runs any,
    and an error names the step at fault: `masked_softmax_2` is the second step.
    """

    @untraced
    def run(
        self,
        *,
        store: Collection[str] = (),
        ttl_s: float | None = None,
        timeout_s: float | None = None,
        **outputs: Ref,
    ) -> Answer[Any]:
        """Run the program. It can be run several times.

        Args:
            store: names of outputs to store on the device. The answer has stored tensors for them.
            ttl_s: seconds after its last use until a stored output is deleted. None means the
                server's default.
            timeout_s: seconds that this call may take; None means the client's.
            outputs: the outputs of steps that the answer holds, by names of your choice.

        Raises:
            InvalidInput: a step is not valid; nothing was computed.
        """
        return run_now(self._run(outputs, store, ttl_s, timeout_s))


class AsyncProgram(Steps):
    """Program for AsyncClient; its `run` is awaited."""

    async def run(
        self,
        *,
        store: Collection[str] = (),
        ttl_s: float | None = None,
        timeout_s: float | None = None,
        **outputs: Ref,
    ) -> Answer[Any]:
        """Program.run, awaited."""
        return await self._run(outputs, store, ttl_s, timeout_s)
