"""The access log: one line for each request, JSON or short for a terminal."""

from __future__ import annotations

import functools
import json
from collections.abc import Mapping
from typing import Any, Protocol

from warpcall_service import logs
from warpcall_service.identity import Caller

KIB = 1024


class Answered(Protocol):
    """A request that was answered; the attributes are those of `Exchange`."""

    @property
    def scope(self) -> Mapping[str, Any]: ...
    @property
    def caller(self) -> Caller: ...
    @property
    def request_id(self) -> str: ...
    @property
    def op(self) -> str: ...
    @property
    def stages_ms(self) -> Mapping[str, float]: ...
    @property
    def status(self) -> int: ...
    @property
    def outcome(self) -> str: ...
    @property
    def received(self) -> int: ...
    @property
    def sent(self) -> int: ...
    @property
    def began(self) -> float: ...
    @property
    def computed(self) -> float: ...
    @property
    def compile_ms(self) -> float: ...
    @property
    def route(self) -> str: ...
    @property
    def traceparent(self) -> bytes: ...
    @property
    def tracestate(self) -> bytes: ...
    @property
    def span(self) -> Any: ...


def log_request(exchange: Answered, seconds: float, link_folders: tuple[str, ...]) -> None:
    """Write the line of one request.

    Args:
        link_folders: below these, a path goes on with the token of a share link, which must not be
            logged.

    The line is formatted by hand because json.dumps takes three times as long. It is written
    without the logging module, which would add half as much again.
    """
    if not logs.writes_requests():
        return
    if logs.for_people():
        logs.write(_short_line(exchange, seconds, link_folders))
        return
    scope, caller, stages = exchange.scope, exchange.caller, exchange.stages_ms
    client = scope["client"]
    request = _request_members(
        *(client[0] if client else "", caller.name, caller.key_id, scope["method"]),
        *(scope["path"], link_folders),
    )
    logs.write(
        f'{{"time": "{logs.now()}", "id": "{exchange.request_id}", {request}, '
        f'"op": "{exchange.op}", "status": {exchange.status}, "outcome": "{exchange.outcome}", '
        f'"in": {exchange.received}, "out": {exchange.sent}, "ms": {seconds * 1e3:.2f}, '
        f'"stages_ms": {{{_stage_members(tuple(stages)) % tuple(stages.values())}}}}}'
    )


def _short_line(exchange: Answered, seconds: float, link_folders: tuple[str, ...]) -> str:
    """The line of a request for a terminal of 80 columns, if the path and the user are short."""
    scope = exchange.scope
    path = json.dumps(without_token(scope["path"], link_folders))[
        1:-1
    ]  # without control characters
    moved = f"{_size(exchange.received)}/{_size(exchange.sent)}"  # in and out
    text = f"{logs.clock()} {exchange.status} {scope['method']:4} {path:24} {seconds * 1e3:6.1f} ms"
    return f"{text}  {moved}  {exchange.caller.name}".rstrip()


def _size(nbytes: int) -> str:
    if nbytes < KIB:
        return f"{nbytes} B"
    return f"{nbytes / KIB:.3g} KiB" if nbytes < 1000 * KIB else f"{nbytes / KIB**2:.3g} MiB"


@functools.lru_cache(256)
def _request_members(
    client: str, user: str, key: str, method: str, path: str, link_folders: tuple[str, ...]
) -> str:
    """The members of a line that are the same for many requests."""
    return (
        f'"client": {json.dumps(client)}, "user": "{user}", "key": "{key}", '
        f'"method": "{method}", "path": {json.dumps(without_token(path, link_folders))}'
    )


@functools.lru_cache(16)
def _stage_members(names: tuple[str, ...]) -> str:
    """A format for the milliseconds of these stages."""
    return ", ".join(f'"{name}": %.3f' for name in names)


def without_token(path: str, link_folders: tuple[str, ...]) -> str:
    """The beginning of a path, without the token of a share link."""
    for folder in link_folders:
        if path.startswith(folder):
            return f"{folder}..."
    return path[:200]
