"""The check of a source that a user uploads, in a process of its own in the sandbox.

The programs `upload_check` and `problem_check` answer one request each. What they share is here:
compiling and importing the source within a limit of time, and refusals that name its line. Imported
code can do in this process what it likes, so an answer is only as honest as the source.
"""

from __future__ import annotations

import contextlib
import importlib.util
import json
import math
import os
import shutil
import signal
import socket
import sys
import threading
import traceback
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from types import ModuleType
from typing import Any, NoReturn

from warpcall_bench.runs import trees
from warpcall_bench.runs.trees import SourceTree, Written
from warpcall_service.lanes.messages import frame, read_frame
from warpcall_service.processes import child, temporary
from warpcall_service.text import error_text

MAX_CHARS = 1000  # of an error, and of a description
OUTPUT = (1, 2)  # the descriptors to which code prints
GPU_WORDS = ("cuda", "driver", "gpu", "nvidia")
OWN_ERRORS = "warpcall_kernels.op.errors"  # their messages say all without the name of the class


class Refused(Exception):
    """The source cannot be used. The message is for its author, and names the line.

    Args:
        field: the part of the request that is wrong.
    """

    def __init__(self, message: str, field: str = "source") -> None:
        super().__init__(message)
        self.field = field


class Answers:
    """The one answer of this process: the first one counts."""

    def __init__(self, sock: socket.socket) -> None:
        self._sock = sock
        self._lock = threading.Lock()
        self._sent = False

    def send(self, answer: Mapping[str, Any]) -> None:
        """Send an answer, unless one was sent before."""
        with self._lock:
            if not self._sent:
                self._sent = True
                with contextlib.suppress(OSError):  # the server has ended
                    self._sock.sendall(frame(answer))

    def refuse(self, refusal: Refused) -> None:
        """Answer with a refusal."""
        self.send({"error": text(str(refusal)), "field": text(refusal.field)})


Check = Callable[[Any, Path, Answers], Mapping[str, Any]]


def answer_one(check: Check, read: Callable[[bytes], Any] = json.loads) -> NoReturn:
    """Answer one request of the server, and end this process.

    Args:
        check: makes the answer from the request, and from a folder for the source, which Triton
            reads while code runs; it raises Refused if there is none.
        read: parses the request.
    """
    args = child.start(server_fd=int)
    with socket.socket(fileno=args.server_fd) as sock:
        request = read_frame(sock)
        if request is not None:
            answers = Answers(sock)
            with temporary.folder() as folder:
                answer(check, read(request), folder, answers)
    os._exit(0)  # threads that the source may have started do not matter


def answer(check: Check, request: Any, folder: Path, answers: Answers) -> None:
    """Answer a request, with a refusal if the check raises an exception.

    Args:
        check, folder: as in `answer_one`.
    """
    try:
        found = check(request, folder, answers)
    except Refused as refusal:
        answers.refuse(refusal)
    except BaseException as error:  # noqa: BLE001  # such as one in a `__str__` of theirs
        answers.refuse(Refused(f"its check ended with {type(error).__name__}"))
    else:
        answers.send(found)


def text(value: str, most: int = MAX_CHARS) -> str:
    """Text for the answer: UTF-8 and JSON have no lone surrogates."""
    return value.encode(errors="backslashreplace").decode()[:most]


def write_source(tree: SourceTree, folder: Path, name: str) -> Written:
    """Write the files of an upload, drop what this process prints from now on, and compile the source.

    Args:
        folder, name: as of `trees.write`.

    Raises:
        Refused: it cannot be compiled.
    """
    written = trees.write(tree, folder, name)
    drop_output()
    try:
        compile(written.file.read_bytes(), written.file, "exec", dont_inherit=True)
    except SyntaxError as error:
        where = f"line {error.lineno}: " if error.lineno else ""
        raise Refused(f"{where}{type(error).__name__}: {error.msg}") from None
    except (ValueError, MemoryError, RecursionError, OverflowError) as error:
        raise Refused(f"it cannot be compiled: {error_text(error)}") from None
    return written


def import_source(written: Written) -> ModuleType:
    """Import a source, a single file as the module `uploaded`.

    Raises:
        Refused: it raised an exception.
    """
    try:
        if written.root is not None:
            return trees.import_tree(written)
        spec = importlib.util.spec_from_file_location("uploaded", written.file)
        assert spec is not None
        assert spec.loader is not None
        module = sys.modules["uploaded"] = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
    except trees.Shadows as error:
        raise Refused(str(error)) from None
    except BaseException as error:  # noqa: BLE001  # uploaded code may raise anything
        message = described(error, written)
        hint = ""
        if isinstance(error, ModuleNotFoundError):
            hint = "; GET /v1/implementations/environment lists the packages that there are"
        elif any(word in message.lower() for word in GPU_WORDS):
            hint = (
                "; the check has no GPU: use it inside of functions, not when the file is imported"
            )
        raise Refused(f"{message}{hint}") from None
    return module


def described(error: BaseException, written: Written) -> str:
    """The class and message of an exception, after the last line of the files that led to it."""
    places = [
        place
        for frame_, number in traceback.walk_tb(error.__traceback__)
        if (place := written.place(frame_.f_code.co_filename, number))
    ]
    message = str(error)
    if isinstance(error, SyntaxError) and (place := written.place(error.filename, error.lineno)):
        places.append(place)
        message = error.msg  # the whole text has the path of the file
    if written.root is not None:
        message = message.replace(f"{written.root}/", "")
    where = places[-1] if places else ""
    own = type(error).__module__ == OWN_ERRORS
    return where + (message if own else f"{type(error).__name__}: {message}")[:MAX_CHARS]


@contextlib.contextmanager
def limited(
    limit_s: float, written: Written | None, answers: Answers, what: str, folder: Path
) -> Iterator[None]:
    """End this process with a refusal, which names the line, if the block takes longer.

    Args:
        written: the files whose line is named; None if there are none.
        what: what takes long, for the message, such as "the import".
        folder: that is deleted then.
    """
    main_thread = threading.get_ident()

    def refuse() -> None:
        places = (
            place
            for frame_, number in traceback.walk_stack(sys._current_frames()[main_thread])
            if written and (place := written.place(frame_.f_code.co_filename, number))
        )
        where = next(places, "")
        answers.refuse(Refused(f"{where}{what} did not end within {limit_s:g} s"))
        shutil.rmtree(folder, ignore_errors=True)

    timer = end_after(limit_s, refuse)
    yield
    lift(timer)


def end_after(limit_s: float, answer: Callable[[], None]) -> threading.Timer:
    """End this process after `limit_s` seconds, whatever its main thread does.

    A thread does that, since code could catch an exception. If code keeps the interpreter's lock,
    the thread cannot run. Then the kernel ends this process a second later, without an answer.

    Args:
        answer: called in that thread before the process ends.

    Returns:
        The timer. Pass it to `lift` if the process shall go on.
    """

    def end() -> None:
        answer()
        os._exit(0)

    timer = threading.Timer(limit_s, end)
    timer.daemon = True
    timer.start()
    signal.signal(signal.SIGALRM, signal.SIG_DFL)
    signal.alarm(math.ceil(limit_s) + 1)
    return timer


def lift(timer: threading.Timer) -> None:
    """Let this process go on beyond the limit."""
    signal.alarm(0)
    timer.cancel()


def drop_output() -> None:
    """Drop what this process prints from now on, which would be in the server's log."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    for fd in OUTPUT:
        os.dup2(nowhere, fd)
    os.close(nowhere)
