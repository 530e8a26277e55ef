"""Limits of users and their use, as pages show them."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from warpcall.users import Quota
from warpcall_bench.drawing.numbers import nbytes
from warpcall_service import quotas
from warpcall_service.quotas import DEVICE_S, Quotas, Stored, Use
from warpcall_service.server_settings import PREFIX

FROM = {"user": "you", "role": "your role", "setting": "the settings"}


@dataclass(frozen=True, slots=True)
class QuotaRow:
    """A quota, and the user who has used the largest part of theirs.

    Attributes:
        setting: the limit of users and roles who were given no other one.
        variable: the environment variable of that setting.
        nearest: name of that user; empty if nobody uses anything.
        used, limit: of that user; `limit` is empty if they have none.
    """

    variable: str
    doc: str
    setting: str
    nearest: str = ""
    used: str = ""
    limit: str = ""


@dataclass(frozen=True, slots=True)
class LimitRow:
    """A limit that a user or a role was given; `used` is empty for roles."""

    kind: str
    subject: str
    name: str
    limit: str
    used: str


@dataclass(frozen=True, slots=True)
class OwnRow:
    """A limit of the user who looks at it, its use, and what it comes from."""

    name: str
    doc: str
    used: str
    limit: str
    source: str


def quota_rows(known: Quotas, users: Iterable[str], use: Use) -> list[QuotaRow]:
    """Every quota, with the user who is nearest to their limit."""
    found: dict[str, tuple[float, str, Quota]] = {}
    for user in users:
        for quota in known.of_user(user, use):
            part = quota.used / quota.limit if quota.used and quota.limit else 0.0
            if quota.used and (quota.name not in found or part > found[quota.name][0]):
                found[quota.name] = part, user, quota
    rows = []
    for name, default in known.defaults.items():
        doc, setting = quotas.description(known.settings, name), limit_shown(known, name, default)
        variable = f"{PREFIX}{name.upper()}"
        if name in found:
            _, user, quota = found[name]
            used = shown(known, name, quota.used)
            limit = "" if name == DEVICE_S and not quota.limit else shown(known, name, quota.limit)
            rows.append(QuotaRow(variable, doc, setting, user, used, limit))
        else:
            rows.append(QuotaRow(variable, doc, setting))
    return rows


def limit_rows(known: Quotas, stored: Stored, use: Use) -> list[LimitRow]:
    """Every limit that a user or a role was given, those of roles first."""
    rows = []
    for kind, subject in sorted(stored):
        used = {}
        if kind == "user":
            used = {one.name: one.used for one in known.of_user(subject, use)}
        for name in known.defaults:
            if name in stored[kind, subject]:
                limit = limit_shown(known, name, stored[kind, subject][name])
                rows.append(
                    LimitRow(kind, subject, name, limit, shown(known, name, used.get(name)))
                )
    return rows


def own_rows(known: Quotas, user: str, use: Use) -> list[OwnRow]:
    """Every limit of a user."""
    return [
        OwnRow(
            one.name,
            quotas.description(known.settings, one.name),
            shown(known, one.name, one.used),
            limit_shown(known, one.name, one.limit),
            FROM[one.source],
        )
        for one in known.of_user(user, use)
    ]


def limit_shown(known: Quotas, name: str, limit: float) -> str:
    """A limit as a text."""
    return "none" if name == DEVICE_S and not limit else shown(known, name, limit)


def shown(known: Quotas, name: str, value: float | None) -> str:
    """A limit, or what is used of one, as a text; empty if it is not known."""
    if value is None:
        return ""
    if quotas.is_size(known.settings, name):
        return nbytes(value)
    if name == DEVICE_S:
        return f"{value:,.4g} s"
    return f"{value:,g}"
