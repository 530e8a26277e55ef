"""The core of both clients, as coroutines: requests, retries, answers and errors."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from warpcall import wire
from warpcall._answer import Answer
from warpcall._arrays import ArrayT, Kind, arrays_of, kind_of
from warpcall._body import decode_all, encode
from warpcall._config import Config
from warpcall._extras.arguments import check_timeout
from warpcall._extras.facts import Facts, kernel_path
from warpcall._extras.gradients import (
    attach,
    check_differentiable,
    needing_gradients,
    refuse_gradients,
)
from warpcall._extras.tables import Listed
from warpcall._nodes.exchanges import Exchanges, json_of
from warpcall._nodes.targets import HOME, STORE, node_of
from warpcall._progress import Display
from warpcall._tensors import (
    TABLE,
    BaseStoredTensor,
    TensorInput,
    headers_of,
    new_id,
    route_of,
    split,
)
from warpcall._transport.base import Transport
from warpcall._transport.replies import parse_server_timing
from warpcall.errors import InvalidInput, TransportError, Unavailable


class Core(Exchanges, Facts):
    """Calls a server over any transport.

    Args:
        configs: the addresses of the servers and the key.
        make: makes a transport, which sends requests and receives answers.
        timeout_s: seconds for a whole call, with its retries and the pauses between them.
        retries: how often a call is repeated after `Busy`, `Unavailable` or a broken connection;
            None for the rules of `Retries`.
        display: shows progress bars of large bodies.
        stored_type: the class of stored tensors, StoredTensor or AsyncStoredTensor.
        blocking_transport: makes a blocking transport; None if `make` does.
    """

    def __init__(
        self,
        configs: Sequence[Config],
        make: Callable[[Config], Transport],
        timeout_s: float,
        retries: int | None,
        display: Display,
        stored_type: type[BaseStoredTensor[Any]],
        blocking_transport: Callable[[Config], Transport] | None = None,
    ) -> None:
        super().__init__(configs, make, timeout_s, retries, display, blocking_transport or make)
        self._stored_type = stored_type
        self._blocking_transport = blocking_transport
        self._blocking: Core | None = None

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
        inputs = arrays_of(inputs)
        ids = {wire.EVERY: new_id()} if store else {}
        op = wire.op_name(name)
        if not needing_gradients(inputs):
            return await self.run(kernel_path(name), name, inputs, given, ids, ttl_s, timeout_s)
        if store:
            refuse_gradients(inputs, "a stored tensor")
        check_differentiable(op, inputs)
        answer = await self.run(kernel_path(name), name, inputs, given, ids, ttl_s, timeout_s)
        output = attach(self.blocking().call, op, inputs, given, answer.output("out"))
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
            "POST",
            path,
            headers,
            body,
            label,
            tensors=True,
            timeout_s=timeout_s,
            route=route_of(stored.values(), stores=bool(store)),
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
        await super().close()
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
                self.configs,
                self._blocking_transport,
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
        # A tensor whose id the caller chooses replaces the one that had it, so both must be on one
        # server.
        route = STORE if id_ is None else node_of(id_) or HOME
        id_ = new_id() if id_ is None else id_
        wire.check_tensor_id(id_, "id")
        tensors = {"x": array}
        refuse_gradients(tensors, "a stored tensor")
        headers = {"Content-Type": wire.MEDIA_TYPE, **headers_of({}, {}, ttl_s, device)}
        body, path = encode(tensors, {}), f"{wire.TENSORS_PATH}/{id_}"
        reply = await self._exchange(
            "PUT", path, headers, body, "put", timeout_s=timeout_s, route=route
        )
        stored = self._stored_tensors(
            reply.body.tobytes().decode("utf-8", "replace"), kind_of(tensors), wire.STORED_KEY
        )
        return stored["x"]

    async def tensors(self) -> list[Any]:
        """All stored tensors of the user, of every server that can be reached."""
        found = self._listed(await self._object(wire.TENSORS_PATH))
        if self.targets.is_cluster:
            await self._await_nodes(fresh=False)
            for node_id in list(self.targets.members):
                # A server that was lost meanwhile has no tensors any more.
                with contextlib.suppress(TransportError, Unavailable):
                    sent = {"Accept": "application/json"}
                    reply = await self._exchange(
                        "GET", wire.TENSORS_PATH, sent, None, "tensors", route=node_id
                    )
                    found |= self._listed(json_of(reply, wire.TENSORS_PATH))
        return Listed(found.values(), TABLE)

    def _listed(self, answer: Any) -> dict[str, Any]:
        """The stored tensors of a server's list, by their ids."""
        listed = answer.get("tensors") if isinstance(answer, dict) else None
        if not isinstance(listed, list):
            raise TransportError(f"{self.config.url} must list tensors, got {answer!r:.60}")
        kind: Kind[Any] = Kind()
        made = [self._stored_type(self, record, kind) for record in listed]
        return {tensor.id: tensor for tensor in made}

    def _stored_tensors(self, text: str, kind: Kind[ArrayT], member: str = "") -> dict[str, Any]:
        try:
            payload = json.loads(text)
            named = dict(payload[member] if member else payload)
        except (ValueError, TypeError, KeyError, RecursionError) as error:
            raise TransportError(
                f"the server must describe stored tensors, got {text!r:.60}"
            ) from error
        return {name: self._stored_type(self, entry, kind) for name, entry in named.items()}


class ClientPart:
    """A part of a client, such as `Client.monitors`. It sends its requests through the client's core."""

    def __init__(self, core: Core) -> None:
        self._core = core
