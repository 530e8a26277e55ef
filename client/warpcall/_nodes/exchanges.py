"""Sends requests to the servers that are chosen for them, with retries, and reads the answers."""

from __future__ import annotations

import contextlib
import json
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from warpcall import wire
from warpcall._arrays import ArrayT, Kind
from warpcall._body import Body, decode, json_body
from warpcall._config import Config, sender_of
from warpcall._extras.arguments import check_header_values, check_timeout
from warpcall._extras.tracing import request_span, tracer
from warpcall._nodes.reader import NODE, Reader
from warpcall._nodes.targets import CALL_BYTES, HOME, STORE, Target, Targets, node_of
from warpcall._progress import Display
from warpcall._transport.base import (
    Gathered,
    Reply,
    Request,
    Stream,
    Transport,
    most_nbytes,
)
from warpcall._transport.buffers import Buffers
from warpcall._transport.replies import first_text, problem_of
from warpcall._transport.retries import MAY_PASS, Retries
from warpcall.errors import ConnectionFailed, InvalidInput, NotFound, TransportError

# The server must give up this much earlier, so that its own error arrives before the deadline.
MAX_MARGIN_S = 1.0
DELETED = (200, 204)
MOVED = 307  # the status of an answer that another server has a stored tensor or a file
MAX_MOVES = 3  # of one request
NODES_S = 3.0  # to wait for the list of servers, where a request cannot do without
POLL_S = 0.01
CONNECT_S = 3.0  # to connect to a server, while there is another one that can be tried


class Exchanges:
    """Sends requests. A core adds the calls to it.

    Args:
        configs: the addresses of the servers and the key.
        make: makes a transport, which sends requests and receives answers.
        timeout_s: seconds for a whole request, with its retries and the pauses between them.
        retries: how often a request is repeated after `Busy`, `Unavailable` or a broken connection;
            None for the rules of `Retries`.
        display: shows progress bars of large bodies.
        make_blocking: makes a blocking transport.

    Attributes:
        config: the first of the addresses.
        transport: to this address.
        targets: all servers.
        recipe: the function that makes the client again after a pickle, and its arguments.
    """

    def __init__(
        self,
        configs: Sequence[Config],
        make: Callable[[Config], Transport],
        timeout_s: float,
        retries: int | None,
        display: Display,
        make_blocking: Callable[[Config], Transport],
    ) -> None:
        self.config = configs[0]
        self.configs = configs
        self.timeout_s = timeout_s
        self.retries = retries
        self._display = display
        self._memory = Buffers()
        self._is_known = False  # whether a server has answered this client
        self._headers = {"User-Agent": "warpcall-python", "Accept-Encoding": "identity"}
        if self.config.api_key is not None:
            self._headers["Authorization"] = f"Bearer {self.config.api_key}"
        self.targets = Targets(configs, make)
        self.transport = self.targets.given[0].transport
        self._reader = Reader(self.targets, self._headers, make_blocking)
        self.recipe: tuple[Any, ...] = ()

    async def close(self) -> None:
        """Close the connections and free the memory that was held for further answers."""
        self._memory.close()
        self._reader.close()
        for target in self.targets.everyone():
            await target.transport.close()

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
        return json_of(await self._exchange(method, path, sent, body, path, accepted), path)

    async def get_bytes(self, path: str, route: str = HOME) -> bytes:
        """Get what is at a path, in whatever format, from a server as in `Targets.choose`."""
        reply = await self._exchange("GET", path, {"Accept": "*/*"}, None, path, route=route)
        return reply.body.tobytes()

    async def put_bytes(self, path: str, content: bytes) -> None:
        """Put bytes at a path."""
        headers = {"Content-Type": "application/octet-stream"}
        await self._exchange("PUT", path, headers, Body(content, ()), path, DELETED)

    async def fetch(self, id_: str, kind: Kind[ArrayT], timeout_s: float | None = None) -> ArrayT:
        """Copy a stored tensor from the server."""
        check_timeout(timeout_s)
        headers = {"Accept": wire.MEDIA_TYPE}
        path = f"{wire.TENSORS_PATH}/{id_}"
        reply = await self._exchange(
            "GET",
            path,
            headers,
            None,
            "get",
            tensors=True,
            timeout_s=timeout_s,
            route=node_of(id_) or HOME,
        )
        try:
            (array,) = decode(reply.body, kind).values()
        except (InvalidInput, ValueError) as error:
            raise TransportError(f"the answer must be one tensor: {error}") from error
        return array

    async def delete(self, id_: str) -> None:
        """Delete a stored tensor. If it is gone already, nothing happens."""
        with contextlib.suppress(NotFound):
            await self.delete_at(f"{wire.TENSORS_PATH}/{id_}", node_of(id_) or HOME)

    async def delete_at(self, path: str, route: str = HOME) -> None:
        """Delete what a path names.

        Args:
            route: which server has it, as in `Targets.choose`.

        Raises:
            NotFound: there is nothing at the path.
        """
        await self._exchange("DELETE", path, {}, None, "delete", DELETED, route=route)

    async def open(
        self, path: str, headers: Mapping[str, str], quiet_s: float, value: object = None
    ) -> Stream | None:
        """Open an answer that arrives in pieces, such as a stream of events.

        Args:
            quiet_s: seconds within which the head of the answer must arrive.
            value: is sent as JSON unless it is None.

        Returns:
            The stream, or None if the server answers 204: there is nothing more to come.
        """
        fields, body, method = {**self._headers, **headers}, None, "GET"
        if value is not None:
            fields["Content-Type"] = "application/json"
            body, method = json_body(value), "POST"
        deadline = time.monotonic() + quiet_s
        target = self.targets.choose(HOME)
        request = Request(
            *(method, target.config.prefix + path, deadline, fields, body),
            connect_s=self._connect_s([target]),
        )
        try:
            stream = await target.transport.open(request)
        except ConnectionFailed:
            self._note_failure(target)
            raise
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
        raise problem_of(
            Reply(stream.status, stream.headers, gathered.whole()), sender_of(target.config)
        )

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
        route: str = HOME,
    ) -> Reply:
        """Send a request as `_repeat_until_answered`, with a span if the program is traced."""
        rest = (label, accepted, tensors, timeout_s, route)
        traced = tracer()
        if traced is None:
            return await self._repeat_until_answered(method, path, headers, body, *rest)
        url = self.config.url + path
        with request_span(traced, method, url, label) as span:
            sent = {**headers, **span.headers}
            reply = await self._repeat_until_answered(method, path, sent, body, *rest)
            span.answered(reply)
            return reply

    async def _repeat_until_answered(
        self,
        method: str,
        path: str,
        headers: Mapping[str, str],
        body: Body | None,
        label: str,
        accepted: tuple[int, ...],
        tensors: bool,
        timeout_s: float | None,
        route: str,
    ) -> Reply:
        """Send a request. Repeat it after an error that may pass, while time and retries are left.

        If there are several servers, it is repeated at another one at once. Requests have no side
        effects, or the same one when they are repeated.

        Args:
            route: which servers can answer it, as in `Targets.choose`.

        Raises:
            Problem: the server answered with an error, in the last try.
            TransportError: no answer came.
        """
        deadline = time.monotonic() + (self.timeout_s if timeout_s is None else timeout_s)
        retries: Retries | None = None
        tried: list[Target] = []
        moved: Target | None = None
        moves = 0
        targets, nbytes = self.targets, CALL_BYTES + (body.nbytes if body else 0)
        check_header_values(headers)
        if route is STORE and targets.store is not None and targets.store not in targets.members:
            await self._await_nodes(fresh=False)
        while True:
            left_s = max(0.001, deadline - time.monotonic())
            server_s = left_s - min(MAX_MARGIN_S, left_s / 10)
            fields = {**self._headers, **headers, wire.TIMEOUT_HEADER: f"{server_s:.3f}"}
            meter = self._display.meter(label, body.nbytes if body else 0)
            target, moved = moved or targets.choose(route, tried), None
            failed = target
            url_path, memory = target.config.prefix + path, self._memory
            request = Request(
                *(method, url_path, deadline, fields, body, meter, memory, tensors),
                self._connect_s([*tried, target]),
            )
            counted = targets.is_cluster
            if counted:
                target.count(nbytes)
            try:
                reply = await target.transport.send(request)
                self._is_known = True
                if NODE in reply.headers:
                    self._reader.note_answer()
                    if route is STORE and reply.status in accepted:
                        targets.store = reply.headers[NODE]
                if reply.status in accepted:
                    return reply
                if reply.status != MOVED or moves == MAX_MOVES:
                    raise problem_of(reply, sender_of(target.config))
                owner, moves = await self._owner_at(reply, path), moves + 1
                if owner is None:
                    raise problem_of(reply, sender_of(target.config))
                if owner in tried:  # it is listed for some seconds after it was lost
                    failed = owner
                    tried.append(target)  # it would say the same again, without a pause
                    raise ConnectionFailed(f"{owner.config.url} has it and does not answer")
                moved = owner
                continue
            except MAY_PASS as error:
                moves = 0
                tried.append(failed)
                if isinstance(error, ConnectionFailed):
                    self._note_failure(failed)
                elsewhere = targets.is_cluster and targets.has_other(tried)
                retries = retries or Retries(self.retries, self._is_known)
                pause_s = retries.pause_s(error, request.remaining_s(), elsewhere)
                if pause_s is None:
                    if retries.tries > 1:
                        error.add_note(f"It was tried {retries.tries} times.")
                    raise
                if not elsewhere:
                    tried.clear()
            finally:
                if counted:
                    target.count(-nbytes)
                meter.close()
            if pause_s:
                await self.transport.sleep(pause_s)

    def _connect_s(self, tried: list[Target]) -> float | None:
        """The limit on connecting to the last of these servers; None if there is no other one."""
        other = self.targets.is_cluster and self.targets.has_other(tried)
        return CONNECT_S if other else None

    async def _owner_at(self, reply: Reply, path: str) -> Target | None:
        """The server to which an answer leads; None if it is none that a given server lists."""
        location = reply.headers.get("location", "")
        found = self.targets.at_location(location, path)
        if found is None:
            await self._await_nodes(fresh=True)
            found = self.targets.at_location(location, path)
        return found

    def _note_failure(self, target: Target) -> None:
        if self.targets.is_cluster:
            target.note_failure()
            self._reader.note_failure()

    async def _await_nodes(self, *, fresh: bool) -> None:
        """Wait until the list of servers has been read once, or once more, NODES_S at most."""
        reads = self._reader.reads if fresh else 0
        if self._reader.reads <= reads:
            self._reader.start()
        deadline = time.monotonic() + NODES_S
        while self._reader.reads <= reads and time.monotonic() < deadline:
            await self.transport.sleep(POLL_S)


def json_of(reply: Reply, path: str) -> Any:
    """The JSON of an answer. Raise TransportError if it is none."""
    try:
        return json.loads(reply.body.tobytes())
    except (ValueError, RecursionError) as error:
        raise TransportError(f"{path} must answer in JSON, got {first_text(reply)!r}") from error
