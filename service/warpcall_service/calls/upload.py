"""Reads the body of a call, in any format, into memory of a lane, and has the call planned."""

from __future__ import annotations

import asyncio
import contextlib
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

from warpcall import wire
from warpcall.errors import InvalidInput, TooLarge, UnsupportedMedia
from warpcall.wire import TensorInfo
from warpcall_service.admission import Admission
from warpcall_service.formats import multipart, params
from warpcall_service.formats.json_reader import INLINE_BYTES, JsonReader
from warpcall_service.formats.media_types import content_type
from warpcall_service.http.body import Body
from warpcall_service.http.exchange import Exchange
from warpcall_service.http.watchdog import ClientWatchdog
from warpcall_service.lanes.arena import Slot
from warpcall_service.lanes.engine import LocalEngine
from warpcall_service.lanes.free_ranges import round_up
from warpcall_service.lanes.plan import ALIGNMENT, Plan
from warpcall_service.settings import Settings
from warpcall_service.text import brief

# Large JSON bodies that are parsed at a time. Their arrays, on the heap, take up to 4 times their
# text.
MAX_LARGE_JSON_CALLS = 4
CACHED_HEADER_BYTES = 4 << 10  # a longer header is parsed each time, so that the cache stays small
_NOT_LIMITED = contextlib.nullcontext()


@dataclass(frozen=True, slots=True)
class Upload:
    """A call whose inputs are in the arena, with memory for its outputs.

    Attributes:
        source: the inputs lie at the start of this slot.
        target: the outputs are written to this slot from `target_offset` on; may be `source`.
        held: further slots that `release` frees together with these.
        is_cached: whether a request with the same head and the same header of its body has this plan.
        dtypes: by name, the dtypes that were chosen for inputs that came as plain lists.
    """

    plan: Plan
    source: Slot
    target: Slot
    target_offset: int
    held: list[Slot] = field(default_factory=list)
    is_cached: bool = False
    dtypes: Mapping[str, str] = field(default_factory=dict)

    def outputs(self) -> memoryview:
        """The bytes of the output region."""
        return self.target.view[self.target_offset : self.target_offset + self.plan.output_nbytes]

    def release(self) -> None:
        """Free the slots; a second time has no effect."""
        for slot in (self.source, self.target, *self.held):
            slot.release()


class Planner(Protocol):
    """Plans calls that the engine cannot plan alone, such as calls on stored tensors."""

    @property
    def lane(self) -> str:
        """The lane that must run the call."""

    async def plan_call(
        self, op: str, tensors: Sequence[TensorInfo], params: Mapping[str, Any]
    ) -> Plan:
        """Check a call whose body holds these tensors and parameters, and lay out its outputs."""


@dataclass(slots=True)
class _Call:
    """What is known of a call before its body is read.

    Attributes:
        planner: None means that the engine plans the call, on any lane.
    """

    body: Body
    op: Mapping[str, Any]
    query: bytes
    check_plan: Callable[[Plan], None]
    planner: Planner | None

    @property
    def lane(self) -> str:
        return "" if self.planner is None else self.planner.lane


class Uploads:
    """Reads the bodies of calls into the arena.

    Attributes:
        json: parses JSON bodies.
        json_admission: admits the parsing and copying of large JSON bodies.
    """

    def __init__(self, settings: Settings, engine: LocalEngine) -> None:
        self._settings = settings
        self._engine = engine
        self.json = JsonReader()
        self.json_admission = Admission(
            "large JSON bodies", MAX_LARGE_JSON_CALLS, math.inf, None, of_user=MAX_LARGE_JSON_CALLS
        )

    async def read_call(
        self,
        exchange: Exchange,
        watchdog: ClientWatchdog,
        op: Mapping[str, Any],
        check_plan: Callable[[Plan], None],
        planner: Planner | None = None,
    ) -> Upload:
        """Read a call of `op`.

        Args:
            check_plan: may refuse the plan before the tensors are read.
            planner: plans the call in place of the engine. Such a call may come without a body.

        Raises:
            Problem: the call is invalid, or there is no memory for it. No slot is allocated then.
        """
        body = Body(exchange, watchdog, self._settings.max_body_bytes)
        headers = exchange.headers
        if encoding := headers.get(b"content-encoding"):
            raise UnsupportedMedia(
                f"the body must come without Content-Encoding, got {brief(encoding.decode('latin-1'))}",
                field="content-encoding",
            )
        call = _Call(body, op, exchange.scope["query_string"], check_plan, planner)
        if planner and exchange.declared == 0 and b"content-type" not in headers:
            return await self._read_empty(call)
        kind = content_type(headers.get(b"content-type"))
        if kind.media == "safetensors":
            return await self._read_safetensors(call)
        if kind.media == "json":
            return await self._read_json(call)
        return await self._read_form(call, kind.boundary)

    async def _read_empty(self, call: _Call) -> Upload:
        """A call whose inputs are all stored tensors, and whose parameters are in its URL."""
        call.body.watchdog.pause()
        plan = await self._plan(call, [], params.from_query(call.query, call.op))
        call.check_plan(plan)
        return complete(plan, await self.allocate_call(call.body, plan, call.lane))

    async def _read_safetensors(self, call: _Call) -> Upload:
        body = call.body
        prefix = await body.exactly(8)
        nbytes = wire.header_nbytes(prefix)
        if body.declared is not None and body.declared < 8 + nbytes:
            raise InvalidInput(
                f"the body must hold its header of {nbytes} bytes, got {body.declared - 8} after "
                "the length",
                field="body",
            )
        text = await body.exactly(nbytes)
        if len(text) < nbytes:
            raise InvalidInput(
                f"the header must have {nbytes} bytes, got {len(text)}: the body ends early",
                field="body",
            )
        key = call.op["name"], call.query, text
        cached = not call.planner and nbytes + len(call.query) <= CACHED_HEADER_BYTES
        # A planner's plan names stored tensors by their numbers, which are never used again.
        plan = None if call.planner else self._engine.cached_plan(key)
        if plan is None:
            header = wire.decode_header(text)
            given = params.from_query(call.query, call.op)
            if wire.PARAMS_KEY in header.metadata:
                given = params.merge(
                    given, params.from_json(header.metadata[wire.PARAMS_KEY], wire.PARAMS_KEY)
                )
            body.watchdog.pause()
            plan = await self._plan(call, header.tensors, given)
            if cached:
                self._engine.cache_plan(key, plan)
        expected = 8 + nbytes + plan.input_nbytes
        if body.declared is not None and body.declared != expected:
            raise InvalidInput(
                f"the body must have {expected} bytes as its header says, got {body.declared}",
                field="body",
            )
        call.check_plan(plan)
        slot = await self.allocate_call(body, plan, call.lane)
        try:
            await body.into(slot.view[: plan.input_nbytes], "the data after the header")
            await body.end("the last tensor")
        except BaseException:
            slot.release()
            raise
        return replace(complete(plan, slot), is_cached=cached)

    async def _read_json(self, call: _Call) -> Upload:
        """The text is read into the arena. The arrays that a large text becomes lie on the heap, so
        that only few calls parse one at a time."""
        body, limit = call.body, self._settings.max_json_bytes
        if body.declared is not None and body.declared > limit:
            raise TooLarge(
                f"a JSON body must have at most {limit} bytes, got {body.declared}", field="body"
            )
        declared = limit if body.declared is None else body.declared
        text = await self.allocate(body, declared, lane=call.lane)
        try:
            nbytes = await body.all_into(text.view, "a JSON body")
            body.watchdog.pause()
            small = nbytes <= INLINE_BYTES
            async with _NOT_LIMITED if small else self.json_admission.admitted(body.user, nbytes):
                decoded = await self.json.read_call(text.view[:nbytes], body.user)
                text.release()
                given = params.merge(params.from_query(call.query, call.op), decoded.params)
                plan = await self._plan(call, decoded.tensors, given)
                call.check_plan(plan)
                slot = await self.allocate_call(body, plan, call.lane)
                try:
                    await decoded.write(slot.view)
                except BaseException:  # the client may leave while a large tensor is copied
                    slot.release()
                    raise
        finally:
            text.release()
        return replace(complete(plan, slot), dtypes=decoded.dtypes)

    async def _read_form(self, call: _Call, boundary: bytes) -> Upload:
        """The outputs' memory is allocated at the end of the form, when its tensors are known."""
        body = call.body
        if body.declared is None:
            raise InvalidInput(
                "a form must come with its Content-Length, not chunked", field="content-length"
            )
        source = await self.allocate(body, body.declared, lane=call.lane)
        try:
            form = multipart.FormParser(boundary, source.view, call.op)
            while data := await body.chunk():
                for i, piece in enumerate(form.pieces(bytes(data))):
                    if i:
                        await asyncio.sleep(0)
                    form.feed(piece)
            form.finish()
            body.watchdog.pause()
            given = params.merge(params.from_query(call.query, call.op), form.params)
            plan = await self._plan(call, form.tensors, given)
            call.check_plan(plan)
            target = await self.allocate(body, plan.output_nbytes, beside=source)
        except BaseException:
            source.release()
            raise
        return Upload(plan, source, target, 0)

    async def _plan(self, call: _Call, tensors: Iterable[TensorInfo], given: params.Params) -> Plan:
        planner: Planner | LocalEngine = call.planner or self._engine
        return await planner.plan_call(call.op["name"], list(tensors), given)

    async def allocate_call(self, body: Body, plan: Plan, lane: str = "") -> Slot:
        """Allocate one slot for the inputs and outputs of a call; `complete` says where they lie.

        Args:
            lane: allocate on this lane; empty means any.
        """
        return await self.allocate(body, output_begin(plan) + plan.output_nbytes, lane=lane)

    async def allocate(
        self, body: Body, nbytes: int, *, lane: str = "", beside: Slot | None = None
    ) -> Slot:
        """Allocate a slot. The time that this takes does not count as the client's."""
        body.watchdog.pause()
        slot = await self._engine.acquire(
            nbytes, self._settings.queue_timeout_s, body.user, beside=beside, lane_name=lane
        )
        body.watchdog.resume()
        return slot


def complete(plan: Plan, slot: Slot) -> Upload:
    """The call whose inputs are in a slot of `Uploads.allocate_call`, and its outputs behind them."""
    return Upload(plan, slot, slot, output_begin(plan))


def output_begin(plan: Plan) -> int:
    """Where the outputs begin in a slot that they share with the inputs."""
    return round_up(plan.input_nbytes, ALIGNMENT)
