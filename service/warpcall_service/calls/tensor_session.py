"""The stored tensors of one call, and the plan of a call that reads or creates some."""

from __future__ import annotations

import secrets
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Self

from warpcall import wire
from warpcall.errors import Busy, InvalidInput, TooLarge
from warpcall.wire import TensorInfo
from warpcall_service.calls import programs
from warpcall_service.calls.programs import Checked
from warpcall_service.calls.tensor_registry import StoredTensor, TensorRegistry
from warpcall_service.formats.params import Params
from warpcall_service.lanes.engine import LocalEngine
from warpcall_service.lanes.plan import Plan
from warpcall_service.text import brief

# Checks what a call is to run, on its parameters, the tensors of its body and its stored inputs.
Check = Callable[[Params, Sequence[TensorInfo], Sequence[TensorInfo]], Awaitable[Checked]]
# Chooses which outputs are stored: their ids by name; the server chooses an id that is empty.
ChooseIds = Callable[[Sequence[str]], Mapping[str, str]]


class TensorSession:
    """The stored tensors that one call reads and creates, all of them on one lane.

    Used as a context manager. At its end the inputs are released, and so is the memory reserved for
    outputs, unless `commit` has made them stored tensors.

    Attributes:
        inputs: stored tensors that the call reads, by the name of the input.
        lane: the lane that has the inputs, and that must run the call.
    """

    def __init__(self, engine: LocalEngine, registry: TensorRegistry, user: str) -> None:
        self._engine = engine
        self._registry = registry
        self._user = user
        self.inputs: dict[str, StoredTensor] = {}
        self._outputs: dict[str, StoredTensor] = {}
        self.lane = ""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def resolve(self, ids: Mapping[str, str], device: str, nbytes: int) -> None:
        """Find the inputs, and choose the lane.

        Args:
            ids: of stored tensors, by the name of the input.
            device: the lane that the caller asks for; may be empty.
            nbytes: of the body; without inputs and device, a lane with room for as much is chosen.

        Raises:
            NotFound: there is no such tensor.
            InvalidInput: the tensors are on several lanes, or there is no such device.
        """
        found = {name: self._registry.find(self._user, id_, name) for name, id_ in ids.items()}
        lanes = {name: stored.lane for name, stored in found.items()}
        if device:
            if device not in (known := self._engine.open_lanes()):
                raise InvalidInput(
                    f"{wire.DEVICE_HEADER} must be one of {', '.join(known)}, got {brief(device)}",
                    field=wire.DEVICE_HEADER,
                )
            lanes[wire.DEVICE_HEADER] = device
        self.lane = common_lane(lanes) or self._registry.choose_lane(nbytes)
        for stored in found.values():
            self._registry.retain(stored)
        self.inputs = found

    def reserve(self, outputs: Iterable[TensorInfo], ids: Mapping[str, str], ttl_s: float) -> None:
        """Reserve memory for those outputs that have an id.

        Raises:
            TooLarge, Busy: a limit on stored tensors does not allow it.
        """
        wanted = [(ids[info.name], info) for info in outputs if info.name in ids]
        reserved = self._registry.reserve(self._user, self.lane, wanted, ttl_s)
        self._outputs = {stored.info.name: stored for stored in reserved}

    @property
    def outputs(self) -> Mapping[str, StoredTensor]:
        """What `reserve` reserved, by the name of the output."""
        return self._outputs

    def commit(self) -> dict[str, dict[str, Any]]:
        """Make the outputs stored tensors of the user; returns their descriptions by name.

        There must be no `await` between the end of the call on the lane and this. The registry
        removes the tensors of a worker that is lost, so that it must know them before that.
        """
        self._registry.commit(self._outputs.values())
        return {name: stored.to_json() for name, stored in self._outputs.items()}

    def close(self) -> None:
        """Release the inputs and outputs; a second time has no effect."""
        self._registry.release([*self.inputs.values(), *self._outputs.values()])
        self.inputs, self._outputs = {}, {}


@dataclass(frozen=True, slots=True)
class ProgramPlanner:
    """Plans a call on stored tensors as a program; the planner that `Uploads.read_call` takes.

    Attributes:
        name: of the call, in messages.
        ttl_s: time to live of the outputs that are stored.
    """

    engine: LocalEngine
    registry: TensorRegistry
    session: TensorSession
    name: str
    check: Check
    choose_ids: ChooseIds
    ttl_s: float

    @property
    def lane(self) -> str:
        return self.session.lane

    async def plan_call(
        self, op: str, tensors: Sequence[TensorInfo], params: Mapping[str, Any]
    ) -> Plan:
        """Check the call, and reserve memory for the outputs that are stored.

        Raises:
            Problem: why the call cannot run.
        """
        inputs = self.session.inputs
        for tensor in tensors:
            if tensor.name in inputs:
                raise InvalidInput(
                    f"{tensor.name} must come in the body or in {wire.TENSORS_HEADER}, it came "
                    "in both",
                    field=tensor.name,
                )
        stored = [TensorInfo(name, t.info.dtype, t.info.shape) for name, t in inputs.items()]
        checked = await self.check(dict(params), tensors, stored)
        outputs = [TensorInfo(n, code, tuple(shape)) for n, _, code, shape in checked["outputs"]]
        ids = self._new_ids([info.name for info in outputs])
        self._check_memory(checked)
        self.session.reserve(outputs, ids, self.ttl_s)
        return programs.build_plan(
            self.name,
            checked,
            tensors,
            {name: stored.number for name, stored in inputs.items()},
            {name: stored.number for name, stored in self.session.outputs.items()},
        )

    def _new_ids(self, outputs: Sequence[str]) -> dict[str, str]:
        chosen = self.choose_ids(outputs)
        ids = {name: id_ or secrets.token_hex(8) for name, id_ in chosen.items()}
        if len(set(ids.values())) < len(ids):
            raise InvalidInput(
                f"{wire.STORE_HEADER} must give each id once, got {brief(wire.encode_names(ids))}",
                field=wire.STORE_HEADER,
            )
        for id_ in ids.values():
            wire.check_tensor_id(id_, wire.STORE_HEADER)
        return ids

    def _check_memory(self, checked: Checked) -> None:
        """Refuse a call that needs more memory than its device has, before anything runs."""
        peak, limit = checked["peak_nbytes"], self.engine.memory_nbytes_of(self.lane)
        used = self.registry.nbytes_on(self.lane)
        step = f" at step {checked['peak_step']}" if checked["peak_step"] else ""
        field = checked["peak_step"] or "body"
        if peak > limit:
            raise TooLarge(
                f"{self.name} needs {peak} bytes on {self.lane}{step}, it has {limit} for tensors",
                field=field,
            )
        if peak + used > limit:
            raise Busy(
                f"{self.name} needs {peak} bytes on {self.lane}{step}, where stored tensors have "
                f"{used} of {limit}",
                field=field,
                retry_after_s=1,
            )


def ids_to_store(store: Mapping[str, str], outputs: Sequence[str]) -> Mapping[str, str]:
    """The ids of the outputs that X-Warpcall-Store names, by name.

    Args:
        store: the header's names and ids; `wire.EVERY` stands for all outputs.
    """
    if wire.EVERY in store:
        if len(store) > 1:
            raise InvalidInput(
                f"{wire.STORE_HEADER} must be {wire.EVERY} or names of outputs, got both",
                field=wire.STORE_HEADER,
            )
        base = store[wire.EVERY]
        return {name: f"{base}.{name}" if base else "" for name in outputs}
    for name in store:
        if name not in outputs:
            raise InvalidInput(
                f"{wire.STORE_HEADER} must name outputs, {', '.join(outputs)}, got {brief(name)}",
                field=wire.STORE_HEADER,
            )
    return store


def common_lane(lanes: Mapping[str, str]) -> str:
    """The lane that is the same for all of these names; empty if there are no names.

    Raises:
        InvalidInput: there are several lanes; the message says which name is on which lane.
    """
    names: dict[str, str] = {}
    for name, lane in lanes.items():
        names.setdefault(lane, name)
    if len(names) > 1:
        where = " and ".join(f"{name} is on {lane}" for lane, name in names.items())
        raise InvalidInput(
            f"all tensors of a call must be on one device, {where}", field=wire.TENSORS_HEADER
        )
    return next(iter(names), "")
