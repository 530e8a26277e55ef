"""A file which says that a server has had API keys, kept apart from the database that has them.

Without keys everyone is an administrator. A server whose database was lost, or was exchanged for an
empty one, would start like that and let everyone in. This file makes it refuse.
"""

from __future__ import annotations

import logging
from pathlib import Path

from warpcall_service.auth.users import Snapshot
from warpcall_service.http.listen import ServerError

FILE = "keys-exist"
TEXT = """\
A Warpcall server with this data folder has had API keys. While this file is here, the server does
not start on a database without any key, because it would let everyone in as an administrator.
Delete this file only if that is what you want.
"""

log = logging.getLogger("warpcall.store")


class KeysMarker:
    """The marker of one data folder.

    Attributes:
        path: of the file.
    """

    def __init__(self, folder: Path) -> None:
        try:
            self.path = folder.expanduser().absolute() / FILE
        except RuntimeError:  # a user without a home, whose database is elsewhere
            self.path = Path("/nonexistent") / FILE
        self._trouble = ""

    def check(self, keys: Snapshot, database: str) -> None:
        """Compare the marker with the keys that were found.

        Args:
            database: its name, for the message.

        Raises:
            ServerError: this server has had keys, and its database has none.
        """
        if keys.keys:
            return
        try:
            self.path.lstat()
            said = "says that this server has had API keys"
        except (FileNotFoundError, NotADirectoryError):
            return
        except OSError as error:
            said = (
                f"may say that this server has had API keys, and cannot be read: {error.strerror}"
            )
        raise ServerError(
            f"{self.path} {said}, but the database {database} has none: without keys everyone "
            "would be an administrator. Restore the database from its backup; or make a new key "
            "(warpcall-server users add NAME, then keys create NAME); or delete "
            f"{self.path} to serve without keys"
        )

    def keep(self, keys: Snapshot) -> None:
        """Make the file if there are keys and it is not there; the operation is idempotent.

        A running server calls this again and again. If its whole data folder is deleted, the file
        is made anew, so that the next start refuses.
        """
        if not keys.keys:
            return
        trouble = ""
        try:
            self.path.lstat()
        except OSError:
            try:
                self.path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
                self.path.write_text(TEXT)
            except OSError as error:
                trouble = f"{self.path} cannot be written: {error.strerror}"
        if trouble and trouble != self._trouble:
            log.error(
                "%s; without it, everyone is let in after a loss of the keys and a restart", trouble
            )
        self._trouble = trouble
