"""The core of both clients, as coroutines: requests, retries, answers and errors."""

from __future__ import annotations

import contextlib
import json
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from warpcall import wire
from warpcall._answer import Answer
from warpcall._arrays import ArrayT, Kind, kind_of
from warpcall._body import Body, decode, decode_all, encode, json_body
from warpcall._config import Config
from warpcall._extras.arguments import check_header_values, check_timeout
from warpcall._extras.facts import Facts, kernel_path
from warpcall._extras.gradients import (
    attach,
    check_differentiable,
    needing_gradients,
    refuse_gradients,
)
from warpcall._progress import Display
from warpcall._tensors import BaseStoredTensor, TensorInput, headers_of, new_id, split
from warpcall._transport.base import (
    Gathered,
    Reply,
    Request,
    Stream,
    Transport,
    most_nbytes,
)
from warpcall._transport.buffers import Buffers
from warpcall._transport.replies import first_text, parse_server_timing, problem_of
from warpcall._transport.retries import MAY_PASS, Retries
from warpcall.errors import InvalidInput, NotFound, TransportError

# The server must give up this much earlier, so that its own error arrives before the deadline.
MAX_MARGIN_S = 1.0
DELETED = (200, 204)


class Core(Facts):
    """Calls a server over any transport.

    Args:
        config: the server's address and the key.
        transport: sends requests and receives answers.
        timeout_s: seconds for a whole call, with its retries and the pauses between them.
        retries: how often a call is repeated after `Busy`, `Unavailable` or a broken connection;
            None for the rules of `Retries`.
        display: shows progress bars of large bodies.
        stored_type: the class of stored tensors, StoredTensor or AsyncStoredTensor.
        blocking_transport: makes a blocking transport; None if `transport` is one.
    """

    def __init__(
        self,
        config: Config,
        transport: Transport,
        timeout_s: float,
        retries: int | None,
        display: Display,
        stored_type: type[BaseStoredTensor[Any]],
        blocking_transport: Callable[[Config], Transport] | None = None,
    ) -> None:
        self.config = config
        self.transport = transport
        self.timeout_s = timeout_s
        self.retries = retries
        self._display = display
        self._memory = Buffers()
        self._stored_type = stored_type
        self._blocking_transport = blocking_transport
        self._blocking: Core | None = None
        self.recipe: tuple[Any, ...] = ()  # what the client is made of again after a pickle
        self._is_known = False  # whether the server has answered this client
        self._headers = {"User-Agent": "warpcall-python", "Accept-Encoding": "identity"}
        if config.api_key is not None:
            self._headers["Authorization"] = f"Bearer {config.api_key}"

    @property
    def shows_progress(self) -> bool:
        """Whether progress bars are shown."""
        return self._display.wanted

    async def call(
        self,
        name: str,
        inputs: Mapping[str, TensorInput[ArrayT] | None],
        params: Mapping[str, object],
        *,
        store: bool = False,
        ttl_s: float | None = None,
        timeout_s: float | None = None,
    ) -> Answer[Any]:
        """Run an op. Inputs and parameters that are None are left out.

        Raises:
            InvalidInput: autograd wants a gradient of an input, and the call would lose it.
        """
        given = {k: v for k, v in params.items() if v is not None}
        ids = {wire.EVERY: new_id()} if store else {}
        op = wire.op_name(name)
        if not needing_gradients(inputs):
            return await self.run(kernel_path(name), name, inputs, given, ids, ttl_s, timeout_s)
        if store:
            refuse_gradients(inputs, "a stored tensor")
        check_differentiable(op, inputs)
        answer = await self.run(kernel_path(name), name, inputs, given, ids, ttl_s, timeout_s)
        output = attach(self.blocking(), op, inputs, given, answer.output("out"))
        return replace(answer, outputs={"out": output})

    async def run(
        self,
        path: str,
        label: str,
        inputs: Mapping[str, TensorInput[ArrayT] | None],
        params: Mapping[str, object],
        store: Mapping[str, str],
        ttl_s: float | None,
        timeout_s: float | None = None,
    ) -> Answer[Any]:
        """Run an op or a program.

        Args:
            timeout_s: seconds that the call may take; None means the client's.
            path: the path of the op or of programs.
            label: the name that a progress bar shows.
            store: ids under which to store outputs, by the names of the outputs.
        """
        check_timeout(timeout_s)
        tensors, stored = split(self, inputs)
        body = encode(tensors, params)
        kind = next(iter(stored.values()))._kind if stored and not tensors else kind_of(tensors)
        headers = {"Content-Type": wire.MEDIA_TYPE, "Accept": wire.MEDIA_TYPE}
        headers |= headers_of(stored, store, ttl_s)
        reply = await self._exchange(
            "POST", path, headers, body, label, tensors=True, timeout_s=timeout_s
        )
        try:
            arrays, metadata = decode_all(reply.body, kind)
        except InvalidInput as error:
            raise TransportError(f"the answer cannot be read: {error}") from error
        outputs: dict[str, Any] = dict(arrays)
        if store:
            outputs |= self._stored_tensors(metadata.get(wire.STORED_KEY, "{}"), kind)
        return Answer(
            outputs=outputs,
            device=reply.headers.get("x-warpcall-device", ""),
            timing_ms=parse_server_timing(reply.headers.get("server-timing", "")),
            request_id=reply.headers.get("x-request-id", ""),
        )

    async def close(self) -> None:
        """Close the connections and free the memory that was held for further answers."""
        self._memory.close()
        await self.transport.close()
        if self._blocking is not None:
            await self._blocking.close()

    def blocking(self) -> Core:
        """A core for the same server whose calls block: this one, if it does.

        The backward pass of autograd needs it, because it cannot await.
        """
        if self._blocking_transport is None:
            return self
        if self._blocking is None:
            self._blocking = Core(
                self.config,
                self._blocking_transport(self.config),
                self.timeout_s,
                self.retries,
                self._display,
                self._stored_type,
            )
        return self._blocking

    async def put(
        self,
        array: ArrayT,
        id_: str | None,
        ttl_s: float | None,
        device: str | None,
        timeout_s: float | None = None,
    ) -> Any:
        """Store an array on one of the server's devices."""
        check_timeout(timeout_s)
        id_ = new_id() if id_ is None else id_
        wire.check_tensor_id(id_, "id")
        tensors = {"x": array}
        refuse_gradients(tensors, "a stored tensor")
        headers = {"Content-Type": wire.MEDIA_TYPE, **headers_of({}, {}, ttl_s, device)}
        body, path = encode(tensors, {}), f"{wire.TENSORS_PATH}/{id_}"
        reply = await self._exchange("PUT", path, headers, body, "put", timeout_s=timeout_s)
        stored = self._stored_tensors(
            reply.body.tobytes().decode("utf-8", "replace"), kind_of(tensors), wire.STORED_KEY
        )
        return stored["x"]

    async def fetch(self, id_: str, kind: Kind[ArrayT], timeout_s: float | None = None) -> ArrayT:
        """Copy a stored tensor from the server."""
        check_timeout(timeout_s)
        headers = {"Accept": wire.MEDIA_TYPE}
        path = f"{wire.TENSORS_PATH}/{id_}"
        reply = await self._exchange(
            "GET", path, headers, None, "get", tensors=True, timeout_s=timeout_s
        )
        try:
            (array,) = decode(reply.body, kind).values()
        except (InvalidInput, ValueError) as error:
            raise TransportError(f"the answer must be one tensor: {error}") from error
        return array

    async def delete(self, id_: str) -> None:
        """Delete a stored tensor. If it is gone already, nothing happens."""
        with contextlib.suppress(NotFound):
            await self.delete_at(f"{wire.TENSORS_PATH}/{id_}")

    async def delete_at(self, path: str) -> None:
        """Delete what a path names.

        Raises:
            NotFound: there is nothing at the path.
        """
        await self._exchange("DELETE", path, {}, None, "delete", DELETED)

    async def tensors(self) -> list[Any]:
        """All stored tensors of the user."""
        found = await self._object(wire.TENSORS_PATH)
        listed = found.get("tensors")
        if not isinstance(listed, list):
            raise TransportError(f"{self.config.url} must list tensors, got {found!r:.60}")
        kind: Kind[Any] = Kind()
        return [self._stored_type(self, record, kind) for record in listed]

    def _stored_tensors(self, text: str, kind: Kind[ArrayT], member: str = "") -> dict[str, Any]:
        try:
            payload = json.loads(text)
            named = dict(payload[member] if member else payload)
        except (ValueError, TypeError, KeyError, RecursionError) as error:
            raise TransportError(
                f"the server must describe stored tensors, got {text!r:.60}"
            ) from error
        return {name: self._stored_type(self, entry, kind) for name, entry in named.items()}

    async def get_json(self, path: str, accepted: tuple[int, ...] = (200,)) -> Any:
        """Get the JSON document at a path."""
        return await self.request_json("GET", path, accepted=accepted)

    async def request_json(
        self,
        method: str,
        path: str,
        value: object = None,
        headers: Mapping[str, str] | None = None,
        accepted: tuple[int, ...] = (200,),
    ) -> Any:
        """Send a request, with `value` as JSON unless it is None. Return the JSON of the answer."""
        sent, body = {"Accept": "application/json", **(headers or {})}, None
        if value is not None:
            sent["Content-Type"] = "application/json"
            body = json_body(value)
        reply = await self._exchange(method, path, sent, body, path, accepted)
        try:
            return json.loads(reply.body.tobytes())
        except (ValueError, RecursionError) as error:
            raise TransportError(
                f"{path} must answer in JSON, got {first_text(reply)!r}"
            ) from error

    async def get_bytes(self, path: str) -> bytes:
        """Get what is at a path, in whatever format."""
        reply = await self._exchange("GET", path, {"Accept": "*/*"}, None, path)
        return reply.body.tobytes()

    async def open(self, path: str, headers: Mapping[str, str], quiet_s: float) -> Stream | None:
        """Open an answer that arrives in pieces, such as a stream of events.

        Args:
            quiet_s: seconds within which the head of the answer must arrive.

        Returns:
            The stream, or None if the server answers 204: there is nothing more to come.
        """
        fields = {**self._headers, **headers}
        deadline = time.monotonic() + quiet_s
        request = Request("GET", self.config.prefix + path, deadline, fields)
        stream = await self.transport.open(request)
        if stream.status == 200:
            return stream
        gathered = Gathered(most_nbytes(stream.status, request, None))
        try:
            while chunk := await stream.read(request.remaining_s()):
                gathered.add(chunk)
        finally:
            await stream.close()
        if stream.status == 204:
            return None
        raise problem_of(Reply(stream.status, stream.headers, gathered.whole()))

    async def _exchange(
        self,
        method: str,
        path: str,
        headers: Mapping[str, str],
        body: Body | None,
        label: str,
        accepted: tuple[int, ...] = (200,),
        *,
        tensors: bool = False,
        timeout_s: float | None = None,
    ) -> Reply:
        """Send a request. Repeat it after an error that may pass, while time and retries are left.

        Raises:
            Problem: the server answered with an error, in the last try.
            TransportError: no answer came.
        """
        deadline = time.monotonic() + (self.timeout_s if timeout_s is None else timeout_s)
        retries: Retries | None = None
        check_header_values(headers)
        while True:
            left_s = max(0.001, deadline - time.monotonic())
            server_s = left_s - min(MAX_MARGIN_S, left_s / 10)
            fields = {**self._headers, **headers, wire.TIMEOUT_HEADER: f"{server_s:.3f}"}
            meter = self._display.meter(label, body.nbytes if body else 0)
            url_path, memory = self.config.prefix + path, self._memory
            request = Request(method, url_path, deadline, fields, body, meter, memory, tensors)
            try:
                reply = await self.transport.send(request)
                self._is_known = True
                if reply.status in accepted:
                    return reply
                raise problem_of(reply)
            except MAY_PASS as error:
                retries = retries or Retries(self.retries, self._is_known)
                pause_s = retries.pause_s(error, request.remaining_s())
                if pause_s is None:
                    if retries.tries > 1:
                        error.add_note(f"It was tried {retries.tries} times.")
                    raise
            finally:
                meter.close()
            await self.transport.sleep(pause_s)
