"""From the body of a call to a plan and memory that holds its inputs, whatever the format."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from warpcall import wire
from warpcall.errors import InvalidInput, TooLarge, UnsupportedMedia
from warpcall_service.formats import multipart, params
from warpcall_service.formats.json_pool import INLINE_BYTES, JsonPool
from warpcall_service.formats.media_types import content_type
from warpcall_service.http.body import Body
from warpcall_service.http.exchange import Exchange
from warpcall_service.lanes.fair_semaphore import FairSemaphore
from warpcall_service.lanes.free_ranges import round_up
from warpcall_service.lanes.plan import InputTensor, Plan
from warpcall_service.lanes.slot import Slot
from warpcall_service.settings import Settings
from warpcall_service.text import brief

MAX_LARGE_JSON_CALLS = (
    4  # large JSON bodies at a time whose tensors, up to 4 times their size, lie on the heap
)
CACHED_HEADER_BYTES = 4 << 10  # a longer header is parsed each time rather than kept as a key
_NOT_LIMITED = contextlib.nullcontext()
ALIGNMENT = 64  # of the output region: a cache line, and more than any element or GPU load
LATER_BYTES = 1 << 20  # outputs of more than this are given memory when the inputs are here


@dataclass(frozen=True, slots=True)
class Upload:
    """A call that is all here.

    Attributes:
        source: its inputs are at the start.
        target: its outputs go here, from `target_offset`; may be `source`.
        held: further slots to give back with these.
    """

    plan: Plan
    source: Slot
    target: Slot
    target_offset: int
    held: list[Slot] = field(default_factory=list)

    def outputs(self) -> memoryview:
        """The bytes of the output region."""
        return self.target.view[self.target_offset : self.target_offset + self.plan.output_nbytes]

    def release(self) -> None:
        """Give the memory back; again is harmless."""
        for slot in (self.source, self.target, *self.held):
            slot.release()


class Host(Protocol):
    """What has plans and memory for uploads: the engine, or who stands before it. See there."""

    def cached_plan(self, key: Hashable) -> Plan | None: ...

    def cache_plan(self, key: Hashable, plan: Plan) -> None: ...

    async def plan_call(
        self, op: str, tensors: Sequence[InputTensor], params: Mapping[str, Any]
    ) -> Plan: ...

    async def acquire(
        self,
        nbytes: int,
        timeout_s: float,
        user: str,
        *,
        beside: Slot | None = None,
        deferred_nbytes: int = 0,
    ) -> Slot: ...


class Uploads:
    """Reads calls into the arena.

    Attributes:
        json: parses JSON bodies.
        json_semaphore: taken by calls with a large JSON body.
    """

    def __init__(
        self,
        settings: Settings,
        host: Host,
        json: JsonPool,
        json_semaphore: FairSemaphore | None = None,
    ) -> None:
        self._settings = settings
        self._engine = host
        self.json = json
        self.json_semaphore = json_semaphore or FairSemaphore(MAX_LARGE_JSON_CALLS)

    async def read_call(
        self,
        exchange: Exchange,
        body: Body,
        op: Mapping[str, Any],
        check: Callable[[Plan], None],
    ) -> Upload:
        """Read a call of `op`; `check` may refuse its plan before the tensors are read.

        Raises:
            Problem: what is wrong with it, or that there is no room; no memory is kept then.
        """
        headers = exchange.headers
        if encoding := headers.get(b"content-encoding"):
            raise UnsupportedMedia(
                f"the body must come without Content-Encoding, got {brief(encoding.decode('latin-1'))}",
                field="content-encoding",
            )
        kind = content_type(headers.get(b"content-type"))
        query: bytes = exchange.scope["query_string"]
        if kind.media == "safetensors":
            return await self._safetensors(body, op, query, check)
        if kind.media == "json":
            return await self._json(body, op, query, check)
        return await self._form(body, op, query, kind.boundary, check)

    async def without_body(
        self, body: Body, op: Mapping[str, Any], given: params.Params, check: Callable[[Plan], None]
    ) -> Upload:
        """A call of `op` whose tensors the host has, and that has parameters only."""
        plan = await self._engine.plan_call(op["name"], [], given)
        check(plan)
        return await self.complete(body, plan, await self.allocate_call(body, plan, later=False))

    async def _safetensors(
        self, body: Body, op: Mapping[str, Any], query: bytes, check: Callable[[Plan], None]
    ) -> Upload:
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
        key = op["name"], query, text
        plan = self._engine.cached_plan(key)
        if plan is None:
            header = wire.decode_header(text)
            given = params.from_query(query, op)
            if wire.PARAMS_KEY in header.metadata:
                given = params.merge(
                    given, params.from_json(header.metadata[wire.PARAMS_KEY], wire.PARAMS_KEY)
                )
            body.watchdog.pause()
            tensors = [InputTensor.of(info) for info in header.tensors]
            plan = await self._engine.plan_call(op["name"], tensors, given)
            if nbytes + len(query) <= CACHED_HEADER_BYTES:
                self._engine.cache_plan(key, plan)
        expected = 8 + nbytes + plan.input_nbytes
        if body.declared is not None and body.declared != expected:
            raise InvalidInput(
                f"the body must have {expected} bytes as its header says, got {body.declared}",
                field="body",
            )
        check(plan)
        slot = await self.allocate_call(body, plan)
        try:
            await body.into(slot.view[: plan.input_nbytes], "the data after the header")
            await body.end("the last tensor")
            return await self.complete(body, plan, slot)
        except BaseException:
            slot.release()
            raise

    async def _json(
        self, body: Body, op: Mapping[str, Any], query: bytes, check: Callable[[Plan], None]
    ) -> Upload:
        """The text waits in the arena; what a large one becomes is on the heap, for few calls at a
        time."""
        limit = self._settings.max_json_bytes
        if body.declared is not None and body.declared > limit:
            raise TooLarge(
                f"a JSON body must have at most {limit} bytes, got {body.declared}", field="body"
            )
        text = await self.allocate(body, limit if body.declared is None else body.declared)
        try:
            nbytes = await body.all_into(text.view, "a JSON body")
            body.watchdog.pause()
            small = nbytes <= INLINE_BYTES
            async with _NOT_LIMITED if small else self.json_semaphore.acquire(body.user, nbytes):
                call = await self.json.read_call(text.view[:nbytes], body.user)
                text.release()
                given = params.merge(params.from_query(query, op), call.params)
                tensors = [InputTensor.of(info) for info in call.tensors]
                plan = await self._engine.plan_call(op["name"], tensors, given)
                check(plan)
                slot = await self.allocate_call(body, plan, later=False)
                await call.write(slot.view)
        finally:
            text.release()
        return await self.complete(body, plan, slot)

    async def _form(
        self,
        body: Body,
        op: Mapping[str, Any],
        query: bytes,
        boundary: bytes,
        check: Callable[[Plan], None],
    ) -> Upload:
        """What a form holds is known at its end, so the outputs' memory is asked for then."""
        if body.declared is None:
            raise InvalidInput(
                "a form must come with its Content-Length, not chunked", field="content-length"
            )
        source = await self.allocate(body, body.declared)
        try:
            form = multipart.Form(boundary, source.view, op)
            while data := await body.chunk():
                for i, piece in enumerate(form.pieces(bytes(data))):
                    if i:
                        await asyncio.sleep(0)
                    form.feed(piece)
            form.finish()
            body.watchdog.pause()
            given = params.merge(params.from_query(query, op), form.params)
            plan = await self._engine.plan_call(op["name"], form.tensors, given)
            check(plan)
            target = await self.allocate(body, plan.output_nbytes, beside=source)
        except BaseException:
            source.release()
            raise
        return Upload(plan, source, target, 0)

    async def allocate_call(self, body: Body, plan: Plan, *, later: bool = True) -> Slot:
        """Memory for the inputs of a call, and its outputs; `complete` follows once they are here.

        Args:
            later: a client that sends slowly would hold the memory of large outputs for nothing, so
                it is only promised. Small outputs lie behind the inputs in the same slot, which costs
                less.
        """
        if later and plan.output_nbytes > LATER_BYTES:
            return await self.allocate(body, plan.input_nbytes, deferred_nbytes=plan.output_nbytes)
        return await self.allocate(body, _behind(plan) + plan.output_nbytes)

    async def complete(self, body: Body, plan: Plan, slot: Slot) -> Upload:
        """A call whose inputs are in the slot that `allocate_call` gave, with memory for its outputs."""
        if not slot.deferred_nbytes:
            return Upload(plan, slot, slot, _behind(plan))
        body.watchdog.pause()
        target = await slot.arena.acquire_deferred(slot, self._settings.call_timeout_s)
        return Upload(plan, slot, target, 0)

    async def allocate(
        self, body: Body, nbytes: int, *, beside: Slot | None = None, deferred_nbytes: int = 0
    ) -> Slot:
        """A slot for the caller, who has time to send again from then on."""
        body.watchdog.pause()
        slot = await self._engine.acquire(
            nbytes,
            self._settings.queue_timeout_s,
            body.user,
            beside=beside,
            deferred_nbytes=deferred_nbytes,
        )
        body.watchdog.resume()
        return slot


def _behind(plan: Plan) -> int:
    """Where the outputs begin in a slot that they share with the inputs."""
    return round_up(plan.input_nbytes, ALIGNMENT)
