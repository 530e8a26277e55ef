"""The log: one JSON object a line, on stderr. Never what a body holds, and never a key."""

from __future__ import annotations

import json
import logging
import time
from typing import TYPE_CHECKING

if TYPE_CHECKING:  # a lane's process logs, too, and has no HTTP
    from warpcall_service.exchange import Exchange

_ACCESS = logging.getLogger("warpcall.access")
_FIELDS = ("id", "client", "user", "key", "action", "role")  # what a message may carry as `extra`


def set_up(*, quiet: bool, level: str = "INFO") -> None:
    """Log everything from `level` on as JSON; `quiet` leaves out the lines of requests."""
    handler = logging.StreamHandler()
    handler.setFormatter(_Json())
    logging.basicConfig(handlers=[handler], level=level)
    for chatty in ("uvicorn", "alembic"):
        logging.getLogger(chatty).setLevel(logging.WARNING)
    plain = logging.StreamHandler()
    plain.setFormatter(logging.Formatter("%(message)s"))  # `access` has written JSON already
    _ACCESS.propagate = False
    _ACCESS.addHandler(plain)
    if quiet:
        _ACCESS.setLevel(logging.WARNING)


def access(exchange: Exchange, seconds: float) -> None:
    """The line of one request, put together by hand: json.dumps would take three times as long."""
    if not _ACCESS.isEnabledFor(logging.INFO):
        return
    client = exchange.scope["client"]
    stages = ", ".join([f'"{name}": {ms:.3f}' for name, ms in exchange.stages_ms.items()])
    _ACCESS.info(
        '{"time": "%s", "id": "%s", "client": %s, "user": "%s", "key": "%s", "method": "%s", '
        '"path": %s, "op": "%s", "status": %d, "outcome": "%s", "in": %d, "out": %d, '
        '"ms": %.2f, "stages_ms": {%s}}',
        time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        exchange.request_id,
        json.dumps(client[0] if client else ""),
        exchange.caller.name,
        exchange.caller.key_id,
        exchange.scope["method"],
        json.dumps(exchange.scope["path"][:200]),
        exchange.op,
        exchange.status,
        exchange.outcome,
        exchange.received,
        exchange.sent,
        seconds * 1e3,
        stages,
    )


class _Json(logging.Formatter):
    """What is not a request: messages, with the cause of an error as one string."""

    def format(self, record: logging.LogRecord) -> str:
        line = {
            "time": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(record.created)),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
        }
        for name in _FIELDS:
            if hasattr(record, name):
                line[name] = str(getattr(record, name))
        if record.exc_info:
            line["error"] = self.formatException(record.exc_info)
        return json.dumps(line)
