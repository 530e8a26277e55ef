"""The commands `login`, `logout`, `whoami` and `quotas`."""

from __future__ import annotations

import os
import sys

import typer

from warpcall import Client, WarpcallError
from warpcall._cli.files import UsageError
from warpcall._cli.output import (
    Json,
    Url,
    console,
    human_bytes,
    plural,
    print_json,
    table_of,
    write_lines,
)
from warpcall._config import configure
from warpcall._profile import Profile, delete_profile, profile_path, read_profile, write_profile
from warpcall.errors import Unauthorized
from warpcall.users import Quota, UserLimits

MAX_KEY_CHARACTERS = 10_000
NO_KEYS = "local"  # the name of every caller of a server that has no keys
DEVICE_TIME = "user_device_s_per_day"  # a quota in seconds, of which 0 means that there is no limit
KEY_VARIABLE = "WARPCALL_API_KEY"

app = typer.Typer()


@app.command()
def login(url: Url = None) -> None:
    """Save a server's address and your API key.

    Later commands use them. Nothing is saved if the server does not accept the key.

    The command asks for the key, or reads it from standard input. It is not an option: other users
    of the machine can see the arguments of a process.
    """
    at_terminal = sys.stdin.isatty()
    key = "" if at_terminal else _first_line().strip()
    if not key:
        if _save_without_key(url):
            return
        if not at_terminal:
            raise UsageError("login needs a key, got an empty line")
        key = str(typer.prompt("API key", hide_input=True)).strip()
    with Client(url, api_key=key) as gpu:
        try:
            user = gpu.me().name
        except Unauthorized as error:
            raise WarpcallError(f"{error}; nothing was saved") from error
        path = write_profile(Profile(gpu.url, key))
    write_lines(f"{path} now has the key for {gpu.url}")
    if user == NO_KEYS:
        write_lines("the server has no API keys: it needs none, and did not check this one")


def _save_without_key(url: str | None) -> bool:
    """Save the address of a server that has no keys. Return whether it is one."""
    with Client(url) as gpu:
        try:
            if gpu.me().name != NO_KEYS:
                return False
        except Unauthorized:
            return False
        path = write_profile(Profile(gpu.url))
    write_lines(f"{path} now has {gpu.url}, which needs no key")
    return True


@app.command()
def logout() -> None:
    """Delete what `warpcall login` saved.

    The key itself stays valid until an administrator revokes it.
    """
    saved = read_profile()
    path = profile_path()
    if delete_profile():
        write_lines(f"{path} is deleted" + (f": it had {saved.url}" if saved.url else ""))
    else:
        write_lines(f"nothing was saved in {path}")
    if os.environ.get(KEY_VARIABLE):
        write_lines(f"{KEY_VARIABLE} is still set, and later commands use its key")


@app.command()
def whoami(as_json: Json = False, url: Url = None) -> None:
    """Show who you are to the server, your key and your limits."""
    with Client(url) as gpu:
        found = gpu.me()
    if as_json:
        print_json({**found.to_dict(), "url": gpu.url})
        return
    write_lines(
        f"{found.name}, role {found.role}, at {gpu.url}", _key_line(url), _limit_line(found.limits)
    )


@app.command()
def quotas(as_json: Json = False, url: Url = None) -> None:
    """Show your limits, and what you use of them now."""
    with Client(url) as gpu:
        found = gpu.quotas()
    if as_json:
        print_json(found.to_dict())
        return
    rows = ((one.name, _amount(one, one.used), _limit(one), one.source) for one in found.quotas)
    console().print(table_of(("quota", "used", "at most", "from"), rows))


def _limit(quota: Quota) -> str:
    no_limit = quota.name == DEVICE_TIME and not quota.limit
    return "none" if no_limit else _amount(quota, quota.limit)


def _amount(quota: Quota, value: float | None) -> str:
    """A limit, or what is used of it; empty if nothing is known."""
    if value is None:
        return ""
    if "bytes" in quota.name:
        return human_bytes(value)
    if quota.name == DEVICE_TIME:
        return f"{value:,.4g} s"
    return f"{value:,g}"


def _key_line(url: str | None) -> str:
    if configure(url, None)[0].api_key is None:
        return "key: none, so you share this name with all who use no key"
    where = KEY_VARIABLE if os.environ.get(KEY_VARIABLE) else str(profile_path())
    return f"key: from {where}"


def _limit_line(limits: UserLimits) -> str:
    requests = limits.requests_in_flight
    at_once = "" if requests is None else f"{plural(requests, 'request')} at once, "
    nbytes = human_bytes(limits.bytes_in_flight)
    return f"limits: {at_once}{nbytes} in flight, {limits.requests_per_s:g} requests/s"


def _first_line() -> str:
    try:
        return sys.stdin.readline(MAX_KEY_CHARACTERS)
    except OSError as error:
        raise WarpcallError(f"standard input cannot be read: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise UsageError("login needs a key in UTF-8 on standard input") from error
