"""The side of a recorder: it runs the author's code, and answers with launch plans."""

from __future__ import annotations

import socket
from collections.abc import Callable
from dataclasses import dataclass
from types import ModuleType
from typing import Any


@dataclass(frozen=True)
class Recorded:
    """What a recorder has loaded.

    Args:
        function: the author's function; it takes inputs and parameters by name.
        error: why there is none.
        module: of the function, which has the Triton kernels that a declaration names.
        language: "python" or "cuda".
        source: text of the source.
        declaration: of its launches, as parsed JSON; None if they are recorded.
    """

    function: Callable[..., Any] | None = None
    error: BaseException | None = None
    module: ModuleType | None = None
    language: str = "python"
    source: str = ""
    declaration: Any = None


def serve_recorder(sock: socket.socket, load: Callable[[dict[str, Any]], Recorded]) -> None:
    """Answer requests until the process that measures has ended.

    Args:
        sock: the connection to it.
        load: imports the uploaded source; called once, with what was sent for it.
    """
    raise NotImplementedError
