"""POST /v2/models/{model}/infer: inference requests of the Open Inference Protocol, as calls."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from typing import Any

from warpcall_service.calls.run import CallRunner
from warpcall_service.http.decompress import open_body
from warpcall_service.http.exchange import Exchange
from warpcall_service.http.watchdog import ClientWatchdog
from warpcall_service.oip.models import Models
from warpcall_service.oip.reader import InferReader
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
    ) -> None:
        self._settings = settings
        self._calls = calls
        self._models = models
        self._reader = reader
        self._statistics = statistics

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
        ok = False
        try:
            await self._run(exchange, watchdog, op)
            ok = True
        finally:
            self._statistics.record(exchange, ok=ok)

    async def _run(
        self, exchange: Exchange, watchdog: ClientWatchdog, op: Mapping[str, Any]
    ) -> None:
        self._calls.read_timeout(exchange, watchdog)
        body = open_body(exchange, watchdog, self._settings.max_body_bytes)
        upload, response = await self._reader.read_call(exchange, body, op)
        if (timeout_s := response.request.timeout_s) is not None:
            self._calls.limit_time(exchange, timeout_s)
        write = functools.partial(response.write, upload.plan, upload.outputs())
        await self._calls.run(exchange, watchdog, upload, write)
