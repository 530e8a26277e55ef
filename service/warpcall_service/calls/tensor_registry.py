"""The registry of stored tensors: their owners, lanes and times of expiry.

The bytes lie in the worker of a lane, which knows each tensor by a number. A stored tensor is
removed when its user deletes or replaces it, when it expires, or when its lane loses the worker. It
is never removed to make space: a tensor that does not fit is refused.
"""

from __future__ import annotations

import asyncio
import itertools
import time
from collections import Counter, OrderedDict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

from prometheus_client.core import GaugeMetricFamily, Metric

from warpcall.errors import Busy, NotFound, TooLarge
from warpcall.wire import TensorInfo
from warpcall_service.calls.tensor_nodes import TensorNodes
from warpcall_service.lanes.engine import LocalEngine
from warpcall_service.settings import Settings
from warpcall_service.text import brief

BYTES, COUNT = "tensor_user_bytes", "tensor_user_count"  # quotas
MAX_REMEMBERED = 4096  # reasons for which tensors were removed; the oldest is forgotten first


@dataclass(eq=False, slots=True)
class StoredTensor:
    """A tensor on a device that outlives the call that created it.

    Attributes:
        id: chosen by its user, unique among their tensors on this server.
        shown_id: the id as callers see it; see `tensor_nodes.py`.
        number: its key in the worker; a number is never used again.
        info: its name in the call that created it, its dtype and its shape.
        ttl_s: seconds after its last use until it expires.
        expires: by `time.time()`.
        references: calls that use it now. A tensor that was removed is freed when they have ended.
        listed: whether its user can see it. It is not before `commit`, nor after its removal.
        timer: calls `_expire`.
    """

    id: str
    shown_id: str
    number: int
    user: str
    lane: str
    info: TensorInfo
    ttl_s: float
    expires: float = 0.0
    references: int = 0
    listed: bool = False
    timer: asyncio.TimerHandle | None = field(default=None, repr=False)

    def to_json(self) -> dict[str, Any]:
        """Its description in responses."""
        until = datetime.fromtimestamp(self.expires, UTC)
        return {
            "id": self.shown_id,
            "dtype": self.info.dtype,
            "shape": self.info.shape,
            "nbytes": self.info.nbytes,
            "device": self.lane,
            "expires": until.isoformat(timespec="milliseconds").replace("+00:00", "Z"),
        }


class TensorRegistry:
    """All stored tensors of this server.

    A caller that reserves memory must `release` it in the end. What was committed until then stays.

    Attributes:
        nodes: says which server has a tensor.
    """

    def __init__(self, settings: Settings, engine: LocalEngine, nodes: TensorNodes) -> None:
        self.nodes = nodes
        self._settings = settings
        self._engine = engine
        self._listed: dict[tuple[str, str], StoredTensor] = {}  # by user and id
        self._gone: OrderedDict[tuple[str, str], str] = OrderedDict()  # reasons, by user and id
        self._numbers = itertools.count(1)
        self._device_nbytes: Counter[str] = Counter()
        self._user_nbytes: Counter[str] = Counter()
        self._user_count: Counter[str] = Counter()
        engine.on_lost = self._on_worker_lost

    def find(self, user: str, id_: str, field_: str) -> StoredTensor:
        """A tensor of this user. This counts as a use: its time to live begins again.

        `nodes.await_nodes` comes first.

        Args:
            field_: names the part of the request at fault if there is no such tensor.

        Raises:
            NotFound: there is no such tensor; if it was removed, the message says why.
            OnOtherNode, NodeGone: another server has it, or had it.
        """
        id_ = self.nodes.without_node(id_, field_)
        stored = self._listed.get((user, id_))
        if stored is None:
            reason = self._gone.get((user, id_), "none was put here, or it is long gone")
            raise NotFound(f"there is no tensor {brief(id_)}: {reason}", field=field_)
        stored.expires = time.time() + stored.ttl_s
        return stored

    def all_of(self, user: str) -> list[StoredTensor]:
        """The user's tensors, in the order in which they were stored."""
        return [stored for stored in self._listed.values() if stored.user == user]

    def nbytes_on(self, lane: str) -> int:
        """Bytes of all stored tensors on this lane, reserved ones included."""
        return self._device_nbytes[lane]

    def limit_on(self, lane: str) -> int:
        """Limit on the bytes of stored tensors on this lane."""
        return min(int(self._settings.tensor_device_bytes), self._engine.memory_nbytes_of(lane))

    def choose_lane(self, nbytes: int) -> str:
        """The least loaded lane that has memory for this many bytes, or else the least loaded one.

        Raises:
            Unavailable: no lane takes calls.
        """
        lanes = self._engine.open_lanes()
        fits = (la for la in lanes if self._device_nbytes[la] + nbytes <= self.limit_on(la))
        return next(fits, lanes[0])

    def reserve(
        self, user: str, lane: str, wanted: Sequence[tuple[str, TensorInfo]], ttl_s: float
    ) -> list[StoredTensor]:
        """Reserve memory on a lane for tensors that a call is to store.

        Args:
            wanted: ids and descriptions.

        Raises:
            InvalidInput: an id is too long.
            TooLarge: the tensors alone exceed a limit of the user or of the lane.
            Busy: together with the tensors that are stored now they exceed it.
        """
        for id_, _ in wanted:
            self.nodes.check_new(id_)
        nbytes = sum(info.nbytes for _, info in wanted)
        most_bytes, most = (self._engine.quotas.count(user, name) for name in (BYTES, COUNT))
        for who, has, more, limit, unit, rule in (
            (user, self._user_nbytes[user], nbytes, most_bytes, "bytes", f"the quota {BYTES}"),
            (user, self._user_count[user], len(wanted), most, "tensors", f"the quota {COUNT}"),
            (lane, self._device_nbytes[lane], nbytes, self.limit_on(lane), "bytes", "its limit"),
        ):
            if more > limit:
                raise TooLarge(
                    f"{who} may store at most {limit} {unit} by {rule}, asked for {more}",
                    field="tensors",
                )
            if more and has + more > limit:
                raise Busy(
                    f"{who} stores {has} {unit}, with {more} more it would be above {limit}, "
                    f"which {rule} allows; delete some tensors, or wait until they expire",
                    field="tensors",
                    retry_after_s=self._next_expiry_s(who),
                )
        stored = [
            StoredTensor(
                id_,
                self.nodes.with_node(id_),
                next(self._numbers),
                user,
                lane,
                info,
                ttl_s,
                references=1,
            )
            for id_, info in wanted
        ]
        for entry in stored:
            self._count(entry, 1)
        return stored

    def commit(self, stored: Iterable[StoredTensor]) -> None:
        """List reserved tensors, whose bytes are on the device now.

        They replace the tensors that had the same ids.
        """
        now = asyncio.get_running_loop().time()
        for entry in stored:
            entry.expires = time.time() + entry.ttl_s
            if before := self._listed.get((entry.user, entry.id)):
                self._remove(before, "it was replaced")
            self._listed[entry.user, entry.id] = entry
            self._gone.pop((entry.user, entry.id), None)
            entry.listed = True
            entry.timer = asyncio.get_running_loop().call_at(now + entry.ttl_s, self._expire, entry)

    def retain(self, stored: StoredTensor) -> None:
        """Count a call that uses this tensor until `release`."""
        stored.references += 1

    def release(self, stored: Iterable[StoredTensor]) -> None:
        """Count off a call that had retained or reserved these."""
        for entry in stored:
            entry.references -= 1
            self._free_if_unused(entry)

    def delete(self, user: str, id_: str) -> None:
        """Remove a tensor of the user; raises NotFound if there is none."""
        self._remove(self.find(user, id_, "id"), "it was deleted")

    def delete_all(self, user: str) -> int:
        """Remove all tensors of the user; returns how many there were."""
        found = self.all_of(user)
        for stored in found:
            self._remove(stored, "it was deleted")
        return len(found)

    def limits_of(self, user: str) -> dict[str, int]:
        """Limits on the "bytes" and the "count" of the user's stored tensors."""
        quotas = self._engine.quotas
        return {"bytes": quotas.count(user, BYTES), "count": quotas.count(user, COUNT)}

    def nbytes_of(self, user: str) -> int:
        """Bytes of the user's stored tensors, reserved ones included."""
        return self._user_nbytes[user]

    def count_of(self, user: str) -> int:
        """How many tensors the user has stored, reserved ones included."""
        return self._user_count[user]

    def nbytes_by_user(self) -> dict[str, int]:
        """Bytes of stored tensors, by user."""
        return dict(self._user_nbytes)

    def metrics(self) -> Iterable[Metric]:
        """The number and bytes of stored tensors, as Prometheus metrics."""
        device = GaugeMetricFamily(
            "warpcall_tensor_bytes", "Bytes of stored tensors, by lane", labels=["lane"]
        )
        limits = GaugeMetricFamily(
            "warpcall_tensor_limit_bytes",
            "Limit on the bytes of stored tensors, by lane",
            labels=["lane"],
        )
        user_bytes = GaugeMetricFamily(
            "warpcall_user_tensor_bytes", "Bytes of stored tensors, by user", labels=["user"]
        )
        user_count = GaugeMetricFamily(
            "warpcall_user_tensors", "Number of stored tensors, by user", labels=["user"]
        )
        for status in self._engine.status():
            device.add_metric([status.name], self._device_nbytes[status.name])
            limits.add_metric([status.name], self.limit_on(status.name))
        for user, count in self._user_count.items():
            user_count.add_metric([user], count)
            user_bytes.add_metric([user], self._user_nbytes[user])
        return [device, limits, user_bytes, user_count]

    def _expire(self, stored: StoredTensor) -> None:
        left_s = stored.expires - time.time()
        if left_s <= 0:
            self._remove(stored, f"it expired, unused for {stored.ttl_s:g} s")
        else:  # it was used after the timer was set
            loop = asyncio.get_running_loop()
            stored.timer = loop.call_later(left_s, self._expire, stored)

    def _on_worker_lost(self, lane: str) -> None:
        """Remove the tensors of a lane whose worker is lost."""
        for stored in [stored for stored in self._listed.values() if stored.lane == lane]:
            self._remove(stored, f"the process of {lane}, which had it, was lost")

    def _remove(self, stored: StoredTensor, reason: str) -> None:
        del self._listed[stored.user, stored.id]
        stored.listed = False
        if stored.timer is not None:
            stored.timer.cancel()
        self._gone[stored.user, stored.id] = reason
        if len(self._gone) > MAX_REMEMBERED:
            self._gone.popitem(last=False)
        self._free_if_unused(stored)

    def _free_if_unused(self, stored: StoredTensor) -> None:
        if not stored.references and not stored.listed:
            self._count(stored, -1)
            self._engine.free_tensors(stored.lane, [stored.number])

    def _next_expiry_s(self, who: str) -> float:
        """Seconds until the next tensor of this user, or of this lane, expires; at least 1."""
        theirs = (k.expires for k in self._listed.values() if who in (k.user, k.lane))
        return max(1.0, min(theirs, default=0.0) - time.time())

    def _count(self, stored: StoredTensor, sign: int) -> None:
        nbytes = sign * stored.info.nbytes
        for counter, key, amount in (
            (self._device_nbytes, stored.lane, nbytes),
            (self._user_nbytes, stored.user, nbytes),
            (self._user_count, stored.user, sign),
        ):
            counter[key] += amount
            if not counter[key]:
                del counter[key]  # Counter keeps zeros
