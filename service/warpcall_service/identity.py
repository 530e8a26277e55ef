"""Who a caller is: the name of a user, and the role of the API key that they sent."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, get_args

from warpcall.errors import Forbidden

Role = Literal["call", "bench", "upload", "scratch", "admin"]
ROLES: tuple[Role, ...] = get_args(Role)  # each includes the rights of those before it
Kind = Literal["user", "role"]  # of those whom a quota can be for
KINDS: tuple[Kind, ...] = get_args(Kind)


@dataclass(frozen=True, slots=True)
class Caller:
    """The user behind a request.

    Attributes:
        name: name of the user, who may have several keys.
        role: role of the key that came with the request, or that the session was opened with.
        key_id: public part of that key; empty if the server has no keys.
        session_id: id of the session; empty if the request came with a key.
        jobs: ids of the only jobs that the caller may read; None for users, who may read all that
            are not private to others.
    """

    name: str
    role: Role
    key_id: str = ""
    session_id: str = ""
    jobs: frozenset[str] | None = None

    def __hash__(self) -> int:
        # Each request needs it some times. Of equal callers these three are equal.
        return hash((self.name, self.key_id, self.session_id))

    def may(self, role: Role) -> bool:
        """Whether the caller's role includes the rights of `role`."""
        return ROLES.index(self.role) >= ROLES.index(role)

    def owns(self, user: str) -> bool:
        """Whether the caller may change what belongs to a user: that user may, and administrators."""
        return self.name == user or self.may("admin")

    def check(self, role: Role) -> None:
        """Raise Forbidden unless the caller `may`."""
        if not self.may(role):
            raise Forbidden(f"this needs a key with the role {role}, got one with {self.role}")


LOCAL = Caller("local", "admin")  # every caller, while there are no keys
GUEST = Caller(
    "share links", "call", jobs=frozenset()
)  # everyone without a key: with a share link, or on a public page
NOBODY = Caller("", "call")  # an unknown caller, on routes that need no key


def guest(share_id: str, jobs: frozenset[str]) -> Caller:
    """Who reads the jobs of a share link. No user has such a name, and a guest owns nothing."""
    return Caller(f"share link {share_id}", "call", jobs=jobs)
