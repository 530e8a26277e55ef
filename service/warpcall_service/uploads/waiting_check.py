"""A process that waits for the request of a check: python -m warpcall_service.uploads.waiting_check.

It imports torch, Triton and our modules first, which takes most of the time of a check. Then it
waits for one request, answers it as the program of that check would, and ends. It has nothing of a
user before the request.
"""

from __future__ import annotations

import json
import os
import socket
from collections.abc import Mapping

from warpcall_service.lanes.messages import read_frame
from warpcall_service.processes import child
from warpcall_service.runs.messages import BEGUN, WaitingRequest
from warpcall_service.worker import explain, problem_check, source_check, upload_check

CHECKS: Mapping[str, source_check.Check] = {
    "explain": explain.check,
    "problem_check": problem_check.check,
    "upload_check": upload_check.check,
}


def main() -> None:
    """Answer one request."""
    args = child.start(server_fd=int)
    given = {name: os.environ[name] for name in explain.VARIABLES if name in os.environ}
    explain.set_environment()
    explain.import_ahead()
    with socket.socket(fileno=args.server_fd) as sock:
        text = read_frame(sock)
        if text is not None:
            sock.sendall(BEGUN)
            waiting: WaitingRequest = json.loads(text)
            if waiting["module"] != "explain":
                os.environ.update(given)
            source_check.answer(sock, waiting["request"], CHECKS[waiting["module"]])
    os._exit(0)  # threads that the source may have started do not matter


if __name__ == "__main__":
    main()
