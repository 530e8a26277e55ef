"""The log: one JSON object a line, on stderr. Never what a body holds, and never a key.

The server writes it from a thread (`log_writer.py`), so that a log that nobody reads, or a disk that
is full, holds up no request. Its worker and job processes write to pipes that the server reads
(`processes/child_log.py`): they depend on the server, and not on whoever reads the server's log.
"""

from __future__ import annotations

import atexit
import json
import logging
import os
import sys
import threading
import time
from contextlib import suppress
from typing import TextIO

from warpcall_service.log_writer import LogWriter

TIME = "%Y-%m-%dT%H:%M:%SZ"
FLUSH_S = 1.0  # at the end of the server, for the lines that still wait
MAX_TEXT = 16_000  # characters of a message, and of a traceback, that one line may hold
_FIELDS = ("id", "client", "user", "key", "action", "role")  # what a message may carry as `extra`
_writer: LogWriter | None = None  # of the server's process, once it is set up
_quiet = False

log = logging.getLogger("warpcall.log")


def set_up(*, quiet: bool) -> None:
    """Log what the server's process has to say, without blocking; `quiet` leaves out requests."""
    global _writer, _quiet
    _writer, _quiet = LogWriter(_fd_of(sys.stderr), _dropped), quiet
    atexit.register(_writer.flush, FLUSH_S)
    _configure(_Handler(_writer), "INFO")
    for chatty in ("uvicorn", "alembic"):
        logging.getLogger(chatty).setLevel(logging.WARNING)
    # What Python itself would write to stderr, which may block, becomes lines of the log.
    logging.captureWarnings(True)
    sys.excepthook = _log_uncaught
    sys.unraisablehook = lambda args: log.error(
        "%s: %r", args.err_msg or "exception ignored in", args.object, exc_info=args.exc_value
    )
    threading.excepthook = lambda args: log.error(
        "a thread ended", exc_info=args.exc_value if args.exc_value is not None else True
    )


def set_up_child() -> None:
    """Log warnings of a worker or job process to its stderr, which the server reads."""
    _configure(logging.StreamHandler(), "WARNING")


def dropped() -> int:
    """Lines that the server could not write so far."""
    return 0 if _writer is None else _writer.dropped


def write(line: str) -> None:
    """Write a line as it is: one that a child process logged, or that is no part of the log."""
    if _writer is not None:
        _writer.put(line)


def writes_requests() -> bool:
    """Whether each request is logged: not before `set_up`, and not if it was told to be quiet."""
    return _writer is not None and not _quiet


def announce(line: str) -> None:
    """Write a line to stdout from a thread of its own: it may block, for ever."""
    fd, data = _fd_of(sys.stdout), f"{line}\n".encode()

    def write_all() -> None:
        with suppress(OSError):
            os.write(fd, data)

    threading.Thread(target=write_all, name="stdout", daemon=True).start()


class _Handler(logging.Handler):
    """Hands messages to a LogWriter."""

    def __init__(self, writer: LogWriter) -> None:
        super().__init__()
        self._writer = writer

    def emit(self, record: logging.LogRecord) -> None:
        try:
            self._writer.put(self.format(record))
        except Exception as error:  # noqa: BLE001  # logging's own way is to write to stderr
            name, place = record.name, f"{record.filename}:{record.lineno}"
            self._writer.put(
                _line("error", name, f"no message could be made at {place}: {error!r}")
            )


class _Json(logging.Formatter):
    """What is not a request: messages, with the cause of an error as one string."""

    def format(self, record: logging.LogRecord) -> str:
        extra = {name: str(getattr(record, name)) for name in _FIELDS if hasattr(record, name)}
        if record.exc_info:
            extra["error"] = self.formatException(record.exc_info)[-MAX_TEXT:]
        return _line(record.levelname.lower(), record.name, record.getMessage(), **extra)


def _fd_of(stream: TextIO | None) -> int:
    """The descriptor of a standard stream; of /dev/null if the server was started without it."""
    return os.open(os.devnull, os.O_WRONLY) if stream is None else stream.fileno()


def _configure(handler: logging.Handler, level: str) -> None:
    handler.setFormatter(_Json())
    logging.basicConfig(handlers=[handler], level=level)


def _line(level: str, logger: str, message: str, **extra: str) -> str:
    line = {
        "time": time.strftime(TIME, time.gmtime()),
        "level": level,
        "logger": logger,
        "message": message[:MAX_TEXT],
    }
    return json.dumps({**line, **extra})


def _dropped(lines: int) -> str:
    return _line("warning", log.name, f"{lines} lines of the log were dropped: it was not read")


def _log_uncaught(kind: type[BaseException], error: BaseException, _: object) -> None:
    log.critical("the server ends because of an error", exc_info=error)
