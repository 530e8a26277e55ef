"""Parses and writes the JSON of calls: small documents at once, large ones in another process.

The process is started when it is first needed. It handles one document at a time, in an order that
is fair to users. It is killed when the caller leaves or the document takes too long; then, or when
it crashes, the next document starts another one.
"""

from __future__ import annotations

import asyncio
import dataclasses
import json
import socket
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any

from warpcall.errors import Problem, Unavailable
from warpcall_service.formats import json_call, oip_request
from warpcall_service.formats.json_call import JsonCall
from warpcall_service.formats.json_messages import (
    LENGTHS,
    Hole,
    arrays_of,
    count_of,
    decode_tensor,
    encode_head,
    encode_tensor,
    fill,
)
from warpcall_service.formats.oip_request import InferRequest
from warpcall_service.lanes.fair_semaphore import FairSemaphore
from warpcall_service.processes.spawn import ChildProcess

MODULE = "warpcall_service.formats.json_process"
INLINE_BYTES = 16 << 10  # JSON of at most this size is parsed on the event loop, within 1 ms
INLINE_VALUES = 2048  # as many values are written on the event loop, within 1 ms
PIECE_BYTES = 256 << 10  # moved at once; other requests can run between pieces
BASE_TIMEOUT_S = 10.0
TIMEOUT_S_PER_BYTE = 10.0 / (1 << 20)  # 20 times what the slowest document takes
# Limit on the memory that the process may map, for numpy and for the Python objects of a document.
# An empty list has 3 bytes as text and 64 as an object; an 8-bit float takes 100 bytes in between.
BASE_MEMORY_BYTES = 512 << 20
MEMORY_PER_BYTE = 160
ENVIRONMENT = {"OPENBLAS_NUM_THREADS": "1"}  # more threads would map memory that is never used

Allocate = Callable[[int], Awaitable[memoryview]]  # allocates so many bytes


@dataclasses.dataclass(frozen=True, slots=True)
class ResponseBody:
    """The bytes of a response: `head` on the heap, then `data` in the arena."""

    head: bytes
    data: memoryview


class JsonPool:
    """Parses the JSON of calls, and has the process for large documents.

    Args:
        max_json_bytes: limit on the size of one document.
    """

    def __init__(self, max_json_bytes: int) -> None:
        self._memory_bytes = BASE_MEMORY_BYTES + MEMORY_PER_BYTE * max_json_bytes
        self._semaphore = FairSemaphore(1)
        self._process: _Process | None = None

    async def read_call(self, text: memoryview, user: str) -> JsonCall:
        """Parse the JSON body of a call.

        Raises:
            InvalidInput: the body does not describe a call.
            Unavailable: the process was lost, or took too long.
        """
        if len(text) <= INLINE_BYTES:
            return json_call.decode(bytes(text))
        head, data = await self.request({"kind": "call"}, text, user, _heap)
        tensors = tuple(map(decode_tensor, head["tensors"]))
        return JsonCall(tensors, arrays_of(tensors, data), head["params"])

    async def read_infer(self, text: memoryview, user: str) -> InferRequest:
        """Parse the JSON of an inference request; raises as `read_call`."""
        if len(text) <= INLINE_BYTES:
            return oip_request.decode_request(bytes(text))
        head, data = await self.request({"kind": "infer"}, text, user, _heap)
        request = oip_request.check_request(head["request"])
        arrays = arrays_of(map(decode_tensor, head["tensors"]), data)
        inputs = [
            dataclasses.replace(given, data=arrays.get(given.info.name)) for given in request.inputs
        ]
        return dataclasses.replace(request, inputs=tuple(inputs))

    def close(self) -> None:
        """Kill the process."""
        if self._process is not None:
            self._process.kill()
            self._process = None

    async def request(
        self, request: Mapping[str, Any], data: memoryview, user: str, allocate: Allocate
    ) -> tuple[Mapping[str, Any], memoryview]:
        """Send a request to the process; returns the head and the data of its reply.

        Raises:
            Problem: the reply is a problem.
            Unavailable: the process was lost, or took too long.
        """
        async with self._semaphore.acquire(user, len(data)):
            process, self._process = self._process, None  # nobody else may use it until it replied
            if process is not None and not process.alive:
                process.kill()
                process = None
            process = process or _Process(self._memory_bytes)
            try:
                async with asyncio.timeout(BASE_TIMEOUT_S + TIMEOUT_S_PER_BYTE * len(data)):
                    reply = await process.request(encode_head(request), data, allocate)
            except BaseException as error:
                process.kill()
                if isinstance(error, OSError | EOFError):  # TimeoutError is one
                    raise Unavailable(
                        "the process that reads and writes JSON was lost, send the request again",
                        retry_after_s=1,
                    ) from None
                raise
            self._process = process
        if problem := reply[0].get("problem"):
            raise Problem.from_json(problem["status"], problem)
        return reply


@dataclasses.dataclass(frozen=True, slots=True)
class JsonWriter:
    """Writes the JSON of one response.

    Attributes:
        allocate: allocates the memory for a long text.
    """

    pool: JsonPool
    user: str
    allocate: Allocate

    async def write(
        self,
        document: Mapping[str, Any],
        holes: Sequence[Hole],
        tensors: memoryview,
        *,
        compact: bool = False,
    ) -> ResponseBody:
        """Write a document with the values of tensors in its holes; see `json_messages.fill`.

        Args:
            tensors: the bytes of all tensors.
        """
        if count_of(holes) <= INLINE_VALUES:
            return ResponseBody(fill(document, holes, tensors, compact).encode(), tensors[:0])
        head = {
            "kind": "write",
            "document": document,
            "holes": [(hole.path, encode_tensor(hole.info)) for hole in holes],
            "compact": compact,
        }
        _, text = await self.pool.request(head, tensors, self.user, self.allocate)
        return ResponseBody(b"", text)


class _Process:
    """Parent-side handle of one JSON process: start it, exchange messages, end it."""

    def __init__(self, memory_bytes: int) -> None:
        try:
            self._process = ChildProcess(
                MODULE,
                "the JSON process",
                {"memory-bytes": memory_bytes},
                {"server": socket.SOCK_STREAM},
                environment=ENVIRONMENT,
            )
        except OSError as error:
            raise Unavailable(
                f"the process that reads and writes JSON cannot be started: {error.strerror}",
                retry_after_s=1,
            ) from None
        self._sock = self._process.sockets["server"]
        self._sock.setblocking(False)

    @property
    def alive(self) -> bool:
        """Whether it has not ended, as far as the kernel knows."""
        return self._process.poll() is None

    async def request(
        self, head: bytes, data: memoryview, allocate: Allocate
    ) -> tuple[Mapping[str, Any], memoryview]:
        """Send a request and receive the reply.

        Raises:
            OSError, EOFError: the process ended.
        """
        loop = asyncio.get_running_loop()
        await loop.sock_sendall(self._sock, LENGTHS.pack(len(head), len(data)) + head)
        for begin in range(0, len(data), PIECE_BYTES):
            await loop.sock_sendall(self._sock, data[begin : begin + PIECE_BYTES])
        lengths = memoryview(bytearray(LENGTHS.size))
        await self._receive(lengths)
        head_nbytes, data_nbytes = LENGTHS.unpack(lengths)
        reply_head = memoryview(bytearray(head_nbytes))
        await self._receive(reply_head)
        reply = json.loads(bytes(reply_head))
        received = await allocate(data_nbytes)
        await self._receive(received)
        return reply, received

    def kill(self) -> None:
        """End it now, whatever it does."""
        self._process.kill()
        self._process.close()
        # In a thread, because it takes the kernel some 10 ms to free the memory of a process.
        asyncio.get_running_loop().run_in_executor(None, self._process.reap)

    async def _receive(self, target: memoryview) -> None:
        loop = asyncio.get_running_loop()
        while target:
            count = await loop.sock_recv_into(self._sock, target[:PIECE_BYTES])
            if not count:
                raise EOFError
            target = target[count:]


async def _heap(nbytes: int) -> memoryview:
    return memoryview(bytearray(nbytes))
