"""The access log: one line for each request, JSON or short for a terminal."""

from __future__ import annotations

import json
import time

from warpcall_service import logs
from warpcall_service.http.exchange import Exchange

KIB = 1024
# Below these folders, a path begins with the token of a share link, which must not be logged.
SHARED_FOLDERS = ("/share/", "/v1/shared/")


def log_request(exchange: Exchange, seconds: float) -> None:
    """Write the line of one request.

    The line is formatted by hand because json.dumps takes three times as long. It is written
    without the logging module, which would add half as much again.
    """
    if not logs.writes_requests():
        return
    if logs.for_people():
        logs.write(_short_line(exchange, seconds))
        return
    scope, caller = exchange.scope, exchange.caller
    client = json.dumps(scope["client"][0] if scope["client"] else "")
    stages = ", ".join([f'"{name}": {ms:.3f}' for name, ms in exchange.stages_ms.items()])
    logs.write(
        f'{{"time": "{time.strftime(logs.TIME, time.gmtime())}", "id": "{exchange.request_id}", '
        f'"client": {client}, "user": "{caller.name}", "key": "{caller.key_id}", '
        f'"method": "{scope["method"]}", "path": {json.dumps(_without_token(scope["path"]))}, '
        f'"op": "{exchange.op}", "status": {exchange.status}, "outcome": "{exchange.outcome}", '
        f'"in": {exchange.received}, "out": {exchange.sent}, "ms": {seconds * 1e3:.2f}, '
        f'"stages_ms": {{{stages}}}}}'
    )


def _short_line(exchange: Exchange, seconds: float) -> str:
    """The line of a request for a terminal of 80 columns, if the path and the user are short."""
    scope = exchange.scope
    path = json.dumps(_without_token(scope["path"]))[1:-1]  # without control characters
    moved = f"{_size(exchange.received)}/{_size(exchange.sent)}"  # in and out
    text = f"{logs.clock()} {exchange.status} {scope['method']:4} {path:24} {seconds * 1e3:6.1f} ms"
    return f"{text}  {moved}  {exchange.caller.name}".rstrip()


def _size(nbytes: int) -> str:
    if nbytes < KIB:
        return f"{nbytes} B"
    return f"{nbytes / KIB:.3g} KiB" if nbytes < 1000 * KIB else f"{nbytes / KIB**2:.3g} MiB"


def _without_token(path: str) -> str:
    for folder in SHARED_FOLDERS:
        if path.startswith(folder):
            return f"{folder}..."
    return path[:200]
