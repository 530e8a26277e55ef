"""The command `warpcall` as a process: errors are one line on stderr, whatever happens."""

from __future__ import annotations

import contextlib
import io
import os
import signal
import sys
from collections.abc import Iterator
from types import FrameType
from typing import Literal, NoReturn, TextIO

INTERRUPTED = 130  # the exit code that shells give a command ended by Ctrl-C


def main() -> NoReturn:
    """Run the command, and exit: 0, 1 for an error, 2 for wrong usage, 130 for Ctrl-C."""
    interruptible = signal.getsignal(signal.SIGINT) is signal.default_int_handler
    if interruptible:  # in an import KeyboardInterrupt could become any other error
        signal.signal(signal.SIGINT, _leave)
    _open_missing()
    _name_output()
    from warpcall._cli.commands import app  # numpy and typer take 200 ms to import
    from warpcall._cli.files import UsageError
    from warpcall.errors import WarpcallError

    if interruptible:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        try:
            app()
        finally:
            sys.stdout.flush()
    except BrokenPipeError:  # the reader has left: nothing to say, nor to say it to
        _drop_output()
        sys.exit(1)
    except UsageError as error:
        _fail(str(error), 2)
    except KeyboardInterrupt:
        _drop_output()
        sys.exit(INTERRUPTED)
    except OSError as error:
        _drop_output()
        reason = error.strerror or str(error)  # without the number
        _fail(f"{error.filename}: {reason}" if error.filename else reason, 1)
    except (WarpcallError, MemoryError) as error:
        _fail(str(error) or type(error).__name__, 1)
    except (LookupError, TypeError, ValueError, AttributeError) as error:
        # an answer that no Warpcall server gives, or a defect of ours
        _fail(f"unexpected {type(error).__name__}: {error}", 1)
    sys.exit(0)


def _open_missing() -> None:
    """Replace standard streams that are closed: Python has None in their place.

    Using one is then an error of the system, as in other programs, and its descriptor is taken: the
    connection to the server would otherwise get the number of standard output.
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
    """Standard output, named in the errors of writing to it."""

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
        sys.stdout = _Output(  # not every encoding has all characters
            out.detach(), encoding, "backslashreplace", None, line_buffering, through
        )


def _drop_output() -> None:
    """Let go what standard output still holds, if it cannot be written.

    Python would try again at its end, and exit with code 120.
    """
    try:
        sys.stdout.flush()
    except OSError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _leave(number: int, frame: FrameType | None) -> NoReturn:
    os._exit(INTERRUPTED)


def _fail(message: str, code: int) -> NoReturn:
    from warpcall._text import clean

    try:
        sys.stderr.write(f"warpcall: {clean(' '.join(message.split()))}\n")
        sys.stderr.flush()
    except OSError:  # stderr is closed too: the exit code is all that is left
        os.dup2(os.open(os.devnull, os.O_WRONLY), 2)
    sys.exit(code)
