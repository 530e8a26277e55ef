"""The id by which a server is known to other servers that share its database.

The id is random. It is kept in a file of the data folder, so that a server that is started again can
find the jobs and the processes of its earlier life at once. That is only safe if the earlier life is
over and no other server can have the same id. The lock of the file shows the first. For the second,
the file also says which file it is (device and inode) and during which boot of which machine it was
written: a copy of the folder, a volume in another container, or the same folder after a reboot does
not match, and gets a new id.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import secrets
from pathlib import Path

FILE = "jobs.lock"
MAX_BYTES = 4096
BOOT_ID = Path("/proc/sys/kernel/random/boot_id")  # the same in all containers of a machine


class IdentityUnavailable(Exception):
    """This server must not run jobs; the message says why, for its operator."""


class ServerIdentity:
    """The id of this server, from `acquire` to `release`.

    Attributes:
        id: empty until it is taken.
    """

    def __init__(self, folder: Path) -> None:
        self.id = ""
        self._path = folder / FILE
        self._fd = -1

    def acquire(self) -> str:
        """Lock the file and give its id; calling it again gives the same id.

        Raises:
            IdentityUnavailable: another server has the lock, or there can be no such file.
        """
        if not self.id:
            self._lock()
            self.id = self._stored_id() or self._new_id()
        return self.id

    def release(self) -> None:
        """Let another server have the folder. The operation is idempotent."""
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
            raise IdentityUnavailable(
                f"no jobs run here: another server has {self._path}"
            ) from None
        except OSError as error:
            os.close(fd)
            raise IdentityUnavailable(
                f"no jobs run: {self._path} cannot be locked: {error.strerror}"
            ) from None
        self._fd = fd

    def _stored_id(self) -> str:
        """The id in the file, or nothing if it may be another server's."""
        try:
            kept = json.loads(os.pread(self._fd, MAX_BYTES, 0))
            return str(kept["id"]) if kept["file"] == self._this_file() else ""
        except (OSError, ValueError, KeyError, TypeError):
            return ""  # there was no file, or one of an older server, which is empty

    def _new_id(self) -> str:
        made = secrets.token_hex(8)
        with contextlib.suppress(OSError):  # on a full disk the id is new at the next start, too
            text = json.dumps({"id": made, "file": self._this_file()}).encode()
            os.pwrite(self._fd, text, 0)
            os.ftruncate(self._fd, len(text))
        return made

    def _this_file(self) -> list[str | int]:
        found = os.fstat(self._fd)
        return [BOOT_ID.read_text().strip(), found.st_dev, found.st_ino]
