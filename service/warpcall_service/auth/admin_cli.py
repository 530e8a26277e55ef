"""The administrator's commands: users, keys, sessions, quotas, usage, migrate. They use the database directly.

Whoever may read and write the database is an administrator. A running server sees a change within
a second.
"""

from __future__ import annotations

import json
import re
import sys
import time
from typing import Annotated, Any

import typer

from warpcall.errors import InvalidInput
from warpcall_service.auth import quota_cli, sessions, users
from warpcall_service.auth.commands import (
    Json,
    changing,
    opened_store,
    print_line,
    print_rows,
    reading,
)
from warpcall_service.identity import ROLES, Role

UNITS_S = {"m": 60, "h": 3600, "d": 86_400, "y": 365 * 86_400}
LONGEST_S = 100 * UNITS_S["y"]

UserName = Annotated[str, typer.Argument(metavar="USER", help="A user's name.")]
OneUser = Annotated[
    str | None, typer.Option("--user", metavar="USER", help="Show only this user; by default all.")
]

user_app = typer.Typer(help="Add, list, disable and enable users.", no_args_is_help=True)
key_app = typer.Typer(help="Create, list and revoke API keys.", no_args_is_help=True)
session_app = typer.Typer(help="List and end sessions of browsers.", no_args_is_help=True)


def add_commands(app: typer.Typer) -> None:
    """Add the commands of this file to `app`."""
    app.add_typer(user_app, name="users")
    app.add_typer(key_app, name="keys")
    app.add_typer(session_app, name="sessions")
    app.add_typer(quota_cli.app, name="quotas")
    app.command("usage")(show_usage)
    app.command("migrate")(migrate)


@user_app.command("add")
def add_user(name: UserName) -> None:
    """Add a user. `keys create` then makes an API key for them."""
    with changing() as session:
        users.add_user(session, name)
    print_line(f"added the user {name}")


@user_app.command("list")
def list_users(as_json: Json = False) -> None:
    """List users, and the number of their valid keys."""
    with reading() as session:
        rows = [
            {
                "user": user.name,
                "state": "active" if user.disabled_at is None else "disabled",
                "keys": keys,
                "created": _time(user.created_at),
            }
            for user, keys in users.list_users(session)
        ]
    print_rows(rows, ("user", "state", "keys", "created"), as_json)


@user_app.command("disable")
def disable_user(name: UserName) -> None:
    """Disable all keys of a user, within a second, until `users enable`; their sessions end."""
    with changing() as session:
        users.disable_user(session, name)
    print_line(f"disabled the user {name}")


@user_app.command("enable")
def enable_user(name: UserName) -> None:
    """Enable a disabled user, and the keys that they had."""
    with changing() as session:
        users.disable_user(session, name, disabled=False)
    print_line(f"enabled the user {name}")


@key_app.command("create")
def create_key(
    user: UserName,
    role: Annotated[
        Role | None,
        typer.Option(
            help="Rights of the key: call runs ops; bench also runs jobs; upload also uploads "
            "implementations; admin also reads metrics and the jobs of others. By default it is "
            "call; on a terminal, the command asks for the role of the first key."
        ),
    ] = None,
    expires_in: Annotated[
        str | None,
        typer.Option(
            metavar="TIME",
            help="Time until the key expires, such as 90d, 12h, 30m or 1y; by default it does not.",
        ),
    ] = None,
    as_json: Json = False,
) -> None:
    """Create a key and print it. It cannot be shown again: the server stores only a hash."""
    if role is None:
        role = _asked_role() if _is_first_key() else "call"
    with changing() as session:
        lifetime_s = None if expires_in is None else _seconds(expires_in)
        key, text = users.create_key(session, user, role, lifetime_s)
        made = {"key": text, "id": key.id, "user": user, "role": role}
        made["expires"] = _time(key.expires_at, "never")
    if as_json:
        print_line(json.dumps(made))
    else:
        typer.echo(f"a key with the role {role}, expires {made['expires']}:", err=True)
        print_line(text)


def _is_first_key() -> bool:
    """Whether there is no key yet."""
    with reading() as session:
        return not users.list_keys(session)


def _asked_role() -> Role:
    """The role of the first key, which a person at a terminal is asked for; else "call".

    Without a key of an administrator nobody can use /admin, and most people want one first.
    """
    if not (sys.stdin.isatty() and sys.stderr.isatty()):
        return "call"
    while True:
        # Not by `typer.prompt`, which writes spaces to stdout, where only the key must stand.
        typer.echo(f"role of this first key ({', '.join(ROLES)}) [admin]: ", nl=False, err=True)
        line = sys.stdin.readline()
        if not line:
            raise typer.Abort
        given = line.strip() or "admin"
        if found := [role for role in ROLES if role == given]:
            return found[0]
        typer.echo(f"the role must be {', '.join(ROLES)}, got {given!r:.60}", err=True)


@key_app.command("list")
def list_keys(user: OneUser = None, as_json: Json = False) -> None:
    """List keys by their ids. The keys themselves are not stored."""
    now = time.time()
    with reading() as session:
        rows = [
            {
                "key": f"wc_{key.id}",
                "user": key.user_name,
                "role": key.role,
                "state": _state(key, owner, now),
                "created": _time(key.created_at),
                "expires": _time(key.expires_at, "never"),
            }
            for key, owner in users.list_keys(session, user)
        ]
    print_rows(rows, ("key", "user", "role", "state", "created", "expires"), as_json)


@key_app.command("revoke")
def revoke_key(
    key: Annotated[str, typer.Argument(metavar="KEY", help="Id of the key, such as wc_1a2b3c4d.")],
) -> None:
    """Revoke a key and end its sessions, within a second and for ever."""
    with changing() as session:
        revoked = users.revoke_key(session, key)
        message = f"revoked wc_{revoked.id} of {revoked.user_name}"
    print_line(message)


@session_app.command("list")
def list_sessions(user: OneUser = None, as_json: Json = False) -> None:
    """List the sessions of browsers, and the keys that they were opened with."""
    with reading() as session:
        rows = [
            {
                "session": row.id,
                "user": row.user_name,
                "key": f"wc_{row.key_id}",
                "created": _time(row.created_at),
                "used": _time(row.used_at),
                "expires": _time(row.expires_at),
            }
            for row in sessions.listed(session, user)
        ]
    print_rows(rows, ("session", "user", "key", "created", "used", "expires"), as_json)


@session_app.command("revoke")
def revoke_session(
    session_id: Annotated[
        str | None,
        typer.Argument(metavar="SESSION", help="Id of the session, from `sessions list`."),
    ] = None,
    user: Annotated[
        str | None, typer.Option("--user", metavar="USER", help="End all sessions of this user.")
    ] = None,
) -> None:
    """End a session, or all sessions of a user, within a second."""
    if (session_id is None) == (user is None):
        raise typer.BadParameter("give either a session or --user")
    with changing() as session:
        if user is not None:
            users.find_user(session, user)
            message = f"ended {sessions.end_all(session, user)} sessions of {user}"
        else:
            message = f"ended a session of {sessions.end(session, session_id or '')}"
    print_line(message)


def show_usage(
    user: OneUser = None,
    days: Annotated[
        int,
        typer.Option(
            min=1, max=3650, help="Number of days to show, up to and including today (UTC)."
        ),
    ] = 30,
    as_json: Json = False,
) -> None:
    """Show usage by day, user and op. The last five seconds may not be included yet."""
    first = time.strftime("%Y-%m-%d", time.gmtime(time.time() - (days - 1) * UNITS_S["d"]))
    with reading() as session:
        rows = [
            {
                "day": row.day,
                "user": row.user_name,
                "op": row.op,
                "requests": row.requests,
                "failures": row.failures,
                "bytes_in": row.bytes_in,
                "bytes_out": row.bytes_out,
                "kernel_ms": row.kernel_us / 1e3,
            }
            for row in users.usage(session, first, user)
        ]
    columns = ("day", "user", "op", "requests", "failures", "bytes_in", "bytes_out", "kernel_ms")
    print_rows(rows, columns, as_json)


def migrate() -> None:
    """Create the database, or update its schema. The server also does this when it starts."""
    with opened_store() as store:
        changed = store.migrate()
        done = "brought up to" if changed else "is already at"
        print_line(f"{store.label} {done} schema {store.revision()}")


def _seconds(text: str) -> int:
    """The seconds of a time such as 90d."""
    found = re.fullmatch(r"([1-9]\d{0,8})([mhdy])", text)
    seconds = int(found[1]) * UNITS_S[found[2]] if found else 0
    if not 0 < seconds <= LONGEST_S:
        raise InvalidInput(
            f"--expires-in must be a number with m, h, d or y, at most 100y, got {text!r:.60}"
        )
    return seconds


def _state(key: Any, owner: Any, now: float) -> str:
    if key.revoked_at is not None:
        return "revoked"
    if key.expires_at is not None and key.expires_at <= now:
        return "expired"
    return "active" if owner.disabled_at is None else "user disabled"


def _time(seconds: int | None, otherwise: str = "") -> str:
    if seconds is None:
        return otherwise
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(seconds))
