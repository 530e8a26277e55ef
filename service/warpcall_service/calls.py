"""POST /v1/kernels/{name}: the hot path, plain ASGI from socket to socket."""

from __future__ import annotations

import asyncio
import time

from warpcall.errors import InvalidInput, NotFound, Unavailable
from warpcall_service import answers
from warpcall_service.answers import Answer
from warpcall_service.body import Body, Watch
from warpcall_service.engine import LocalEngine
from warpcall_service.exchange import JOIN_BYTES, Exchange
from warpcall_service.lane_status import Timing
from warpcall_service.media import accepted
from warpcall_service.params import brief
from warpcall_service.settings import Settings
from warpcall_service.upload import Upload, Uploads

TIMEOUT_HEADER = "X-Warpcall-Timeout"
MIN_TIMEOUT_S = 0.1  # less is taken as this, in which a small call is answered


class Calls:
    """Runs calls: read the body into the arena, run the op there, send the answer from there."""

    def __init__(self, settings: Settings, engine: LocalEngine) -> None:
        self._settings = settings
        self._engine = engine
        self._ops = {op["name"]: op for op in engine.catalog}
        self._uploads = Uploads(settings, engine)
        self._formats = answers.formats(settings.max_json_bytes)

    async def run(self, exchange: Exchange, name: str) -> None:
        """Answer one call of the op `name`.

        Raises:
            Problem: why there is no answer.
            ClientGone: nobody waits for it any more.
        """
        watch = Watch(exchange.connection, self._settings.body_timeout_s)
        try:
            await self._run(exchange, watch, name)
        except asyncio.CancelledError:
            raise (
                watch.verdict()
                or exchange.dismissal()
                or Unavailable("the server is stopping", retry_after_s=1)
            ) from None
        finally:
            watch.close()

    async def _run(self, exchange: Exchange, watch: Watch, name: str) -> None:
        op = self._ops.get(name)
        if op is None:
            known = ", ".join(self._ops)
            raise NotFound(f"there is no kernel {brief(name)}, there are {known}", field="name")
        exchange.op = name
        format_ = self._formats[accepted(exchange.headers.get(b"accept"))]
        timeout_s = self._timeout_s(exchange)
        if timeout_s is not None:
            watch.limit(timeout_s)
        body = Body(exchange, watch, self._settings.max_body_bytes)
        upload = await self._uploads.read(exchange, body, op, format_.check)
        try:
            uploaded = time.monotonic()
            watch.our_turn()
            watch.unlimit()
            timing = await self._engine.run(
                upload.plan,
                upload.source,
                upload.target,
                upload.target_offset,
                uploaded + self._settings.call_timeout_s
                if timeout_s is None
                else exchange.began + timeout_s,
            )
            exchange.stages_ms = {
                "upload": (uploaded - exchange.began) * 1e3,
                "queue": timing.queue_ms,
                "h2d": timing.h2d_ms,
                "kernel": timing.kernel_ms,
                "d2h": timing.d2h_ms,
            }
            answer = format_.write(upload.plan, upload.outputs())
            if len(answer.head) > JOIN_BYTES:
                answer = await self._parked(exchange, answer, upload)
            headers = [
                (b"content-type", format_.media_type),
                (b"content-length", b"%d" % (len(answer.head) + len(answer.data))),
                (b"server-timing", _server_timing(timing)),
                (b"x-warpcall-device", timing.device.encode()),
            ]
            watch.their_turn()
            await exchange.stream(headers, answer.head, answer.data, watch.progress)
        finally:
            upload.release()

    async def _parked(self, exchange: Exchange, answer: Answer, upload: Upload) -> Answer:
        """The same with its head, a long JSON text, in the arena: no slow reader keeps the heap."""
        nbytes = len(answer.head)
        slot = await self._engine.acquire(
            nbytes, self._settings.queue_timeout_s, exchange.caller.name, like=upload.target
        )
        upload.held.append(slot)
        slot.view[:nbytes] = answer.head
        return Answer(b"", slot.view[:nbytes])

    def _timeout_s(self, exchange: Exchange) -> float | None:
        """What the caller allows, counted from its request; None if it leaves it to us."""
        given = exchange.headers.get(TIMEOUT_HEADER.lower().encode())
        if given is None:
            return None
        try:
            timeout_s = float(given)
        except ValueError:
            timeout_s = 0.0
        if not timeout_s > 0:
            raise InvalidInput(
                f"{TIMEOUT_HEADER} must be a positive number of seconds, "
                f"got {brief(given.decode('latin-1'))}",
                field=TIMEOUT_HEADER,
            )
        return min(max(timeout_s, MIN_TIMEOUT_S), self._settings.call_timeout_s)


def _server_timing(timing: Timing) -> bytes:
    return (
        f"queue;dur={timing.queue_ms:.3f}, h2d;dur={timing.h2d_ms:.3f}, "
        f"kernel;dur={timing.kernel_ms:.3f}, d2h;dur={timing.d2h_ms:.3f}"
    ).encode()
