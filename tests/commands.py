"""`warpcall`, `warpcall-server` and `python -m` for a shell, as forks of the template: see tests/forks.py.

A start of one takes half a second of CPU or more, most of it for imports. In a folder of commands there is a
small program under each name. It sends its arguments, environment and descriptors to the process of the
tests, which lets the template fork the command, and ends as that ends.
"""

from __future__ import annotations

import contextlib
import json
import os
import socket
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tests.forks import Forked
from tests.template import SERVER

HEAD_BYTES = 4
CLIENT = "import sys; sys.argv[0] = 'warpcall'; from warpcall._cli.main import main; main()"
MODULE = """
import runpy, sys
assert sys.argv[1] == "-m", "only modules are run"
del sys.argv[:2]
runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)
"""
COMMANDS = {
    "python": [sys.executable, "-c", MODULE],
    "warpcall": [sys.executable, "-c", CLIENT],
    "warpcall-server": [sys.executable, "-m", SERVER],
}
PROGRAM = """#!{python} -SE
import json, os, socket, sys
with socket.socket(socket.AF_UNIX) as server:
    server.connect({address!r})
    text = json.dumps([{name!r}, sys.argv[1:], os.getcwd(), dict(os.environ)]).encode()
    socket.send_fds(server, [len(text).to_bytes(4, "little")], [0, 1, 2])
    server.sendall(text)
    for fd in (0, 1):  # so that a pipe ends with the command
        os.close(fd)
    status = int.from_bytes(server.recv(4, socket.MSG_WAITALL), "little", signed=True)
if status < 0:
    os.kill(os.getpid(), -status)
os._exit(status)
"""


@contextmanager
def forked_commands(folder: Path) -> Iterator[None]:
    """Make the commands in a folder, which run until the end of the context."""
    address = str(folder / "socket")
    for name in COMMANDS:
        file = folder / name
        file.write_text(PROGRAM.format(python=sys.executable, address=address, name=name))
        file.chmod(0o755)
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(address)
        listener.listen()
        thread = threading.Thread(target=_serve, args=[listener], daemon=True)
        thread.start()
        try:
            yield
        finally:
            listener.shutdown(socket.SHUT_RDWR)
            thread.join()


def _serve(listener: socket.socket) -> None:
    with contextlib.suppress(OSError):  # it is shut down in the end
        while True:
            threading.Thread(target=_run, args=[listener.accept()[0]], daemon=True).start()


def _run(asker: socket.socket) -> None:
    """Run one command, and tell its exit status."""
    with asker:
        head, fds, _, _ = socket.recv_fds(asker, HEAD_BYTES, 3)
        try:
            text = b""
            while len(text) < int.from_bytes(head, "little"):
                text += asker.recv(1 << 16)
            process = _started(json.loads(text), fds)
        finally:
            for fd in fds:
                os.close(fd)
        asker.sendall(process.wait().to_bytes(4, "little", signed=True))


def _started(request: list[Any], fds: list[int]) -> Forked:
    name, words, folder, environment = request
    stdin, stdout, stderr = fds
    return Forked(
        [*COMMANDS[name], *words],
        env=environment,
        cwd=None if folder == str(Path.cwd()) else folder,  # a fork has that of this process
        stdin=stdin,
        stdout=stdout,
        stderr=stderr,
    )
