"""Runs calls of one op: POST /v1/kernels/{name}, and the parts that other kinds of calls share.

This is the hot path. It does not pass through FastAPI.
"""

from __future__ import annotations

import functools
import math
import time
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

from warpcall import wire
from warpcall.errors import InvalidInput, NotFound
from warpcall_service.admission import Admission
from warpcall_service.calls.call_template import CallFormat
from warpcall_service.calls.quick import QuickCalls
from warpcall_service.calls.upload import Upload, Uploads
from warpcall_service.formats import responses
from warpcall_service.formats.json_writer import JsonWriter, ResponseBody
from warpcall_service.formats.media_types import accepted
from warpcall_service.formats.responses import Format, SafetensorsFormat
from warpcall_service.http.exchange import JOIN_BYTES, Exchange
from warpcall_service.http.problems import Headers
from warpcall_service.http.watchdog import ClientWatchdog
from warpcall_service.lanes.arena_memory import copy_in_chunks
from warpcall_service.lanes.engine import LocalEngine
from warpcall_service.lanes.plan import Plan
from warpcall_service.lanes.status import Timing
from warpcall_service.settings import Settings
from warpcall_service.text import brief

MIN_TIMEOUT_S = 0.1  # a shorter timeout is raised to this, within which a small call can end


# Writes the response to a call that its lane has run. The first step, until it awaits something, follows
# the end of the call at once: no other task runs in between.
Write = Callable[[JsonWriter], Awaitable[tuple[Headers, ResponseBody]]]


class CallRunner:
    """Runs calls whose inputs are in the arena, and sends the responses from there.

    Attributes:
        prepare: as `QuickCalls.prepare`.
    """

    def __init__(
        self, settings: Settings, engine: LocalEngine, uploads: Uploads, quick: QuickCalls
    ) -> None:
        self._settings = settings
        self._engine = engine
        self._ops = {op["name"]: op for op in engine.catalog}
        self.uploads = uploads
        self.prepare = quick.prepare
        self._formats = responses.formats(settings.max_json_bytes)
        self._json_admission = Admission("JSON responses", 1, math.inf, None)

    async def run_op(self, exchange: Exchange, watchdog: ClientWatchdog, name: str) -> None:
        """Respond to a call of the op `name`.

        Raises:
            Busy: the user has used up the device time of the day.
            Problem: the call is invalid, or it failed.
            ClientGone: the client has left.
        """
        op = self.op(name)
        exchange.op = op["name"]
        self.check_device_time(exchange)
        format_ = self.response_format(exchange)
        self.read_timeout(exchange, watchdog)
        upload = await self.uploads.read_call(exchange, watchdog, op, format_.check)

        async def write(writer: JsonWriter) -> tuple[Headers, ResponseBody]:
            response = await format_.write(upload.plan, upload.outputs(), writer)
            headers = [(b"content-type", format_.media_type)]
            if isinstance(format_, SafetensorsFormat) and upload.is_cached:
                self.prepare(exchange, upload.plan, _format_of(upload.plan, headers, response.head))
            return headers, response

        await self.run(exchange, watchdog, upload, write)

    def check_device_time(self, exchange: Exchange) -> None:
        """Raise Busy if the caller has used up the device time of the day."""
        self._engine.quotas.check_device_time(exchange.caller.name)

    def op(self, name: str) -> Mapping[str, Any]:
        op = self._ops.get(wire.op_name(name))
        if op is None:
            raise NotFound(wire.no_such_op(name, self._ops), field="name")
        return op

    def response_format(self, exchange: Exchange) -> Format:
        return self._formats[accepted(exchange.headers.get(b"accept"))]

    async def run(
        self, exchange: Exchange, watchdog: ClientWatchdog, upload: Upload, write: Write
    ) -> None:
        """Run a call of any kind on its lane, send its response, and release its slots.

        Args:
            write: writes the response, whose data lie in the slots of `upload`.
        """
        try:
            watchdog.pause()
            watchdog.clear_deadline()
            timing = await self._compute(exchange, upload)
            allocate = functools.partial(self._allocate, exchange, upload)
            user = exchange.caller.name
            writer = JsonWriter(self._json_admission, user, allocate, upload.dtypes)
            headers, response = await write(writer)
            if len(response.head) > JOIN_BYTES:
                response = await _move_to_arena(response, writer)
            headers = [
                *headers,
                (b"content-length", b"%d" % (len(response.head) + len(response.data))),
                (b"server-timing", timing.header()),
                (b"x-warpcall-device", timing.device.encode()),
            ]
            watchdog.begin_response()
            await exchange.stream(headers, response.head, response.data, watchdog.progress)
        finally:
            upload.release()

    async def _compute(self, exchange: Exchange, upload: Upload) -> Timing:
        """Run a call on its lane, and record how long each stage took."""
        uploaded = time.monotonic()
        timing = await self._engine.run_on_lane(
            upload.plan,
            upload.source,
            upload.target,
            upload.target_offset,
            uploaded + self._settings.call_timeout_s
            if exchange.timeout_s is None
            else exchange.began + exchange.timeout_s,
        )
        exchange.computed, exchange.compile_ms = time.monotonic(), timing.compile_ms
        exchange.stages_ms = timing.stages_ms(uploaded - exchange.began)
        return timing

    async def _allocate(self, exchange: Exchange, upload: Upload, nbytes: int) -> memoryview:
        slot = await self._engine.acquire(
            nbytes, self._settings.queue_timeout_s, exchange.caller.name, beside=upload.target
        )
        upload.held.append(slot)
        return slot.view

    def read_timeout(self, exchange: Exchange, watchdog: ClientWatchdog) -> None:
        """Read the caller's timeout, if the request has one.

        The watchdog cancels the request then, until `run` hands the deadline to the lane.
        """
        given = exchange.headers.get(wire.TIMEOUT_HEADER.lower().encode())
        if given is None:
            return
        try:
            timeout_s = float(given)
        except ValueError:
            timeout_s = 0.0
        if not timeout_s > 0:
            raise InvalidInput(
                f"{wire.TIMEOUT_HEADER} must be a positive number of seconds, "
                f"got {brief(given.decode('latin-1'))}",
                field=wire.TIMEOUT_HEADER,
            )
        watchdog.set_deadline(self.limit_time(exchange, timeout_s))

    def limit_time(self, exchange: Exchange, timeout_s: float) -> float:
        """Set, and return, the time that a call has, in seconds since its request came.

        A shorter time that was set before remains.
        """
        timeout_s = min(max(timeout_s, MIN_TIMEOUT_S), self._settings.call_timeout_s)
        if exchange.timeout_s is not None:
            timeout_s = min(timeout_s, exchange.timeout_s)
        exchange.timeout_s = timeout_s
        return timeout_s


def _format_of(plan: Plan, headers: Headers, head: bytes) -> CallFormat:
    """How a call is written whose request and response are safetensors."""
    return CallFormat(headers, head, plan.input_nbytes, (0, plan.output_nbytes))


async def _move_to_arena(response: ResponseBody, writer: JsonWriter) -> ResponseBody:
    """Copy a response with a long head into the arena.

    Otherwise a client that reads slowly would occupy memory on the heap, which the limits of the
    arena do not bound.
    """
    nbytes = len(response.head)
    view = await writer.allocate(nbytes + len(response.data))
    await copy_in_chunks(view, memoryview(response.head))
    await copy_in_chunks(view[nbytes:], response.data)
    return ResponseBody(b"", view)
