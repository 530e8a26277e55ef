"""Reading a call frees its memory when its client leaves while tensors are copied."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping, Sequence
from typing import Any, cast

import pytest

from warpcall.wire import TensorInfo
from warpcall_service.calls.upload import Uploads
from warpcall_service.http.body import Body
from warpcall_service.http.exchange import Exchange
from warpcall_service.http.watchdog import ClientWatchdog
from warpcall_service.lanes import arena_memory
from warpcall_service.lanes.arena import Arena, Slot
from warpcall_service.lanes.plan import Plan
from warpcall_service.oip.reader import InferReader
from warpcall_service.oip.shared_memory import SharedMemory
from warpcall_service.settings import Settings

OP: Mapping[str, Any] = {"name": "permute", "params": []}
VALUES = list(range(200))


class Engine:
    """Gives memory of a real arena. The client of each call leaves once the call is planned."""

    def __init__(self) -> None:
        self.arena = Arena(1 << 20)
        self.planned = 0

    async def plan_call(
        self, op: str, tensors: Sequence[TensorInfo], params: Mapping[str, Any]
    ) -> Plan:
        self.planned += 1
        task = asyncio.current_task()
        assert task is not None
        asyncio.get_running_loop().call_soon(task.cancel)
        return Plan.of(op, tensors, params, [])

    async def acquire(self, nbytes: int, timeout_s: float, user: str, **_: object) -> Slot:
        return await self.arena.acquire(nbytes, timeout_s, user)


def request(document: object) -> Exchange:
    """A request that has the JSON of a document as its body."""
    text = json.dumps(document).encode()
    headers = {b"content-type": b"application/json", b"content-length": b"%d" % len(text)}

    async def receive() -> dict[str, Any]:
        return {"type": "http.request", "body": text}

    scope = {"headers": list(headers.items()), "query_string": b""}
    return Exchange(scope, cast(Any, receive), cast(Any, None))


@pytest.mark.parametrize("protocol", ["native", "infer"])
def test_a_client_that_leaves_while_its_tensors_are_copied_leaves_no_memory_allocated(
    protocol: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(arena_memory, "COPY_BYTES", 64)

    async def read() -> tuple[int, int]:
        engine = Engine()
        settings = Settings.load()
        uploads = Uploads(settings, cast(Any, engine))
        if protocol == "native":
            x = {"dtype": "U8", "shape": [len(VALUES)], "data": VALUES}
            exchange = request({"inputs": {"x": x}})
            watchdog = ClientWatchdog(exchange.connection, 60.0, 1)
            call = uploads.read_call(exchange, watchdog, OP, lambda plan: None)
        else:
            infer_x = {"name": "x", "datatype": "UINT8", "shape": [len(VALUES)], "data": VALUES}
            exchange = request({"inputs": [infer_x]})
            watchdog = ClientWatchdog(exchange.connection, 60.0, 1)
            body = Body(exchange, watchdog, 1 << 20)
            reader = InferReader(settings, cast(Any, engine), uploads, SharedMemory(0))
            call = cast(Any, reader.read_call(exchange, body, OP))
        with pytest.raises(asyncio.CancelledError):
            await asyncio.create_task(call)
        watchdog.close()
        return engine.planned, engine.arena.stats().used

    assert asyncio.run(read()) == (1, 0)
