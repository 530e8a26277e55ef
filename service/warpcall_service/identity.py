"""Who a caller is: the name of a user, and the role of the API key that they sent."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, get_args

from warpcall.errors import Forbidden

Role = Literal["call", "bench", "admin"]
ROLES: tuple[Role, ...] = get_args(Role)  # each may do what those before it may


@dataclass(frozen=True, slots=True)
class Caller:
    """The user behind a request.

    Attributes:
        name: of the user; one user may have several keys.
        role: of the key that came with the request.
        key_id: the public part of that key, empty where none is asked for.
    """

    name: str
    role: Role
    key_id: str = ""

    def may(self, role: Role) -> bool:
        """Whether the caller's role reaches `role`."""
        return ROLES.index(self.role) >= ROLES.index(role)

    def check(self, role: Role) -> None:
        """Raise Forbidden unless the caller `may`."""
        if not self.may(role):
            raise Forbidden(f"this needs a key with the role {role}, got one with {self.role}")


LOCAL = Caller("local", "admin")  # everyone, where no keys exist
NOBODY = Caller("", "call")  # who has not said who he is, on the routes that do not ask
