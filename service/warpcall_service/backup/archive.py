"""The file of a backup: a tar archive whose last member has the size and hash of each other one.

A file that was cut off lacks the last member, so it is never taken for a whole one. A reader checks
all hashes before it writes anything.
"""

from __future__ import annotations

import contextlib
import hashlib
import io
import json
import os
import re
import tarfile
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import IO, Any, Literal

from warpcall_service.text import brief

FORMAT = "warpcall-backup-1"
DATABASE = "database"  # name of the member with the database
CONTENTS = "contents.json"  # name of the last member
MAX_CONTENTS_BYTES = 64 << 20  # a file needs some 150 bytes there
MEMBER = re.compile(r"database|[a-z]+/[0-9a-f]{32}")
CHUNK = 1 << 20

Kind = Literal["sqlite", "postgresql"]


class BackupError(Exception):
    """A backup cannot be made, read or restored. The message is for the operator."""


@dataclass(frozen=True, kw_only=True)
class About:
    """What a backup says of itself.

    Attributes:
        kind: of the database.
        schema: of the database.
        version: of Warpcall.
        created_at: time in the form of RFC 3339, UTC.
    """

    kind: Kind
    schema: str
    version: str
    created_at: str


class BackupWriter:
    """Writes a backup. The file has its name when it is complete, and does not exist before."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._members: dict[str, Any] = {}
        self._tar: tarfile.TarFile

    @property
    def files(self) -> int:
        """Number of files besides the database."""
        return len(self._members) - 1

    @contextlib.contextmanager
    def open(self, about: About) -> Iterator[None]:
        """Begin the file, and complete it in the end.

        Raises:
            BackupError: it exists, or cannot be written.
        """
        part = self._path.with_name(f"{self._path.name}.part")
        if self._path.exists():
            raise BackupError(f"{self._path} exists already; name a file that does not")
        try:
            fd = os.open(part, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        except FileExistsError:
            raise BackupError(
                f"{part} exists: another backup is being made, or was interrupted; delete it then"
            ) from None
        except OSError as error:
            raise BackupError(f"{part} cannot be written: {error.strerror}") from None
        try:
            with open(fd, "wb") as file:  # noqa: PTH123  # of a descriptor
                with tarfile.open(fileobj=file, mode="w", format=tarfile.PAX_FORMAT) as self._tar:
                    yield
                    contents = {"format": FORMAT, **asdict(about), "members": self._members}
                    self._add(
                        CONTENTS, io.BytesIO(text := json.dumps(contents).encode()), len(text)
                    )
                file.flush()
                os.fsync(fd)
            os.link(part, self._path)  # fails if the file was made meanwhile
        except FileExistsError:
            raise BackupError(f"{self._path} was made by another program meanwhile") from None
        except OSError as error:
            raise BackupError(f"{part} cannot be written: {error.strerror or error}") from None
        finally:
            part.unlink(missing_ok=True)

    def add(self, name: str, path: Path) -> bool:
        """Add a file; returns False if it does not exist."""
        try:
            with path.open("rb") as file:
                nbytes = os.fstat(file.fileno()).st_size
                self._members[name] = {"nbytes": nbytes, "sha256": self._add(name, file, nbytes)}
        except FileNotFoundError:
            return False
        return True

    def _add(self, name: str, file: IO[bytes], nbytes: int) -> str:
        """Add the first `nbytes` of a file; returns their SHA-256."""
        member = tarfile.TarInfo(name)
        member.size, member.mode = nbytes, 0o600
        hashing = _Hashing(file)
        self._tar.addfile(member, hashing)
        return hashing.sha256.hexdigest()


class _Hashing:
    """Reads a file and hashes what was read."""

    def __init__(self, file: IO[bytes]) -> None:
        self._file = file
        self.sha256 = hashlib.sha256()

    def read(self, nbytes: int = -1) -> bytes:
        """As of a file."""
        content = self._file.read(nbytes)
        self.sha256.update(content)
        return content


class BackupReader:
    """Reads a backup that is complete.

    Attributes:
        about: what it says of itself.
        names: of its members, except the last one.

    Raises:
        BackupError: the file cannot be read, is no backup, is cut off or was changed.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        found: dict[str, Any] = {}
        contents: dict[str, Any] = {}
        with self._reading() as tar:
            for member in tar:
                if contents or not member.isfile():
                    raise BackupError(f"{path} is no backup of Warpcall")
                content = tar.extractfile(member)
                assert content is not None  # as it is a file
                if member.name == CONTENTS:
                    contents = self._parsed(content.read(MAX_CONTENTS_BYTES))
                    continue
                if not MEMBER.fullmatch(member.name):
                    raise BackupError(
                        f"{path} is no backup of Warpcall: {brief(member.name)} is in it"
                    )
                digest = hashlib.sha256()
                while chunk := content.read(CHUNK):
                    digest.update(chunk)
                found[member.name] = {"nbytes": member.size, "sha256": digest.hexdigest()}
        if not contents:
            raise BackupError(f"{path} is cut off, or no backup of Warpcall: its end is missing")
        if contents["members"] != found or DATABASE not in found:
            raise BackupError(f"{path} is damaged: its files differ from its list of them")
        self.about: About = contents["about"]
        self.names = list(found)

    def extract(self, name: str, target: Path) -> None:
        """Write a member to a new file, for its owner only.

        Raises:
            BackupError: the file cannot be written.
        """
        with self._reading() as tar:
            self._write(tar, tar.getmember(name), target)

    def extract_folder(self, folder: str, target: Path) -> int:
        """Write the members in a folder to another one, which exists; how many they are."""
        number = 0
        with self._reading() as tar:
            for member in tar:
                if member.name.startswith(f"{folder}/"):
                    self._write(tar, member, target / member.name.removeprefix(f"{folder}/"))
                    number += 1
        return number

    def _write(self, tar: tarfile.TarFile, member: tarfile.TarInfo, target: Path) -> None:
        content = tar.extractfile(member)
        assert content is not None  # as `__init__` has checked
        try:
            fd = os.open(target, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
            with open(fd, "wb") as file:  # noqa: PTH123  # of a descriptor
                while chunk := content.read(CHUNK):
                    file.write(chunk)
                file.flush()
                os.fsync(fd)
        except OSError as error:
            raise BackupError(f"{target} cannot be written: {error.strerror or error}") from None

    @contextlib.contextmanager
    def _reading(self) -> Iterator[tarfile.TarFile]:
        try:
            with tarfile.open(self._path, mode="r:") as tar:
                yield tar
        except tarfile.TarError:
            raise BackupError(f"{self._path} is cut off, or no backup of Warpcall") from None
        except OSError as error:
            raise BackupError(f"{self._path} cannot be read: {error.strerror or error}") from None

    def _parsed(self, text: bytes) -> dict[str, Any]:
        """The last member, whose form is checked."""
        try:
            given = json.loads(text)
            if given.pop("format") != FORMAT:
                raise ValueError
            members = given.pop("members")
            about = About(**given)
        except (ValueError, TypeError, KeyError, AttributeError):
            raise BackupError(
                f"{self._path} is no backup of this version of Warpcall, which reads {FORMAT}"
            ) from None
        if about.kind not in ("sqlite", "postgresql"):
            raise BackupError(f"{self._path} has a database of the kind {brief(str(about.kind))}")
        return {"about": about, "members": members}
