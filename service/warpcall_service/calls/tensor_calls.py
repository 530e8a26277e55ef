"""Calls on tensors that stay on a device, and programs: the hot path's neighbours, on the same road."""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable, Coroutine, Mapping
from typing import Any

from warpcall import wire
from warpcall.errors import InvalidInput
from warpcall_service.calls import programs
from warpcall_service.calls.programs import Checked, Checker
from warpcall_service.calls.run import Calls, response_headers
from warpcall_service.calls.tensor_registry import TensorRegistry
from warpcall_service.calls.tensor_session import Check, Infos, TensorSession
from warpcall_service.calls.upload import Upload, Uploads
from warpcall_service.formats import params
from warpcall_service.formats.media_types import JSON
from warpcall_service.formats.responses import Format
from warpcall_service.http.body import Body
from warpcall_service.http.exchange import Exchange
from warpcall_service.http.watchdog import ClientWatchdog
from warpcall_service.lanes.engine import LocalEngine
from warpcall_service.lanes.plan import Plan
from warpcall_service.settings import Settings
from warpcall_service.text import brief

PROGRAMS = "/v1/programs"
TENSORS = "/v1/tensors"
HEADERS = (wire.TENSORS_HEADER, wire.STORE_HEADER, wire.TTL_HEADER, wire.DEVICE_HEADER)
STORED_TENSOR_HEADERS = frozenset(name.lower().encode() for name in HEADERS)
PUT: Mapping[str, Any] = {"name": "put", "params": []}

Work = Callable[[Exchange, ClientWatchdog, str], Awaitable[None]]


class TensorCalls(Calls):
    """All that runs on a lane: plain calls, calls on kept tensors, programs, and transfers."""

    def __init__(
        self, settings: Settings, engine: LocalEngine, uploads: Uploads, registry: TensorRegistry
    ) -> None:
        super().__init__(settings, engine, uploads)
        self._registry = registry
        self._checker = Checker(engine)

    def find(self, method: str, path: str) -> tuple[Work, str] | None:
        """What answers a request that is no plain call, and its argument; None: the routes do."""
        if method == "POST" and path == PROGRAMS:
            return self._program, ""
        if method == "PUT" and path == TENSORS:
            return self._put, ""
        if path.startswith(f"{TENSORS}/"):
            id_ = path[len(TENSORS) + 1 :]
            work = {"PUT": self._put, "GET": self._get}.get(method)
            return (work, id_) if work else None
        return None

    def run(
        self, exchange: Exchange, watchdog: ClientWatchdog, name: str
    ) -> Coroutine[Any, Any, None]:
        """As `Calls.run`."""
        if STORED_TENSOR_HEADERS.isdisjoint(exchange.headers):
            return super().run(exchange, watchdog, name)
        return self._call(exchange, watchdog, name)

    async def _call(self, exchange: Exchange, watchdog: ClientWatchdog, name: str) -> None:
        op = self._op(name)
        exchange.op = name

        def check(tensors: Infos, given: params.Params, stored: Infos) -> Awaitable[Checked]:
            return self._checker.call(name, given, tensors, stored)

        await self._run_and_respond(exchange, watchdog, op, check)

    async def _program(self, exchange: Exchange, watchdog: ClientWatchdog, _: str) -> None:
        exchange.op = "program"

        def check(tensors: Infos, given: params.Params, stored: Infos) -> Awaitable[Checked]:
            if given.keys() != {wire.PROGRAM_KEY}:
                raise InvalidInput(
                    f"a program has the parameter {wire.PROGRAM_KEY} and no other, "
                    f"got {brief(', '.join(given) or 'none')}",
                    field=wire.PROGRAM_KEY,
                )
            return self._checker.program(given[wire.PROGRAM_KEY], tensors, stored)

        await self._run_and_respond(exchange, watchdog, programs.DECLARATION, check)

    async def _put(self, exchange: Exchange, watchdog: ClientWatchdog, id_: str) -> None:
        """Leave the tensors of the body on a device; one of them under this id."""
        exchange.op = "put"
        _refuse(exchange, wire.TENSORS_HEADER, wire.STORE_HEADER)
        if id_:
            wire.check_tensor_id(id_, "id")

        async def check(tensors: Infos, given: params.Params, stored: Infos) -> Checked:
            for name in given:
                raise InvalidInput(f"there is no parameter {brief(name)} of put", field=name)
            if not tensors or (id_ and len(tensors) != 1):
                wanted = "one tensor" if id_ else "one tensor or more"
                raise InvalidInput(f"the body must hold {wanted}, got {len(tensors)}", field="body")
            session.keep = {tensor.name: id_ for tensor in tensors}
            return programs.passed_on(tensors)

        timeout_s = self.timeout_s(exchange, watchdog)
        session = self._session(exchange, check)
        try:
            upload = await self._read(exchange, watchdog, session, PUT, lambda plan: None)
            try:
                timing = await self.compute(exchange, watchdog, upload, timeout_s)
                document = json.dumps({"stored": session.commit()}).encode()
            finally:
                upload.release()
        finally:
            session.close()
        headers = response_headers([(b"content-type", JSON.encode())], len(document), timing)
        await exchange.respond(200, headers, document)

    async def _get(self, exchange: Exchange, watchdog: ClientWatchdog, id_: str) -> None:
        """Answer with a tensor that is on a device."""
        exchange.op = "get"
        _refuse(exchange, *HEADERS)
        format_ = self._format(exchange)
        timeout_s = self.timeout_s(exchange, watchdog)

        async def check(tensors: Infos, given: params.Params, stored: Infos) -> Checked:
            return programs.passed_on(stored)

        session = self._session(exchange, check, {id_: id_})
        try:
            watchdog.pause()
            plan = await session.plan_call("get", [], {})
            format_.check(plan)
            slot = await session.acquire(
                plan.output_nbytes, self._settings.queue_timeout_s, exchange.caller.name
            )
            await self._finish(
                exchange, watchdog, session, Upload(plan, slot, slot, 0), format_, timeout_s
            )
        finally:
            session.close()

    async def _run_and_respond(
        self, exchange: Exchange, watchdog: ClientWatchdog, op: Mapping[str, Any], check: Check
    ) -> None:
        format_ = self._format(exchange)
        timeout_s = self.timeout_s(exchange, watchdog)
        session = self._session(exchange, check)
        try:
            upload = await self._read(exchange, watchdog, session, op, format_.check)
            await self._finish(exchange, watchdog, session, upload, format_, timeout_s)
        finally:
            session.close()

    def _session(
        self, exchange: Exchange, check: Check, use: Mapping[str, str] | None = None
    ) -> TensorSession:
        return TensorSession(
            self._settings, self._engine, self._registry, exchange, check, use or {}
        )

    async def _read(
        self,
        exchange: Exchange,
        watchdog: ClientWatchdog,
        session: TensorSession,
        op: Mapping[str, Any],
        check: Callable[[Plan], None],
    ) -> Upload:
        """The upload, which need not be there where all tensors are."""
        body = Body(exchange, watchdog, self._settings.max_body_bytes)
        uploads = Uploads(self._settings, session, self._uploads.json, self._uploads.json_semaphore)
        if exchange.declared == 0 and b"content-type" not in exchange.headers:
            watchdog.pause()
            given = params.from_query(exchange.scope["query_string"], op)
            return await uploads.without_body(body, op, given, check)
        return await uploads.read_call(exchange, body, op, check)

    async def _finish(
        self,
        exchange: Exchange,
        watchdog: ClientWatchdog,
        session: TensorSession,
        upload: Upload,
        format_: Format,
        timeout_s: float | None,
    ) -> None:
        try:
            timing = await self.compute(exchange, watchdog, upload, timeout_s)
            writer = self.writer(exchange, upload)
            response = await format_.write(upload.plan, upload.outputs(), writer, session.commit())
            session.close()  # a slow reader holds no memory of the device
            headers = [(b"content-type", format_.media_type)]
            await self.send(exchange, watchdog, upload, timing, headers, response)
        finally:
            upload.release()


def _refuse(exchange: Exchange, *headers: str) -> None:
    for header in headers:
        if header.lower().encode() in exchange.headers:
            raise InvalidInput(f"{header} means nothing on this route", field=header)
