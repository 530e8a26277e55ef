"""The log: lines on stderr, JSON or for a terminal. They never contain data of a body, or a key.

The server writes the log from a thread (`log_writer.py`). So a log that nobody reads, or a full
disk, delays no request. Worker and job processes write to pipes that the server reads
(`processes/child_log.py`). So they do not depend on who reads the server's log.
"""

from __future__ import annotations

import atexit
import functools
import json
import logging
import os
import sys
import threading
import time
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from typing import TextIO

from warpcall_service.log_writer import LogWriter
from warpcall_service.text import printable

TIME = "%Y-%m-%dT%H:%M:%SZ"
FLUSH_S = 1.0  # at the end of the server, for lines that are not written yet
MAX_TEXT = 16_000  # characters of a message, and of a traceback, in one line
_FIELDS = ("id", "client", "user", "key", "action", "role")  # members that `extra` may have
_writer: LogWriter | None = None  # in the server's process, after `set_up`
_quiet = False
_for_people = False
_second, _now = 0, ""  # the last second for which `now` was called, and its text

_errors: deque[tuple[str, str, str]] = deque(maxlen=5)  # the last ones, for administrators
MAX_RECENT = 200  # characters of each of them

log = logging.getLogger("warpcall.log")


def set_up(*, quiet: bool, json_lines: bool = True, server: str = "") -> None:
    """Set up the log of the server's process.

    Args:
        quiet: whether requests are not logged.
        json_lines: whether each line is JSON; if not, short lines are for people at a terminal.
        server: name of this server among several that write to one log; each line then has it.
    """
    global _writer, _quiet, _for_people
    _for_people = not json_lines
    writer = LogWriter if not server else functools.partial(_NamedWriter, server)
    _writer, _quiet = writer(_fd_of(sys.stderr), _dropped), quiet
    atexit.register(_writer.flush, FLUSH_S)
    _configure(_Handler(_writer), "INFO")
    for chatty in ("uvicorn", "alembic"):
        logging.getLogger(chatty).setLevel(logging.WARNING)
    # Python itself would write these to stderr, and might block. They become lines of the log.
    logging.captureWarnings(True)
    sys.excepthook = _log_uncaught
    sys.unraisablehook = lambda args: log.error(
        "%s: %r", args.err_msg or "exception ignored in", args.object, exc_info=args.exc_value
    )
    threading.excepthook = lambda args: log.error(
        "a thread ended", exc_info=args.exc_value if args.exc_value is not None else True
    )


def set_up_child() -> None:
    """Set up the log of a worker or job process: warnings on stderr, which the server reads."""
    _configure(logging.StreamHandler(), "WARNING")


def dropped() -> int:
    """The number of lines that the server could not write so far."""
    return 0 if _writer is None else _writer.dropped


def recent_errors() -> list[tuple[str, str, str]]:
    """Time, logger and message of the last errors in the log, the newest one first."""
    return [*reversed(_errors)]


def write(line: str) -> None:
    """Write a line unchanged: of the access log, of a child process, or one that is not JSON."""
    if _writer is not None:
        _writer.put(line)


def writes_requests() -> bool:
    """Whether requests are logged: not before `set_up`, and not with `quiet`."""
    return _writer is not None and not _quiet


def for_people() -> bool:
    """Whether lines are short, for people at a terminal, and not JSON."""
    return _for_people


def now() -> str:
    """The time as lines of the log have it. It is formatted once a second."""
    global _second, _now
    second = int(time.time())
    if second != _second:
        _second, _now = second, time.strftime(TIME, time.gmtime(second))
    return _now


def clock() -> str:
    """The time of day for a line at a terminal."""
    return time.strftime("%H:%M:%S")


def announce(*lines: str) -> None:
    """Write lines to stdout in one write, from a thread of its own, because this may block for ever."""
    fd, data = _fd_of(sys.stdout), "".join(f"{line}\n" for line in lines).encode()

    def write_all() -> None:
        with suppress(OSError):
            os.write(fd, data)

    threading.Thread(target=write_all, name="stdout", daemon=True).start()


class _NamedWriter(LogWriter):
    """Adds the name of the server to each line.

    Args:
        server: the name.
    """

    def __init__(self, server: str, fd: int, describe: Callable[[int], str]) -> None:
        super().__init__(fd, describe)
        self._member = f'{{"server": {json.dumps(server)}, '
        self._prefix = f"{server}: "

    def put(self, line: str) -> None:
        super().put(f"{self._member}{line[1:]}" if line[:2] == '{"' else f"{self._prefix}{line}")


class _Handler(logging.Handler):
    """Passes messages to a LogWriter."""

    def __init__(self, writer: LogWriter) -> None:
        super().__init__()
        self._writer = writer

    def emit(self, record: logging.LogRecord) -> None:
        try:
            if record.levelno >= logging.ERROR:
                message = printable(record.getMessage())[:MAX_RECENT]
                _errors.append((now(), record.name, message))
            self._writer.put(self.format(record))
        except Exception as error:  # noqa: BLE001  # logging itself would write it to stderr
            name, place = record.name, f"{record.filename}:{record.lineno}"
            self._writer.put(
                _line("error", name, f"no message could be made at {place}: {error!r}")
            )


class _Json(logging.Formatter):
    """Formats a message as JSON, with the traceback of an error as one string."""

    def format(self, record: logging.LogRecord) -> str:
        extra = {name: str(getattr(record, name)) for name in _FIELDS if hasattr(record, name)}
        if record.exc_info:
            extra["error"] = self.formatException(record.exc_info)[-MAX_TEXT:]
        return _line(record.levelname.lower(), record.name, record.getMessage(), **extra)


def _fd_of(stream: TextIO | None) -> int:
    """The descriptor of a standard stream, or of /dev/null if the server has no such stream."""
    return os.open(os.devnull, os.O_WRONLY) if stream is None else stream.fileno()


class _Short(logging.Formatter):
    """Formats a message for people at a terminal, and an error with its traceback."""

    def format(self, record: logging.LogRecord) -> str:
        level = "" if record.levelno <= logging.INFO else f"{record.levelname.lower()}: "
        lines = [f"{clock()} {level}{record.getMessage()[:MAX_TEXT]}"]
        if record.exc_info:
            lines += self.formatException(record.exc_info)[-MAX_TEXT:].splitlines()
        return "\n".join(map(_printable, lines))


def _printable(line: str) -> str:
    """The line with escapes for what a terminal would act on."""
    return line if line.isprintable() else line.encode("unicode_escape").decode()


def _configure(handler: logging.Handler, level: str) -> None:
    handler.setFormatter(_Short() if _for_people else _Json())
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
    message = f"{lines} lines of the log were dropped: it was not read"
    return f"{clock()} warning: {message}" if _for_people else _line("warning", log.name, message)


def _log_uncaught(kind: type[BaseException], error: BaseException, _: object) -> None:
    log.critical("the server ends because of an error", exc_info=error)
