"""Imports one of the operator's modules: python -m warpcall_bench.programs.module_check.

The worker of a lane lives long and must not hang, so it never imports them. This process is started
by `runs.operator_modules`. It gets a `ModuleRequest` and answers with a `ModuleAnswer`.
"""

from __future__ import annotations

import json
import os
import socket
import traceback
from typing import Any

from warpcall_bench.programs.source_check import end_after
from warpcall_bench.runs.messages import ModuleAnswer, ModuleRequest
from warpcall_bench.runs.sources import SourceUnknown, package_files
from warpcall_service.lanes.messages import frame, read_frame
from warpcall_service.processes import child
from warpcall_service.processes.imports import quick_imports
from warpcall_service.text import error_text

MAX_DOC_CHARS = 200


def main() -> None:
    """Answer one request."""
    args = child.start(server_fd=int)
    with socket.socket(fileno=args.server_fd) as sock:
        text = read_frame(sock)
        if text is None:
            return
        request: ModuleRequest = json.loads(text)
        with quick_imports():  # of torch, whose time does not count
            from warpcall_bench.programs import operator_code

        def refuse() -> None:
            reason = f"its import did not end within {request['limit_s']:g} s"
            sock.sendall(frame({"implementations": [], "error": reason}))

        end_after(request["limit_s"], refuse)
        try:
            _, found = operator_code.load(request["module"])
            answer = _described(found)
        except BaseException as error:  # noqa: BLE001  # the operator's code may raise anything
            answer = {"implementations": [], "error": _where(error, request["module"])}
        sock.sendall(frame(answer))
    os._exit(0)  # threads that the module may have started do not matter


def _described(found: Any) -> ModuleAnswer:
    implementations = []
    for one in found:
        if "/" in one.name:
            reason = f"the name {one.name} must have no /, which names of uploads have"
            return {"implementations": [], "error": reason}
        doc = one.doc.strip().partition("\n")[0][:MAX_DOC_CHARS]
        implementations.append({"name": one.name, "doc": doc, "ops": list(one.ops)})
    return {"implementations": implementations, "error": ""}  # type: ignore[typeddict-item]


def _where(error: BaseException, module: str) -> str:
    """The message of an exception, with the last line of the module's package that led to it."""
    try:
        folder, files = package_files(module)
    except SourceUnknown:
        return str(error) if isinstance(error, SourceUnknown) else _text(error)
    paths = set(map(str, files))
    places = [
        (frame_.f_code.co_filename, number)
        for frame_, number in traceback.walk_tb(error.__traceback__)
        if frame_.f_code.co_filename in paths
    ]
    if isinstance(error, SyntaxError) and error.filename in paths:
        places.append((error.filename, error.lineno or 0))
    if not places:
        return _text(error)
    file, number = places[-1]
    return f"{os.path.relpath(file, folder)}, line {number}: {_text(error)}"


def _text(error: BaseException) -> str:
    return error_text(error) if isinstance(error, Exception) else f"it raised {error!r:.200}"


if __name__ == "__main__":
    main()
