"""A file outside the database which records that a server has had API keys.

Without keys every caller is an administrator. A server whose database was lost, or replaced by an
empty one, would therefore accept everyone. While this file exists, the server refuses to start so.
"""

from __future__ import annotations

import logging
import os
import tempfile
from pathlib import Path

from warpcall_service.auth.users import Snapshot
from warpcall_service.http.listen import ServerError

FILE = "keys-exist"
TEXT = """\
A Warpcall server with this data folder has had API keys. While this file is here, the server does
not start on a database without any key, because it would accept everyone as an administrator.
Delete this file only if that is what you want.
"""

log = logging.getLogger("warpcall.store")


class KeysMarker:
    """The marker file of one data folder.

    Attributes:
        path: path of the file.
    """

    def __init__(self, folder: Path) -> None:
        try:
            self.path = folder.expanduser().absolute() / FILE
        except RuntimeError:  # the user has no home folder; the database is elsewhere
            self.path = Path("/nonexistent") / FILE
        self._trouble = ""

    def check(self, keys: Snapshot, database: str) -> None:
        """Refuse to go on if there is a marker and no key.

        Args:
            database: name of the database, for the message.

        Raises:
            ServerError: this server has had keys, and its database has none.
        """
        if keys.keys:
            return
        try:
            self.path.lstat()
            state = "says that this server has had API keys"
        except (FileNotFoundError, NotADirectoryError):
            return
        except OSError as error:
            state = (
                f"may say that this server has had API keys, and cannot be read: {error.strerror}"
            )
        raise ServerError(
            f"{self.path} {state}, but the database {database} has none: without keys everyone "
            "would be an administrator. Restore the database from its backup; or make a new key "
            "(warpcall-server users add NAME, then keys create NAME); or delete "
            f"{self.path} to serve without keys"
        )

    def keep(self, keys: Snapshot) -> None:
        """Create the file if there are keys and the file does not exist. Idempotent.

        A running server calls this twice a second. If its whole data folder is deleted, the file is
        created again, so that the next start is refused.
        """
        if not keys.keys:
            return
        trouble = ""
        try:
            self.path.lstat()
        except OSError:
            try:
                self.path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
                _write_whole(self.path)
            except OSError as error:
                trouble = f"{self.path} cannot be written: {error.strerror}"
        if trouble and trouble != self._trouble:
            log.error(
                "%s; without it, a server that has lost its keys accepts everyone after a restart",
                trouble,
            )
        self._trouble = trouble


def _write_whole(path: Path) -> None:
    """Write the file under another name first, so that no reader finds it empty or in part."""
    descriptor, name = tempfile.mkstemp(dir=path.parent, prefix=f".{FILE}-")
    try:
        with os.fdopen(descriptor, "w") as file:
            file.write(TEXT)
        Path(name).replace(path)
    except OSError:
        Path(name).unlink(missing_ok=True)
        raise
