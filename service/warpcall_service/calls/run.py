"""Runs calls of one op: POST /v1/kernels/{name}, and the parts that other kinds of calls share.

This is the hot path. It does not pass through FastAPI.
"""

from __future__ import annotations

import functools
import math
import time
from collections.abc import Mapping
from typing import Any

from warpcall import wire
from warpcall.errors import InvalidInput, NotFound
from warpcall_service.admission import Admission
from warpcall_service.calls.quick import QuickCalls
from warpcall_service.calls.upload import Upload, Uploads
from warpcall_service.formats import responses
from warpcall_service.formats.json_writer import JsonWriter, ResponseBody
from warpcall_service.formats.media_types import accepted
from warpcall_service.formats.responses import Format, SafetensorsFormat
from warpcall_service.http.body import Body
from warpcall_service.http.exchange import JOIN_BYTES, Exchange
from warpcall_service.http.problems import Headers
from warpcall_service.http.watchdog import ClientWatchdog
from warpcall_service.lanes.arena_memory import copy_in_chunks
from warpcall_service.lanes.engine import LocalEngine
from warpcall_service.lanes.status import Timing
from warpcall_service.settings import Settings
from warpcall_service.text import brief

MIN_TIMEOUT_S = 0.1  # a shorter timeout is raised to this, within which a small call can end


class Calls:
    """Reads the bodies of calls into the arena, runs them, and sends the responses from there."""

    def __init__(
        self, settings: Settings, engine: LocalEngine, uploads: Uploads, quick: QuickCalls
    ) -> None:
        self._settings = settings
        self._engine = engine
        self._ops = {op["name"]: op for op in engine.catalog}
        self.uploads = uploads
        self._quick = quick
        self._formats = responses.formats(settings.max_json_bytes)
        self._json_admission = Admission("JSON responses", 1, math.inf, None)

    async def run_call(self, exchange: Exchange, watchdog: ClientWatchdog, name: str) -> None:
        """Respond to a call of the op `name`.

        Raises:
            Problem: the call is invalid, or it failed.
            ClientGone: the client has left.
        """
        op = self.op(name)
        exchange.op = op["name"]
        format_ = self.response_format(exchange)
        timeout_s = self.timeout_s(exchange, watchdog)
        body = Body(exchange, watchdog, self._settings.max_body_bytes)
        upload = await self.uploads.read_call(exchange, body, op, format_.check)
        try:
            timing = await self.compute(exchange, watchdog, upload, timeout_s)
            writer = self.writer(exchange, upload)
            response = await format_.write(upload.plan, upload.outputs(), writer)
            headers = [(b"content-type", format_.media_type)]
            if isinstance(format_, SafetensorsFormat) and upload.is_cached:
                head, type_ = response.head, format_.media_type
                self._quick.prepare(exchange, upload.plan, head, type_, timeout_s)
            await self.send(exchange, watchdog, upload, timing, headers, response)
        finally:
            upload.release()

    def op(self, name: str) -> Mapping[str, Any]:
        op = self._ops.get(wire.op_name(name))
        if op is None:
            raise NotFound(wire.no_such_op(name, self._ops), field="name")
        return op

    def response_format(self, exchange: Exchange) -> Format:
        return self._formats[accepted(exchange.headers.get(b"accept"))]

    async def compute(
        self, exchange: Exchange, watchdog: ClientWatchdog, upload: Upload, timeout_s: float | None
    ) -> Timing:
        """Run a call on its lane, and record how long each stage took.

        Args:
            timeout_s: seconds since the request came; None means `call_timeout_s` from now.
        """
        uploaded = time.monotonic()
        watchdog.pause()
        watchdog.clear_deadline()
        timing = await self._engine.run_on_lane(
            upload.plan,
            upload.source,
            upload.target,
            upload.target_offset,
            uploaded + self._settings.call_timeout_s
            if timeout_s is None
            else exchange.began + timeout_s,
        )
        exchange.stages_ms = timing.stages_ms(uploaded - exchange.began)
        return timing

    async def send(
        self,
        exchange: Exchange,
        watchdog: ClientWatchdog,
        upload: Upload,
        timing: Timing,
        headers: Headers,
        response: ResponseBody,
    ) -> None:
        """Send a response whose data lie in the slots of `upload`."""
        if len(response.head) > JOIN_BYTES:
            response = await self._move_to_arena(exchange, response, upload)
        headers = response_headers(headers, len(response.head) + len(response.data), timing)
        watchdog.begin_response()
        await exchange.stream(headers, response.head, response.data, watchdog.progress)

    async def _move_to_arena(
        self, exchange: Exchange, response: ResponseBody, upload: Upload
    ) -> ResponseBody:
        """Copy a response with a long head into the arena.

        Otherwise a client that reads slowly would occupy memory on the heap, which the
        limits of the arena do not bound.
        """
        nbytes = len(response.head)
        view = await self._allocate(exchange, upload, nbytes + len(response.data))
        await copy_in_chunks(view, memoryview(response.head))
        await copy_in_chunks(view[nbytes:], response.data)
        return ResponseBody(b"", view)

    def writer(self, exchange: Exchange, upload: Upload) -> JsonWriter:
        """Writes JSON for the response of a call; a long text is written into the arena."""
        allocate = functools.partial(self._allocate, exchange, upload)
        return JsonWriter(self._json_admission, exchange.caller.name, allocate, upload.dtypes)

    async def _allocate(self, exchange: Exchange, upload: Upload, nbytes: int) -> memoryview:
        slot = await self._engine.acquire(
            nbytes, self._settings.queue_timeout_s, exchange.caller.name, beside=upload.target
        )
        upload.held.append(slot)
        return slot.view

    def timeout_s(self, exchange: Exchange, watchdog: ClientWatchdog) -> float | None:
        """The caller's timeout in seconds; None if the request has none.

        The watchdog cancels the request then, until `compute` hands the deadline to the lane.
        """
        given = exchange.headers.get(wire.TIMEOUT_HEADER.lower().encode())
        if given is None:
            return None
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
        timeout_s = min(max(timeout_s, MIN_TIMEOUT_S), self._settings.call_timeout_s)
        watchdog.set_deadline(timeout_s)
        return timeout_s


def response_headers(headers: Headers, nbytes: int, timing: Timing) -> Headers:
    """Add the headers that every response of a call has."""
    return [
        *headers,
        (b"content-length", b"%d" % nbytes),
        (b"server-timing", timing.header()),
        (b"x-warpcall-device", timing.device.encode()),
    ]
