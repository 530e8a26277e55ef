"""Uploads that are to be stored: their names, sizes and versions, and the quota of a user."""

from __future__ import annotations

import json
import re
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, field

from warpcall.errors import InvalidInput, TooLarge
from warpcall_bench.runs.messages import Verified, problem_version, version_of
from warpcall_bench.uploads.trees import Tree
from warpcall_service.quotas import Quotas

FUNCTION = r"[A-Za-z_][A-Za-z0-9_]{0,63}"
VERSIONS, NBYTES = "user_max_uploads", "user_max_uploaded_bytes"  # quotas
NAME = r"[A-Za-z0-9][A-Za-z0-9_.-]{0,47}"


@dataclass(frozen=True, slots=True)
class Quota:
    """Limits on what one user may have stored, implementations and problems together."""

    versions: int
    nbytes: int

    @classmethod
    def of(cls, quotas: Quotas, user: str) -> Quota:
        """The quota of a user at present."""
        return cls(quotas.count(user, VERSIONS), quotas.count(user, NBYTES))


@dataclass(frozen=True, slots=True, kw_only=True)
class NewVersion(ABC):
    """An upload. If `private` is None, it is as private as the version before it."""

    name: str
    source: str
    private: bool | None

    @property
    @abstractmethod
    def sha256(self) -> str:
        """The version."""

    @property
    @abstractmethod
    def identity(self) -> Mapping[str, str | None]:
        """Columns that follow from the upload, besides those of all uploads."""

    @property
    def nbytes(self) -> int:
        """Size of the source in UTF-8."""
        return len(self.source.encode())


@dataclass(frozen=True, slots=True, kw_only=True)
class NewImplementation(NewVersion):
    """An implementation that a user uploads; `verified` is None unless it is a verified one."""

    op: str
    function: str
    verified: Verified | None = None
    tree: Tree = field(default_factory=Tree)

    @property
    def sha256(self) -> str:
        tree = self.tree
        return version_of(
            *(self.op, self.function, self.source, self.verified),
            entry=tree.entry,
            files=tree.files,
        )

    @property
    def identity(self) -> Mapping[str, str | None]:
        verified = None if self.verified is None else json.dumps(self.verified)
        entry = self.tree.entry or None
        return {"op": self.op, "function": self.function, "verified": verified, "entry": entry}


@dataclass(frozen=True, slots=True, kw_only=True)
class NewProblem(NewVersion):
    """A problem that a user uploads."""

    @property
    def sha256(self) -> str:
        return problem_version(self.source)

    @property
    def identity(self) -> Mapping[str, str | None]:
        return {}


def check_source(source: str, most_bytes: int) -> None:
    """Raise TooLarge if a source has more than `most_bytes` bytes of UTF-8."""
    nbytes = len(source.encode())
    if nbytes > most_bytes:
        raise TooLarge(
            f"source must have at most {most_bytes} bytes of UTF-8, got {nbytes}", field="source"
        )


def check_name(name: str, whose: str) -> None:
    """Raise InvalidInput if a name cannot be that of an upload.

    Args:
        whose: what it is the name of by default, such as "the function".
    """
    if not re.fullmatch(NAME, name):
        raise InvalidInput(
            f"name must begin with a letter or digit and have at most 48 letters, digits, _, . and "
            f"-; got {name}, the name of {whose}; give another one",
            field="name",
        )
