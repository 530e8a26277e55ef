"""The id of a server among the servers that share its database.

The id is random and is stored in a file of the data folder, so that a restarted server finds the
jobs and the processes of its predecessor at once. This is safe only if the predecessor has ended
and no other server can have the same id. The lock of the file ensures the first. For the second,
the file also records its own device and inode and the boot id of the machine. A copy of the folder,
a volume in another container, or the same folder after a reboot does not match, and the server gets
a new id.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import secrets
from dataclasses import dataclass
from pathlib import Path
from typing import Self
from urllib.parse import urlsplit

from warpcall_service.settings import Settings

FILE = "jobs.lock"
SERVERS = "servers"  # folder of the folders of several servers
MAX_BYTES = 4096
BOOT_ID = Path("/proc/sys/kernel/random/boot_id")  # the same in all containers of a machine


@dataclass(frozen=True)
class ServerPlace:
    """The place of one server among those of its supervisor.

    Attributes:
        name: of the server among those of its supervisor.
        public_port: on which it listens together with the others, once it is ready; None if they
            share no port.
        ready_fd: a descriptor that gets the server's own URL when it serves.
    """

    name: str
    public_port: int | None
    ready_fd: int


def own_url(advertised: str, port: int) -> str:
    """The address of one server: that which all were given, with the server's own port."""
    parts = urlsplit(advertised)
    host = f"[{parts.hostname}]" if ":" in (parts.hostname or "") else parts.hostname
    return parts._replace(netloc=f"{host}:{port}").geturl()


class IdentityUnavailable(Exception):
    """This server must not run jobs. The message tells the operator why."""


class IdentityTaken(IdentityUnavailable):
    """Another server runs with this data folder."""


class ServerIdentity:
    """The id of this server. Only one server at a time can acquire the id of a data folder.

    Attributes:
        id: empty unless the id is acquired.
    """

    def __init__(self, folder: Path) -> None:
        self.id = ""
        self._path = folder / FILE
        self._fd = -1

    @classmethod
    def of(cls, settings: Settings, name: str = "") -> Self:
        """The identity of a server with these settings.

        Args:
            name: of the server among several that share the data folder; each has a folder in it.
        """
        try:
            folder = settings.data_dir.expanduser().absolute()
            return cls(folder / SERVERS / name if name else folder)
        except RuntimeError:  # the user has no home folder; the database must then be elsewhere
            return cls(Path("/nonexistent"))

    def acquire(self) -> str:
        """Lock the file and return its id. The operation is idempotent.

        Raises:
            IdentityUnavailable: another server has the lock, or the file cannot be written or
                locked.
        """
        if not self.id:
            self._lock()
            self.id = self._stored_id() or self._new_id()
        return self.id

    def release(self) -> None:
        """Unlock the file for another server. The operation is idempotent."""
        if self.id:
            os.close(self._fd)
        self.id = ""

    def _lock(self) -> None:
        try:
            self._path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            fd = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        except OSError as error:
            raise IdentityUnavailable(
                f"no jobs run: {self._path} cannot be written: {error.strerror}"
            ) from None
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(fd)
            raise IdentityTaken(f"no jobs run here: another server has {self._path}") from None
        except OSError as error:
            os.close(fd)
            raise IdentityUnavailable(
                f"no jobs run: {self._path} cannot be locked: {error.strerror}"
            ) from None
        self._fd = fd

    def _stored_id(self) -> str:
        """The id in the file; empty if the file was copied or written before the last boot."""
        try:
            stored = json.loads(os.pread(self._fd, MAX_BYTES, 0))
            return str(stored["id"]) if stored["file"] == self._this_file() else ""
        except (OSError, ValueError, KeyError, TypeError):
            return ""  # the file is new, or is the empty one of an older server

    def _new_id(self) -> str:
        made = secrets.token_hex(8)
        with contextlib.suppress(OSError):  # if the disk is full, the next start gets a new id, too
            text = json.dumps({"id": made, "file": self._this_file()}).encode()
            os.pwrite(self._fd, text, 0)
            os.ftruncate(self._fd, len(text))
        return made

    def _this_file(self) -> list[str | int]:
        found = os.fstat(self._fd)
        return [BOOT_ID.read_text().strip(), found.st_dev, found.st_ino]
