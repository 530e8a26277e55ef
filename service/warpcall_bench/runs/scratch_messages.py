"""Messages between the server and the process of a scratch run, `programs/scratch_main.py`.

The process shares the sandbox with the command, so the server trusts nothing that it sends. A message has its
length (`lanes.messages.LENGTH`) and a byte that says what follows:

- `r`: nothing; the process is ready. It gets a `ScratchOrder` and the files, each as a frame, once the run has
  the device;
- `o`: output of the command, after 8 bytes with the number of bytes that came before it;
- `e`: JSON with the exit `status` of the command and whether it `timed_out`: no process of it is left;
- `f`: a file, after a line of JSON with its `path` and an `error`;
- `d`: nothing; it was the last message.
"""

from __future__ import annotations

import struct
from typing import TypedDict

READY, OUTPUT, ENDED, FILE, DONE = b"r", b"o", b"e", b"f", b"d"
AT = struct.Struct("<Q")
MAX_OUTPUT_BYTES = 64 << 10  # in a message
MAX_HEAD_BYTES = 4 << 10  # of what a message has besides its content
TERM_S = 2.0  # between SIGTERM and SIGKILL for a command that has reached its limit
MOST_FETCHED = 100  # files that a run sends back
MOST_FETCHED_BYTES = 64 << 20  # of all of them together
SIGNALLED = 128  # shells add it to the number of a signal
_PART = r"[A-Za-z0-9_][A-Za-z0-9_.+=-]{0,99}"
PATH = rf"{_PART}(/{_PART}){{0,7}}"  # of a file that is sent back


class ScratchOrder(TypedDict):
    """The command of a scratch run, as its process gets it.

    Attributes:
        command, files, fetch, limit_s, most_bytes: as in `messages.ScratchTask`.
        environment: variables beside those of the sandbox.
        behind: the SHA-256 of each file that follows as a frame, in this order.
    """

    command: list[str]
    files: dict[str, str]
    fetch: list[str]
    limit_s: float
    most_bytes: int
    environment: dict[str, str]
    behind: list[str]
