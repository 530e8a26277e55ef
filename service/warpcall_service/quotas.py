"""The limits of each user: a quota of the user, or else one of their role, or else the setting.

A quota has the name of the setting that it replaces, and its type and bounds. The database has the
quotas, and `auth/sync.py` gives them to the server's one `Quotas`, which is asked at each request.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Annotated, Any

from pydantic import ByteSize, TypeAdapter, ValidationError

from warpcall.errors import Busy, InvalidInput
from warpcall.users import Quota
from warpcall_service.identity import LOCAL, Kind, Role
from warpcall_service.settings import Settings
from warpcall_service.text import brief

PREFIXES = ("user_", "tensor_user_")  # how the names of settings begin that limit one user
# It opens shared memory of the machine to callers, which only those who start the server may decide.
NOT_A_QUOTA = "user_max_shared_bytes"
# They do not apply to LOCAL, whose one slow client would otherwise keep all others out.
NOT_OF_LOCAL = frozenset({"user_max_requests", "user_max_streams"})
DEVICE_S = "user_device_s_per_day"
MOST = 1 << 53  # the largest value; float64, which stores it, has all integers up to this
DAY_S = 86_400

# Limits by the name of their quota, for each user or role that has some.
Stored = Mapping[tuple[Kind, str], Mapping[str, float]]
# What is used of each quota that the database knows, by the quota's name and the user's.
Use = Mapping[str, Mapping[str, float]]


@dataclass(frozen=True, slots=True)
class Subject:
    """Whom a quota is for.

    Attributes:
        kind: "user" or "role".
        name: of the user, or the role.
    """

    kind: Kind
    name: str

    def __str__(self) -> str:
        return f"{self.kind} {self.name}"


def names(settings: type[Settings]) -> list[str]:
    """The names of all quotas, in the order of their settings."""
    return [n for n in settings.model_fields if n.startswith(PREFIXES) and n != NOT_A_QUOTA]


def is_size(settings: type[Settings], name: str) -> bool:
    """Whether a quota is a number of bytes."""
    return settings.model_fields[name].annotation is ByteSize


def description(settings: type[Settings], name: str) -> str:
    """What a quota limits."""
    return (settings.model_fields[name].description or "").replace("`", "")


def check_name(settings: type[Settings], name: str) -> None:
    """Raise InvalidInput if there is no quota of this name."""
    if name not in (known := names(settings)):
        raise InvalidInput(f"quota must be {', '.join(known)}, got {brief(name)}", field="quota")


def parse_limit(settings: type[Settings], name: str, given: object) -> float:
    """The limit that a text such as "2GiB", or a number, stands for.

    Raises:
        InvalidInput: there is no quota of this name, or the value is none that its setting may have.
    """
    check_name(settings, name)
    field = settings.model_fields[name]
    kind: TypeAdapter[float] = TypeAdapter(Annotated[field.annotation, *field.metadata])  # type: ignore[arg-type]  # a type made at run time
    try:
        if isinstance(given, str):
            value = kind.validate_strings(given.strip())
        else:
            value = kind.validate_python(given, strict=True)
    except ValidationError as error:
        why = error.errors()[0]["msg"].replace("Input should be", "must be", 1)
        raise InvalidInput(f"limit of {name}: {why}, got {brief(given)}", field="limit") from None
    if value > MOST:
        raise InvalidInput(
            f"limit of {name}: must be at most {MOST}, got {brief(given)}", field="limit"
        )
    return value if field.annotation is float else int(value)


class Quotas:
    """The limits that apply at present, and what is used of them on this server.

    Attributes:
        settings: the class of the server's settings.
        defaults: the limits that the settings give, by the name of the quota.
        counters: return what a user has used of a quota, where this server knows it by itself.
    """

    def __init__(self, settings: Settings) -> None:
        self.settings = type(settings)
        self.defaults: dict[str, float] = {
            name: _plain(getattr(settings, name)) for name in names(self.settings)
        }
        self._roles: Mapping[str, Role] = {}
        self._stored: Stored = {}
        self._by_user: dict[str, dict[str, float]] = {}  # for users with another limit somewhere
        self.counters: dict[str, Callable[[str], float]] = {}

    def limits(self, user: str) -> Mapping[str, float]:
        """All limits of a user by name: integers, unless the setting is a float."""
        return self._by_user.get(user, self.defaults)

    def limit(self, user: str, name: str) -> float:
        """One limit of a user."""
        return self._by_user.get(user, self.defaults)[name]

    def count(self, user: str, name: str) -> int:
        """The limit of a user, which is an integer."""
        return int(self.limit(user, name))

    def update(self, stored: Stored, roles: Mapping[str, Role]) -> None:
        """Apply these quotas from now on.

        Args:
            roles: of each user with a valid key, the one with the most rights.
        """
        self._stored, self._roles = stored, roles
        of_roles = {name for kind, name in stored if kind == "role"}
        of_users = {name for kind, name in stored if kind == "user"}
        with_role = {user for user, role in roles.items() if role in of_roles}
        self._by_user = {
            user: {name: self._find(user, name)[0] for name in self.defaults}
            for user in of_users | with_role
        }

    def check_device_time(self, user: str) -> None:
        """Raise Busy if a user has used up the device time of the day."""
        limit = self.limit(user, DEVICE_S)
        if limit and (used := self.counters[DEVICE_S](user)) >= limit:
            raise Busy(
                f"{user} has used {used:.3f} s of device time today (UTC), the quota {DEVICE_S} "
                f"allows {limit:g}; it begins again at 00:00 UTC",
                retry_after_s=DAY_S - time.time() % DAY_S,
            )

    def has_device_time(self, user: str) -> bool:
        """Whether a user may use devices now."""
        limit = self._by_user.get(user, self.defaults)[DEVICE_S]
        return not limit or self.counters[DEVICE_S](user) < limit

    def of_user(self, user: str, use: Use) -> list[Quota]:
        """All limits of a user with their use.

        Args:
            use: what the database knows of it.
        """
        found = []
        for name in self.defaults:
            if user == LOCAL.name and name in NOT_OF_LOCAL:
                continue
            limit, source = self._find(user, name)
            if name in self.counters:
                used: float | None = self.counters[name](user)
            else:
                used = use[name].get(user, 0) if name in use else None
            found.append(Quota(name=name, limit=limit, source=source, used=used))
        return found

    def as_number(self, name: str, value: float) -> float:
        """A limit as stored, as an integer unless the setting is a float."""
        return value if isinstance(self.defaults[name], float) else int(value)

    def _find(self, user: str, name: str) -> tuple[float, str]:
        """The limit of a user, and where it comes from."""
        for kind, subject in (("user", user), ("role", self._roles.get(user, ""))):
            limits = self._stored.get((kind, subject), {})  # type: ignore[arg-type]  # of KINDS
            if name in limits:
                return self.as_number(name, limits[name]), kind
        return self.defaults[name], "setting"


def _plain(value: Any) -> float:
    """The number of a setting, whose class may be ByteSize."""
    return value if isinstance(value, float) else int(value)
