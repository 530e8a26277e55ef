"""Calls on stored tensors, programs, and the transfers of stored tensors to and from a device."""

from __future__ import annotations

import functools
import json
import re
from collections.abc import Mapping, Sequence
from typing import Any

from warpcall import wire
from warpcall.errors import InvalidInput
from warpcall.wire import TensorInfo
from warpcall_service.calls import programs
from warpcall_service.calls.programs import Checked, Checker
from warpcall_service.calls.run import CallRunner
from warpcall_service.calls.tensor_registry import TensorRegistry
from warpcall_service.calls.tensor_session import (
    Check,
    ChooseIds,
    ProgramPlanner,
    TensorSession,
    ids_to_store,
)
from warpcall_service.calls.upload import Upload, complete
from warpcall_service.formats.json_writer import JsonWriter, ResponseBody
from warpcall_service.formats.media_types import JSON
from warpcall_service.formats.params import Params
from warpcall_service.formats.responses import Format
from warpcall_service.http.exchange import Exchange
from warpcall_service.http.problems import Headers
from warpcall_service.http.watchdog import ClientWatchdog
from warpcall_service.lanes.engine import LocalEngine
from warpcall_service.settings import Settings
from warpcall_service.text import brief

HEADERS = (wire.TENSORS_HEADER, wire.STORE_HEADER, wire.TTL_HEADER, wire.DEVICE_HEADER)
STORED_TENSOR_HEADERS = frozenset(name.lower().encode() for name in HEADERS)
SECONDS = re.compile(r"[0-9]{1,9}(\.[0-9]{1,9})?")
PUT: Mapping[str, Any] = {"name": "put", "params": []}


class TensorCalls:
    """Runs calls that read or create stored tensors: each is planned as a program on one lane.

    Every method responds to one request, and raises as `CallRunner.run_op`.
    """

    def __init__(
        self, settings: Settings, engine: LocalEngine, calls: CallRunner, registry: TensorRegistry
    ) -> None:
        self._settings = settings
        self._engine = engine
        self._calls = calls
        self._registry = registry
        self._checker = Checker(engine)

    async def run_op(self, exchange: Exchange, watchdog: ClientWatchdog, name: str) -> None:
        """Run the op `name`; some of its inputs or outputs are stored tensors."""
        op = self._calls.op(name)
        exchange.op = op["name"]
        check = functools.partial(self._checker.check_call, name)
        await self._run(exchange, watchdog, op, check)

    async def run_program(self, exchange: Exchange, watchdog: ClientWatchdog) -> None:
        """Run the program in the request's parameters."""
        exchange.op = "program"
        await self._run(exchange, watchdog, programs.DECLARATION, self._checker.check_program)

    async def put_tensors(
        self, exchange: Exchange, watchdog: ClientWatchdog, id_: str = ""
    ) -> None:
        """Store the tensors of the body; if `id_` is not empty, one tensor under that id."""
        exchange.op = "put"
        _refuse(exchange, wire.TENSORS_HEADER, wire.STORE_HEADER)
        if id_:
            wire.check_tensor_id(id_, "id")
            await self._registry.nodes.await_nodes([id_])
            id_ = self._registry.nodes.without_node(id_, "id")
        check = functools.partial(_check_put, id_)
        self._calls.read_timeout(exchange, watchdog)
        planner = await self._planner(exchange, check, lambda names: dict.fromkeys(names, id_))
        with planner.session as session:
            upload = await self._calls.uploads.read_call(
                exchange, watchdog, PUT, lambda plan: None, planner
            )

            async def write(writer: JsonWriter) -> tuple[Headers, ResponseBody]:
                document = json.dumps({wire.STORED_KEY: session.commit()}).encode()
                session.close()
                upload.release()  # before the response is sent: a client may read it slowly
                return [(b"content-type", JSON.encode())], ResponseBody(document, memoryview(b""))

            await self._calls.run(exchange, watchdog, upload, write)

    async def get_tensor(self, exchange: Exchange, watchdog: ClientWatchdog, id_: str) -> None:
        """Respond with the stored tensor `id_`."""
        exchange.op = "get"
        _refuse(exchange, *HEADERS)
        format_ = self._calls.response_format(exchange)
        self._calls.read_timeout(exchange, watchdog)
        planner = await self._planner(exchange, _check_get, lambda names: {}, {id_: id_})
        with planner.session as session:
            watchdog.pause()
            plan = await planner.plan_call("get", [], {})
            format_.check(plan)
            slot = await self._engine.acquire(
                plan.output_nbytes,
                self._settings.queue_timeout_s,
                exchange.caller.name,
                lane_name=planner.lane,
            )
            await self._respond(exchange, watchdog, session, complete(plan, slot), format_)

    async def _run(
        self, exchange: Exchange, watchdog: ClientWatchdog, op: Mapping[str, Any], check: Check
    ) -> None:
        self._calls.check_device_time(exchange)
        format_ = self._calls.response_format(exchange)
        self._calls.read_timeout(exchange, watchdog)
        given = wire.decode_names(_header(exchange, wire.STORE_HEADER), wire.STORE_HEADER)
        nodes = self._registry.nodes
        await nodes.await_nodes(given.values())
        store = {name: nodes.without_node(id_, wire.STORE_HEADER) for name, id_ in given.items()}
        planner = await self._planner(exchange, check, functools.partial(ids_to_store, store))
        with planner.session as session:
            upload = await self._calls.uploads.read_call(
                exchange, watchdog, op, format_.check, planner
            )
            await self._respond(exchange, watchdog, session, upload, format_)

    async def _respond(
        self,
        exchange: Exchange,
        watchdog: ClientWatchdog,
        session: TensorSession,
        upload: Upload,
        format_: Format,
    ) -> None:
        async def write(writer: JsonWriter) -> tuple[Headers, ResponseBody]:
            stored = session.commit()
            response = await format_.write(upload.plan, upload.outputs(), writer, stored)
            session.close()  # before the response is sent: a client may read it slowly
            return [(b"content-type", format_.media_type)], response

        await self._calls.run(exchange, watchdog, upload, write)

    async def _planner(
        self,
        exchange: Exchange,
        check: Check,
        choose_ids: ChooseIds,
        inputs: Mapping[str, str] = {},
    ) -> ProgramPlanner:
        """A planner with a session that has resolved the request's stored tensors and these."""
        ttl_s = self._ttl_s(_header(exchange, wire.TTL_HEADER))
        named = wire.decode_names(_header(exchange, wire.TENSORS_HEADER), wire.TENSORS_HEADER)
        await self._registry.nodes.await_nodes([*named.values(), *inputs.values()])
        session = TensorSession(self._engine, self._registry, exchange.caller.name)
        device = _header(exchange, wire.DEVICE_HEADER)
        session.resolve({**named, **inputs}, device, exchange.declared or 0)
        return ProgramPlanner(
            self._engine, self._registry, session, exchange.op, check, choose_ids, ttl_s
        )

    def _ttl_s(self, text: str) -> float:
        most = self._settings.tensor_max_ttl_s
        if not text:
            return min(self._settings.tensor_ttl_s, most)
        if not SECONDS.fullmatch(text) or not 0 < float(text) <= most:
            raise InvalidInput(
                f"{wire.TTL_HEADER} must be a number of seconds above 0 and at most {most:g}, "
                f"got {brief(text)}",
                field=wire.TTL_HEADER,
            )
        return float(text)


async def _check_put(
    id_: str, params: Params, tensors: Sequence[TensorInfo], stored: Sequence[TensorInfo]
) -> Checked:
    for name in params:
        raise InvalidInput(f"there is no parameter {brief(name)} of put", field=name)
    if not tensors or (id_ and len(tensors) != 1):
        wanted = "one tensor" if id_ else "one tensor or more"
        raise InvalidInput(f"the body must hold {wanted}, got {len(tensors)}", field="body")
    return programs.pass_through(tensors)


async def _check_get(
    params: Params, tensors: Sequence[TensorInfo], stored: Sequence[TensorInfo]
) -> Checked:
    return programs.pass_through(stored)


def _refuse(exchange: Exchange, *headers: str) -> None:
    for header in headers:
        if header.lower().encode() in exchange.headers:
            raise InvalidInput(f"{header} means nothing on this route", field=header)


def _header(exchange: Exchange, name: str) -> str:
    return exchange.headers.get(name.lower().encode(), b"").decode("latin-1").strip()
