"""A process that tries things: python -m tests.service.runs.attempt, started as a job's is.

It gets Python code by name, runs each in a fork of its own, and answers with what each returned.
"""

from __future__ import annotations

import json
import os
import socket
import sys
import textwrap
from typing import Any

from warpcall_service.lanes.messages import frame, read_frame
from warpcall_service.processes import child


def main() -> None:
    args = child.start(server_fd=int)
    with socket.socket(fileno=args.server_fd) as sock:
        request = json.loads(read_frame(sock) or b"{}")
        answers = {
            name: outcome(code, request["values"]) for name, code in request["codes"].items()
        }
        sock.sendall(frame(answers))


def outcome(code: str, values: dict[str, Any]) -> list[Any]:
    """["done", what it returned] or ["refused", the error]."""
    reader, writer = os.pipe()
    pid = os.fork()
    if not pid:
        try:
            space: dict[str, Any] = dict(values)
            exec(f"def attempt():\n{textwrap.indent(code, '    ')}", space)  # noqa: S102
            found = ["done", space["attempt"]()]
        except BaseException as error:  # noqa: BLE001  # whatever it is, it is the outcome
            found = ["refused", f"{type(error).__name__}: {error}"]
        with os.fdopen(writer, "wb") as pipe:
            pipe.write(json.dumps(found).encode() + b"\n")
        os._exit(0)
    os.close(writer)
    with os.fdopen(reader, "rb") as pipe:
        text = pipe.readline()  # not to its end: what the code left behind has it, too
    os.waitpid(pid, 0)
    return list(json.loads(text)) if text else ["refused", "it ended"]


if __name__ == "__main__":
    main()
    sys.exit()
