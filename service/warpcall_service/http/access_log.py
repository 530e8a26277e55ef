"""The access log: one JSON line for each request."""

from __future__ import annotations

import json
import time

from warpcall_service import logs
from warpcall_service.http.exchange import Exchange

# Below these folders, a path begins with the token of a share link, which must not be logged.
SHARED_FOLDERS = ("/share/", "/v1/shared/")


def log_request(exchange: Exchange, seconds: float) -> None:
    """Write the line of one request.

    The line is formatted by hand because json.dumps takes three times as long. It is written
    without the logging module, which would add half as much again.
    """
    if not logs.writes_requests():
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


def _without_token(path: str) -> str:
    for folder in SHARED_FOLDERS:
        if path.startswith(folder):
            return f"{folder}..."
    return path[:200]
