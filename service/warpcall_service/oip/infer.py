"""POST /v2/models/{model}/infer: inference requests of the Open Inference Protocol, as calls."""

from __future__ import annotations

from warpcall_service.calls.run import MIN_TIMEOUT_S, Calls
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
        calls: Calls,
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
            await self._run(exchange, watchdog, op["name"])
            ok = True
        finally:
            self._statistics.record(exchange, ok=ok)

    async def _run(self, exchange: Exchange, watchdog: ClientWatchdog, model: str) -> None:
        timeout_s = self._calls.timeout_s(exchange, watchdog)
        body = open_body(exchange, watchdog, self._settings.max_body_bytes)
        upload, response = await self._reader.read_call(exchange, body, self._models.op(model))
        asked_s = response.request.timeout_s
        if asked_s is not None:
            asked_s = min(max(asked_s, MIN_TIMEOUT_S), self._settings.call_timeout_s)
            timeout_s = asked_s if timeout_s is None else min(asked_s, timeout_s)
        try:
            timing = await self._calls.compute(exchange, watchdog, upload, timeout_s)
            writer = self._calls.writer(exchange, upload)
            headers, sent = await response.write(upload.plan, upload.outputs(), writer)
            await self._calls.send(exchange, watchdog, upload, timing, headers, sent)
        finally:
            upload.release()
