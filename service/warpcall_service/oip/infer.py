"""POST /v2/models/{model}/infer: inference requests of the Open Inference Protocol, as calls."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any

from warpcall_service.calls.run import CallRunner
from warpcall_service.formats.json_writer import JsonWriter, ResponseBody
from warpcall_service.http.decompress import open_body
from warpcall_service.http.exchange import Exchange
from warpcall_service.http.problems import Headers
from warpcall_service.http.watchdog import ClientWatchdog
from warpcall_service.oip.models import Models
from warpcall_service.oip.reader import InferReader
from warpcall_service.oip.repeats import Repeats
from warpcall_service.oip.statistics import Statistics
from warpcall_service.settings import Settings


class Inference:
    """Answers inference requests: each becomes a call, which `calls` runs."""

    def __init__(
        self,
        settings: Settings,
        calls: CallRunner,
        models: Models,
        reader: InferReader,
        statistics: Statistics,
        repeats: Repeats,
    ) -> None:
        self._settings = settings
        self._calls = calls
        self._models = models
        self._reader = reader
        self._statistics = statistics
        self._repeats = repeats

    async def run(
        self,
        exchange: Exchange,
        watchdog: ClientWatchdog,
        name: str,
        version: str | None = None,
    ) -> None:
        """Answer one request for the model `name`; without `version`, for its only version.

        Raises:
            Problem: why there is no answer.
            ClientGone: nobody waits for it any more.
        """
        op = self._models.op(name, version)
        exchange.op = op["name"]
        stages_ms = None
        try:
            await self._run(exchange, watchdog, op)
            stages_ms = exchange.stages_ms
        finally:
            seconds = time.monotonic() - exchange.began
            self._statistics.record(exchange.op, seconds, stages_ms)

    async def _run(
        self, exchange: Exchange, watchdog: ClientWatchdog, op: Mapping[str, Any]
    ) -> None:
        self._calls.check_device_time(exchange)
        self._calls.read_timeout(exchange, watchdog)
        body = open_body(exchange, watchdog, self._settings.max_body_bytes)
        call = await self._reader.read_call(exchange, body, op)
        upload, response = call.upload, call.response
        if (timeout_s := response.request.timeout_s) is not None:
            self._calls.limit_time(exchange, timeout_s)

        async def write(writer: JsonWriter) -> tuple[Headers, ResponseBody]:
            headers, written = await response.write(upload.plan, upload.outputs(), writer)
            format_ = self._repeats.format_of(exchange, call, headers, written.head)
            if format_ is not None:
                self._calls.prepare(exchange, upload.plan, format_)
            return headers, written

        await self._calls.run(exchange, watchdog, upload, write)
