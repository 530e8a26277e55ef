"""The `warpcall` command as a process. Every error is one line on stderr, wrapped on a terminal, and an
exit code."""

from __future__ import annotations

import contextlib
import gc
import io
import os
import signal
import sys
from collections.abc import Iterator
from types import FrameType
from typing import Literal, NoReturn, TextIO

LOG_IN = "`warpcall login --url URL` saves one, or set WARPCALL_API_KEY"
INTERRUPTED = 130  # the exit code that shells give a command ended by Ctrl-C


def main() -> NoReturn:
    """Run the command and exit with 0, 1 for an error, 2 for wrong usage or 130 for Ctrl-C."""
    interruptible = signal.getsignal(signal.SIGINT) is signal.default_int_handler
    if interruptible:  # an import can turn KeyboardInterrupt into another error
        signal.signal(signal.SIGINT, _leave)
    _open_missing()
    _name_output()
    gc.disable()  # while modules are imported, there is no garbage to find: 0.30 instead of 0.35 s
    from warpcall._cli.commands import app
    from warpcall._cli.files import UsageError
    from warpcall.errors import Unauthorized, WarpcallError

    gc.freeze()  # no later collection scans the modules, which stay
    gc.enable()
    if interruptible:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        try:
            app()
        finally:
            sys.stdout.flush()
    except BrokenPipeError:  # the reader of the output has gone, so no message can reach it
        _drop_output()
        sys.exit(1)
    except UsageError as error:
        _fail(str(error), 2)
    except KeyboardInterrupt:
        _drop_output()
        sys.exit(INTERRUPTED)
    except OSError as error:
        _drop_output()
        reason = error.strerror or str(error)  # without the error number
        _fail(f"{error.filename}: {reason}" if error.filename else reason, 1)
    except Unauthorized as error:
        _fail(f"{error}; {LOG_IN}", 1)
    except (WarpcallError, MemoryError) as error:
        _fail(str(error) or type(error).__name__, 1)
    except (LookupError, TypeError, ValueError, AttributeError) as error:
        # the server is not a Warpcall server, or this is a defect of the client
        _fail(f"unexpected {type(error).__name__}: {error}", 1)
    sys.exit(0)


def _open_missing() -> None:
    """Replace standard streams that are closed, for which Python has None.

    The replacement takes the descriptor's number. Otherwise the connection to the server would get
    the number of standard output. Using the replacement fails with an OSError, as it does in other
    programs.
    """
    if sys.stdin is None:
        sys.stdin = _null(0, os.O_WRONLY, "r")
    if sys.stdout is None:
        sys.stdout = _null(1, os.O_RDONLY, "w")
    if sys.stderr is None:  # messages to it are lost, without an error
        sys.stderr = _null(2, os.O_WRONLY, "w")


def _null(number: int, flags: int, mode: Literal["r", "w"]) -> TextIO:
    opened = os.open(os.devnull, flags)
    if opened != number:
        os.dup2(opened, number)
        os.close(opened)
    return os.fdopen(number, mode, closefd=False)


class _Output(io.TextIOWrapper):
    """Standard output. Errors of writing to it have its name as their file name."""

    def write(self, text: str) -> int:
        with _named():
            return super().write(text)

    def flush(self) -> None:
        with _named():
            super().flush()


@contextlib.contextmanager
def _named() -> Iterator[None]:
    try:
        yield
    except OSError as error:
        error.filename = "standard output"
        raise


def _name_output() -> None:
    out = sys.stdout
    if type(out) is io.TextIOWrapper:
        encoding, line_buffering, through = out.encoding, out.line_buffering, out.write_through
        sys.stdout = _Output(  # backslashreplace: not every encoding has all characters
            out.detach(), encoding, "backslashreplace", None, line_buffering, through
        )


def _drop_output() -> None:
    """Discard the buffered output if it cannot be written.

    Python would otherwise try to write it again at exit, fail, and exit with code 120.
    """
    try:
        sys.stdout.flush()
    except OSError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _leave(number: int, frame: FrameType | None) -> NoReturn:
    os._exit(INTERRUPTED)


def _fail(message: str, code: int) -> NoReturn:
    from warpcall._text import clean, wrap_line

    try:
        line = f"warpcall: {clean(' '.join(message.split()))}"
        sys.stderr.write(f"{wrap_line(line) if sys.stderr.isatty() else line}\n")
        sys.stderr.flush()
    except OSError:  # stderr is closed too: the exit code is all that is left
        os.dup2(os.open(os.devnull, os.O_WRONLY), 2)
    sys.exit(code)
