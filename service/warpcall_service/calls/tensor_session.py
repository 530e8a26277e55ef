"""One call on a device's own tensors: what it takes from there, what it leaves, and on which lane."""

from __future__ import annotations

import re
import secrets
from collections.abc import Awaitable, Callable, Hashable, Mapping, Sequence
from typing import Any

from warpcall import wire
from warpcall.errors import Busy, InvalidInput, TooLarge
from warpcall.wire import TensorInfo
from warpcall_service.calls import programs
from warpcall_service.calls.programs import Checked
from warpcall_service.calls.tensor_registry import StoredTensor, TensorRegistry
from warpcall_service.formats import params
from warpcall_service.http.exchange import Exchange
from warpcall_service.lanes.engine import LocalEngine
from warpcall_service.lanes.plan import InputTensor, Plan
from warpcall_service.lanes.slot import Slot
from warpcall_service.settings import Settings
from warpcall_service.text import brief

SECONDS = re.compile(r"[0-9]{1,9}(\.[0-9]{1,9})?")

NOTHING: Mapping[str, str] = {}

Infos = Sequence[TensorInfo]
Check = Callable[[Infos, params.Params, Infos], Awaitable[Checked]]


class TensorSession:
    """Takes the engine's place for the upload of such a call: it plans it, and has its memory.

    Args:
        exchange: its headers say what to take and to leave.
        check: what is to run on the tensors uploaded, the parameters and the tensors there.
        use: ids of further tensors to take, by name.

    Attributes:
        used: tensors that it takes from the device, by name.
        keep: ids of outputs that stay there, by name; empty where the server chooses.
        lane: where all of it is.
    """

    def __init__(
        self,
        settings: Settings,
        engine: LocalEngine,
        registry: TensorRegistry,
        exchange: Exchange,
        check: Check,
        use: Mapping[str, str] = NOTHING,
    ) -> None:
        self._settings = settings
        self._engine = engine
        self._registry = registry
        self._user = exchange.caller.name
        self._name = exchange.op
        self._check = check
        self._reserved: dict[str, StoredTensor] = {}
        self.keep = wire.decode_names(_header(exchange, wire.STORE_HEADER), wire.STORE_HEADER)
        self._ttl_s = self._read_ttl_s(_header(exchange, wire.TTL_HEADER))
        wanted = wire.decode_names(_header(exchange, wire.TENSORS_HEADER), wire.TENSORS_HEADER)
        found = {
            name: registry.find(self._user, id_, name) for name, id_ in {**wanted, **use}.items()
        }
        self.lane = self._choose(found, _header(exchange, wire.DEVICE_HEADER), exchange.declared)
        for stored in found.values():
            registry.retain(stored)
        self.used = found

    def commit(self) -> dict[str, dict[str, Any]]:
        """It has run: list what stays, and tell of it. Not a moment later, see `Lane`: until then
        nobody hears of a process that is lost with it."""
        self._registry.commit(self._reserved.values())
        return {name: stored.to_json() for name, stored in self._reserved.items()}

    def close(self) -> None:
        """It has ended, well or not; again is harmless."""
        self._registry.release([*self.used.values(), *self._reserved.values()])
        self.used, self._reserved = {}, {}

    # In the place of the engine

    def cached_plan(self, key: Hashable) -> Plan | None:
        """None: a plan names tensors by their numbers, which are not used twice."""
        return None

    def cache_plan(self, key: Hashable, plan: Plan) -> None:
        """Not this one."""

    async def plan_call(
        self, op: str, tensors: Sequence[InputTensor], given: Mapping[str, Any]
    ) -> Plan:
        """As the engine's, for the whole session; reserves room for what stays."""
        for tensor in tensors:
            if tensor.name in self.used:
                raise InvalidInput(
                    f"{tensor.name} must come in the body or in {wire.TENSORS_HEADER}, it came "
                    "in both",
                    field=tensor.name,
                )
        uploaded = [TensorInfo(t.name, t.dtype, t.shape) for t in tensors]
        there = [
            TensorInfo(name, stored.info.dtype, stored.info.shape)
            for name, stored in self.used.items()
        ]
        checked = await self._check(uploaded, dict(given), there)
        ids = self._ids([name for name, *_ in checked["outputs"]])
        self._check_peak(checked)
        wanted = [
            (ids[name], TensorInfo(name, code, tuple(shape)))
            for name, _, code, shape in checked["outputs"]
            if name in ids
        ]
        reserved = self._registry.reserve(self._user, self.lane, wanted, self._ttl_s)
        self._reserved = {stored.info.name: stored for stored in reserved}
        return programs.message(
            self._name,
            checked,
            tensors,
            {name: stored.number for name, stored in self.used.items()},
            {name: stored.number for name, stored in self._reserved.items()},
        )

    async def acquire(
        self,
        nbytes: int,
        timeout_s: float,
        user: str,
        *,
        beside: Slot | None = None,
        deferred_nbytes: int = 0,
    ) -> Slot:
        """As the engine's, on this lane."""
        return await self._engine.acquire(
            nbytes,
            timeout_s,
            user,
            beside=beside,
            lane_name=self.lane,
            deferred_nbytes=deferred_nbytes,
        )

    def _choose(self, used: Mapping[str, StoredTensor], device: str, nbytes: int | None) -> str:
        if device and device not in self._engine.open_lanes():
            known = ", ".join(self._engine.open_lanes())
            raise InvalidInput(
                f"{wire.DEVICE_HEADER} must be one of {known}, got {brief(device)}",
                field=wire.DEVICE_HEADER,
            )
        places = {name: stored.lane for name, stored in used.items()}
        if device:
            places[wire.DEVICE_HEADER] = device
        return common_lane(places) or self._registry.place(nbytes or 0)

    def _ids(self, outputs: Sequence[str]) -> dict[str, str]:
        """Ids of what stays, by output."""
        keep = self.keep
        if wire.EVERY in keep:
            if len(keep) > 1:
                raise InvalidInput(
                    f"{wire.STORE_HEADER} must be {wire.EVERY} or names of outputs, got both",
                    field=wire.STORE_HEADER,
                )
            base = keep[wire.EVERY]
            keep = {name: f"{base}.{name}" if base else "" for name in outputs}
        for name in keep:
            if name not in outputs:
                raise InvalidInput(
                    f"{wire.STORE_HEADER} must name outputs, {', '.join(outputs)}, got {brief(name)}",
                    field=wire.STORE_HEADER,
                )
        ids = {name: id_ or secrets.token_hex(8) for name, id_ in keep.items()}
        if len(set(ids.values())) < len(ids):
            raise InvalidInput(
                f"{wire.STORE_HEADER} must give each id once, got {brief(wire.encode_names(ids))}",
                field=wire.STORE_HEADER,
            )
        for id_ in ids.values():
            wire.check_tensor_id(id_, wire.STORE_HEADER)
        return ids

    def _check_peak(self, checked: Checked) -> None:
        """Refuse what the device has no memory for, before anything runs."""
        peak, limit = checked["peak_nbytes"], self._engine.memory_nbytes_of(self.lane)
        there = self._registry.nbytes_on(self.lane)
        step = f" at step {checked['peak_step']}" if checked["peak_step"] else ""
        if peak > limit:
            raise TooLarge(
                f"{self._name} needs {peak} bytes on {self.lane}{step}, it has {limit} for tensors",
                field=checked["peak_step"] or "body",
            )
        if peak + there > limit:
            raise Busy(
                f"{self._name} needs {peak} bytes on {self.lane}{step}, where stored tensors have "
                f"{there} of {limit}",
                field=checked["peak_step"] or "body",
                retry_after_s=1,
            )

    def _read_ttl_s(self, text: str) -> float:
        most = self._settings.tensor_max_ttl_s
        if not text:
            return min(self._settings.tensor_ttl_s, most)
        if not SECONDS.fullmatch(text) or not 0 < float(text) <= most:
            raise InvalidInput(
                f"{wire.TTL_HEADER} must be a number of seconds above 0 and at most {most:g}, "
                f"got {brief(text)}",
                field=wire.TTL_HEADER,
            )
        return float(text)


def common_lane(places: Mapping[str, str]) -> str:
    """The one lane on which all of these are; empty if there are none.

    Raises:
        InvalidInput: they are on several; the message says what is where.
    """
    lanes: dict[str, str] = {}
    for name, lane in places.items():
        lanes.setdefault(lane, name)
    if len(lanes) > 1:
        where = " and ".join(f"{name} is on {lane}" for lane, name in lanes.items())
        raise InvalidInput(
            f"all tensors of a call must be on one device, {where}", field=wire.TENSORS_HEADER
        )
    return next(iter(lanes), "")


def _header(exchange: Exchange, name: str) -> str:
    return exchange.headers.get(name.lower().encode(), b"").decode("latin-1").strip()
