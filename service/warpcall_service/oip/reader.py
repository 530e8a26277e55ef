"""Reads inference requests: their inputs into the arena, and their JSON into the call to plan.

Binary inputs are received directly into the arena. Inputs in shared memory are copied there.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from warpcall.errors import InvalidInput, TooLarge
from warpcall_service.calls.upload import CACHED_HEADER_BYTES, Upload, Uploads, complete
from warpcall_service.formats import json_values, oip_request
from warpcall_service.formats.json_reader import INLINE_BYTES
from warpcall_service.formats.oip_request import InferRequest, RequestInput, shared_spans
from warpcall_service.formats.params import Params, merge
from warpcall_service.http.body import Body
from warpcall_service.http.exchange import Exchange
from warpcall_service.lanes.arena import Slot
from warpcall_service.lanes.arena_memory import copy_in_chunks
from warpcall_service.lanes.engine import LocalEngine
from warpcall_service.lanes.plan import Plan
from warpcall_service.oip.layout import Layout, check_list, list_of
from warpcall_service.oip.response import HEADER_LENGTH, InferResponse
from warpcall_service.oip.shared_memory import Region, SharedMemory, copy_slices
from warpcall_service.settings import Settings
from warpcall_service.text import brief

# Small requests are often repeated. Parsing takes 20 of the 350 microseconds of such a call.
_decode_cached = functools.lru_cache(256)(oip_request.decode_request)
_LENGTH = re.compile(rb"[0-9]{1,18}")


@dataclass(frozen=True, slots=True)
class ReadCall:
    """A call that was read, and the response that it asks for.

    Attributes:
        json_nbytes: bytes of the request's JSON; 0 if the call's plan does not follow from them, because a
            parameter came as a tensor.
    """

    upload: Upload
    response: InferResponse
    layout: Layout
    json_nbytes: int


@dataclass(frozen=True, slots=True)
class _Placed:
    """A call whose JSON has been read, with a slot for its inputs.

    Attributes:
        json_nbytes: as in `ReadCall`.
        late: inputs that are parameters of the op and are sent as bytes after the JSON.
        plan: None if there are such inputs: the call can be planned only after they are read.
    """

    request: InferRequest
    response: InferResponse
    regions: Mapping[str, Region]
    layout: Layout
    json_nbytes: int
    given: Params
    late: tuple[RequestInput, ...]
    plan: Plan | None
    slot: Slot


class InferReader:
    """Reads inference requests into the arena."""

    def __init__(
        self, settings: Settings, engine: LocalEngine, uploads: Uploads, shared: SharedMemory
    ) -> None:
        self._settings = settings
        self._engine = engine
        self._uploads = uploads
        self._shared = shared

    async def read_call(self, exchange: Exchange, body: Body, op: Mapping[str, Any]) -> ReadCall:
        """Read a call of `op`.

        Raises:
            Problem: the call is invalid, or there is no memory for it. No slot is allocated then.
        """
        nbytes = self._json_nbytes(exchange, body)
        if nbytes is not None and nbytes <= INLINE_BYTES:
            text = await body.exactly(nbytes)
            if len(text) < nbytes:
                raise InvalidInput(
                    f"the JSON must have {nbytes} bytes, got {len(text)}: the body ends early",
                    field="body",
                )
            request = _decode(text)
            placed = await self._place(exchange, body, op, request, nbytes)
        else:
            placed = await self._place_large(exchange, body, op, nbytes)
        try:
            upload = await self._fill(body, op, placed)
            return ReadCall(upload, placed.response, placed.layout, placed.json_nbytes)
        except BaseException:
            placed.slot.release()
            raise

    def _json_nbytes(self, exchange: Exchange, body: Body) -> int | None:
        """The length of the JSON; None if it is that of a chunked body."""
        given = exchange.headers.get(HEADER_LENGTH.lower().encode())
        nbytes = body.declared
        if given is not None:
            if not _LENGTH.fullmatch(given):
                raise InvalidInput(
                    f"{HEADER_LENGTH} must be a number of bytes, got "
                    f"{brief(given.decode('latin-1'))}",
                    field=HEADER_LENGTH,
                )
            nbytes = int(given)
            if body.declared is not None and nbytes > body.declared:
                raise InvalidInput(
                    f"{HEADER_LENGTH} must be at most the body's {body.declared} bytes, "
                    f"got {nbytes}",
                    field=HEADER_LENGTH,
                )
        limit = self._settings.max_json_bytes
        if nbytes is not None and nbytes > limit:
            raise TooLarge(
                f"the JSON of a request must have at most {limit} bytes, got {nbytes}: send tensors "
                "as binary data",
                field="body",
            )
        return nbytes

    async def _place_large(
        self, exchange: Exchange, body: Body, op: Mapping[str, Any], nbytes: int | None
    ) -> _Placed:
        """Read a large JSON into the arena, and parse it.

        The values that it becomes lie on the heap, so that few calls may parse at a time.
        """
        limit = int(self._settings.max_json_bytes)
        slot = await self._uploads.allocate(body, limit if nbytes is None else nbytes)
        try:
            if nbytes is None:
                nbytes = await body.all_into(slot.view, "the JSON")
            else:
                await body.into(slot.view, "the JSON")
            body.watchdog.pause()
            async with self._uploads.json_admission.admitted(body.user, nbytes):
                request = await self._uploads.json.read_infer(slot.view[:nbytes], body.user)
                slot.release()
                return await self._place(exchange, body, op, request, nbytes)
        finally:
            slot.release()

    async def _place(
        self,
        exchange: Exchange,
        body: Body,
        op: Mapping[str, Any],
        request: InferRequest,
        json_nbytes: int,
    ) -> _Placed:
        """Allocate a slot for the inputs, and for the outputs if the call can be planned now."""
        body.watchdog.pause()
        lists = {param["name"] for param in op["params"] if param["kind"] == "ints"}
        tensors = [given for given in request.inputs if given.info.name not in lists]
        as_params = [given for given in request.inputs if given.info.name in lists]
        late = tuple(given for given in as_params if given.binary)
        layout = Layout.of(g for g in request.inputs if g.binary or g.info.name not in lists)
        self._check_length(body, json_nbytes, request)
        regions = self._regions(exchange, request)
        response = InferResponse(
            request, regions, int(self._settings.max_json_bytes), exchange.max_output_bytes
        )
        params = oip_request.params_of(request, op)
        for given in as_params:
            check_list(given)
            if given not in late:
                params = merge(params, {given.info.name: await _list_param(given, regions)})
        arrays = {
            given.info.name: json_values.to_array(given.data, given.info)
            for given in tensors
            if given.data is not None
        }
        plan = None
        if late:
            slot = await self._uploads.allocate(body, layout.nbytes)
        else:
            plan = await self._plan(op, tensors, layout, params, response)
            slot = await self._uploads.allocate_call(body, plan)
        try:
            for name, array in arrays.items():
                await copy_in_chunks(layout.view(name, slot.view), array.view(np.uint8).data)
        except BaseException:  # the client may leave while a large tensor is copied
            slot.release()
            raise
        fixed_nbytes = 0 if as_params else json_nbytes
        return _Placed(request, response, regions, layout, fixed_nbytes, params, late, plan, slot)

    async def _fill(self, body: Body, op: Mapping[str, Any], placed: _Placed) -> Upload:
        """Read the bytes after the JSON, and the inputs in shared memory."""
        slot, layout = placed.slot, placed.layout
        for begin, end in layout.pieces:
            await body.into(slot.view[begin:end], "the binary data after the JSON")
        await body.end("the last tensor")
        body.watchdog.pause()
        for given in placed.request.inputs:
            if given.shared is not None and given.info.name in layout.tensors:
                region = placed.regions[given.shared.region]
                view = layout.view(given.info.name, slot.view)
                await copy_slices(region.read(given.shared.offset, view))
        if placed.plan is not None:
            return complete(placed.plan, slot)
        params = placed.given
        for given in placed.late:
            data = layout.view(given.info.name, slot.view)
            params = merge(params, {given.info.name: list_of(given, data)})
        names = {given.info.name for given in placed.late}
        tensors = [given for given in placed.request.inputs if given.info.name in layout.tensors]
        plan = await self._plan(
            op, [t for t in tensors if t.info.name not in names], layout, params, placed.response
        )
        target = await self._uploads.allocate(body, plan.output_nbytes, beside=slot)
        return Upload(plan, slot, target, 0)

    async def _plan(
        self,
        op: Mapping[str, Any],
        tensors: list[RequestInput],
        layout: Layout,
        params: Params,
        response: InferResponse,
    ) -> Plan:
        inputs = [layout.tensors[given.info.name] for given in tensors]
        plan = await self._engine.plan_call(op["name"], inputs, params)
        response.check(plan)
        return plan

    def _check_length(self, body: Body, json_nbytes: int, request: InferRequest) -> None:
        """Raise InvalidInput if the binary sizes do not add up to the length of the body."""
        binary = sum(given.info.nbytes for given in request.inputs if given.binary)
        if body.declared is not None and body.declared != json_nbytes + binary:
            raise InvalidInput(
                f"the body must have {json_nbytes + binary} bytes, {json_nbytes} of JSON and "
                f"{binary} of binary data as its binary_data_size say, got {body.declared}",
                field="body",
            )

    def _regions(self, exchange: Exchange, request: InferRequest) -> dict[str, Region]:
        """The shared memory regions that a request names; all of them belong to the caller."""
        spans = shared_spans(request)
        return self._shared.regions_of(self._shared.owner(exchange), spans) if spans else {}


def _decode(text: bytes) -> InferRequest:
    decode = _decode_cached if len(text) <= CACHED_HEADER_BYTES else oip_request.decode_request
    return decode(text)


async def _list_param(given: RequestInput, regions: Mapping[str, Region]) -> list[int]:
    """A list parameter that is sent as a tensor in the JSON or in shared memory."""
    if given.shared is None:
        return list_of(given, None)
    data = bytearray(given.info.nbytes)
    await copy_slices(regions[given.shared.region].read(given.shared.offset, memoryview(data)))
    return list_of(given, memoryview(data))
