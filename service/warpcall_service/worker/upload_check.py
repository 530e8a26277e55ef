"""Checks an uploaded source: python -m warpcall_service.worker.upload_check, in the sandbox.

It compiles and imports the source, and checks that the function takes the inputs and parameters of
its op by name. It calls nothing and has no GPU. Imported code can do in this process what it likes,
so the answer is only as honest as the source.
"""

from __future__ import annotations

import contextlib
import importlib
import importlib.util
import inspect
import json
import os
import shutil
import socket
import sys
import tempfile
import threading
import traceback
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any, NoReturn

from warpcall_service.lanes.messages import frame, read_frame
from warpcall_service.processes import child
from warpcall_service.runs.messages import CheckRequest
from warpcall_service.text import error_text
from warpcall_service.worker.time_limit import end_after, lift

MAX_CHARS = 1000  # of an error, and of the description
MAX_NAMES = 12  # functions that an error lists
SLOW_PACKAGES = ("torch", "triton")  # importing them takes seconds
OUTPUT = (1, 2)  # the descriptors to which code prints
GPU_WORDS = ("cuda", "driver", "gpu", "nvidia")


class Refused(Exception):
    """The source cannot be used. The message is for its author, and names the line.

    Args:
        field: the part of the request that is wrong.
    """

    def __init__(self, message: str, field: str = "source") -> None:
        super().__init__(message)
        self.field = field


def main() -> None:
    """Answer one request."""
    args = child.start(server_fd=int)
    with socket.socket(fileno=args.server_fd) as sock:
        text = read_frame(sock)
        if text is None:
            return
        request: CheckRequest = json.loads(text)
        answers = _Answers(sock)
        with tempfile.TemporaryDirectory(prefix="warpcall-check-") as folder:
            try:
                doc = _check(request, Path(folder), answers)
            except Refused as refusal:
                answers.refuse(refusal)
            except BaseException as error:  # noqa: BLE001  # such as one in a `__str__` of theirs
                answers.refuse(Refused(f"its check ended with {type(error).__name__}"))
            else:
                answers.send({"doc": _text(doc)})
    os._exit(0)  # threads that the source may have started do not matter


class _Answers:
    """The one answer of this process: the first one counts."""

    def __init__(self, sock: socket.socket) -> None:
        self._sock = sock
        self._lock = threading.Lock()
        self._sent = False

    def send(self, answer: Mapping[str, str]) -> None:
        """Send an answer, unless one was sent before."""
        with self._lock:
            if not self._sent:
                self._sent = True
                with contextlib.suppress(OSError):  # the server has ended
                    self._sock.sendall(frame(answer))

    def refuse(self, refusal: Refused) -> None:
        self.send({"error": _text(str(refusal)), "field": refusal.field})


def _check(request: CheckRequest, folder: Path, answers: _Answers) -> str:
    """Check a source, and return the first line of the function's docstring."""
    file = folder / f"{request['function']}.py"
    file.write_bytes(request["source"].encode())
    _drop_output()
    _compile(file)
    for package in SLOW_PACKAGES:
        if package in request["source"]:
            importlib.import_module(package)  # now, so that its time does not count as the source's
    with _limited(request["limit_s"], file, answers):
        module = _import(file)
        function = _function(module, request["function"])
        _check_signature(function, request, file)
        doc = inspect.getdoc(function) or ""
    return doc.strip().partition("\n")[0]


def _text(text: str) -> str:
    """Text for the answer: UTF-8 and JSON have no lone surrogates."""
    return text.encode(errors="backslashreplace").decode()[:MAX_CHARS]


def _compile(file: Path) -> None:
    try:
        compile(file.read_bytes(), file, "exec", dont_inherit=True)
    except SyntaxError as error:
        where = f"line {error.lineno}: " if error.lineno else ""
        raise Refused(f"{where}{type(error).__name__}: {error.msg}") from None
    except (ValueError, MemoryError, RecursionError, OverflowError) as error:
        raise Refused(f"it cannot be compiled: {error_text(error)}") from None


def _import(file: Path) -> ModuleType:
    spec = importlib.util.spec_from_file_location("uploaded", file)
    assert spec is not None
    assert spec.loader is not None
    module = sys.modules["uploaded"] = importlib.util.module_from_spec(spec)
    try:
        spec.loader.exec_module(module)
    except BaseException as error:  # noqa: BLE001  # uploaded code may raise anything
        _refuse_import(error, file)
    return module


def _refuse_import(error: BaseException, file: Path) -> NoReturn:
    lines = [
        number
        for frame_, number in traceback.walk_tb(error.__traceback__)
        if frame_.f_code.co_filename == str(file)
    ]
    where = f"line {lines[-1]}: " if lines else ""
    message = f"{type(error).__name__}: {error}"[:MAX_CHARS]
    hint = ""
    if isinstance(error, ModuleNotFoundError):
        hint = "; GET /v1/implementations/environment lists the packages that there are"
    elif any(word in message.lower() for word in GPU_WORDS):
        hint = "; the check has no GPU: use it inside of functions, not when the file is imported"
    raise Refused(f"{where}{message}{hint}")


def _function(module: ModuleType, name: str) -> Any:
    """The function to time.

    Raises:
        Refused: there is none of that name, or it is a Triton kernel or a class.
    """
    found = vars(module).get(name)
    if name not in vars(module):
        others = [
            other
            for other, value in vars(module).items()
            if inspect.isfunction(value) and value.__module__ == module.__name__
        ]
        known = ", ".join(others[:MAX_NAMES]) or "none"
        raise Refused(f"it has no function {name}, its functions are: {known}", "function")
    triton_jit = sys.modules.get("triton.runtime.jit")  # absent if the source does not use it
    if triton_jit is not None and isinstance(found, triton_jit.KernelInterface):
        raise Refused(f"{name} is a Triton kernel: name the function that launches it", "function")
    if not callable(found) or isinstance(found, type):
        kind = "a class" if isinstance(found, type) else f"a value of type {type(found).__name__}"
        raise Refused(f"{name} must be a function, it is {kind}", "function")
    return found


def _check_signature(function: Any, request: CheckRequest, file: Path) -> None:
    """Raise Refused unless the function takes required inputs and all parameters by name."""
    try:
        signature = inspect.signature(function)
    except (TypeError, ValueError):  # such as of a function in C, which has none
        return
    needed = [*request["inputs"], *request["params"]]
    try:
        signature.bind(**dict.fromkeys(needed))
    except TypeError as error:
        code = getattr(inspect.unwrap(function), "__code__", None)
        ours = code is not None and code.co_filename == str(file)
        where = f"line {code.co_firstlineno}: " if ours and code is not None else ""
        optional = request["optional_inputs"]
        more = f", and may take {', '.join(optional)}" if optional else ""
        raise Refused(
            f"{where}{request['function']} must take the inputs and parameters of "
            f"{request['op']} by name: {', '.join(needed)}{more}; it takes "
            f"{_taken(signature.parameters)}: {error}",
            "function",
        ) from None


def _taken(parameters: Mapping[str, inspect.Parameter]) -> str:
    names: Sequence[str] = [
        f"{name} only by position" if one.kind is one.POSITIONAL_ONLY else str(one.replace())[:60]
        for name, one in parameters.items()
    ]
    return f"({', '.join(names[: 2 * MAX_NAMES])})"


@contextlib.contextmanager
def _limited(limit_s: float, file: Path, answers: _Answers) -> Iterator[None]:
    """End this process with a refusal, which names the line, if the block takes longer."""
    main_thread = threading.get_ident()

    def refuse() -> None:
        lines = [
            number
            for frame_, number in traceback.walk_stack(sys._current_frames()[main_thread])
            if frame_.f_code.co_filename == str(file)
        ]
        where = f"line {lines[0]}: " if lines else ""
        answers.refuse(Refused(f"{where}the import did not end within {limit_s:g} s"))
        shutil.rmtree(file.parent, ignore_errors=True)

    timer = end_after(limit_s, refuse)
    yield
    lift(timer)


def _drop_output() -> None:
    """Drop what this process prints from now on, which would be in the server's log."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    for fd in OUTPUT:
        os.dup2(nowhere, fd)
    os.close(nowhere)


if __name__ == "__main__":
    main()
