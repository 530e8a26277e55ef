"""The commands `login`, `logout` and `whoami`, and what to do without a key."""

from __future__ import annotations

import io
import json
import sys
from pathlib import Path

import pytest

from tests.client.command import Command
from tests.client.scripted import ScriptedServer, Visit
from tests.client.scripted_ops import refuse, say
from warpcall._profile import Profile, read_profile, write_profile
from warpcall.errors import Unauthorized

KEY = "wc_1a2b3c4d_secret"
ME = {
    "name": "ann",
    "role": "bench",
    "limits": {"requests_in_flight": 1, "bytes_in_flight": 3 << 29, "requests_per_s": 50.0},
    "in_flight": {"requests": 1, "bytes": 0},
}


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of the profile."""
    monkeypatch.delenv("WARPCALL_API_KEY", raising=False)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    return tmp_path / "warpcall"


def answer(visit: Visit) -> None:
    if visit.headers.get("authorization") == f"Bearer {KEY}":
        say(visit, 200, ME)
    else:
        refuse(visit, Unauthorized("this server asks for an API key"))


def test_whoami_shows_the_user_where_the_key_is_from_and_the_limits(
    folder: Path, warpcall: Command
) -> None:
    with ScriptedServer(answer) as server:
        write_profile(Profile(server.url, KEY))

        result = warpcall("whoami", "--url", server.url)
        as_json = warpcall("whoami", "--url", server.url, "--json")

        assert result.out.splitlines() == [
            f"ann, role bench, at {server.url}",
            f"key: from {folder / 'profile.toml'}",
            "limits: 1 request at once, 1.5 GiB in flight, 50 requests/s",
        ]
        assert json.loads(as_json.out) == {**ME, "url": server.url}
        assert "secret" not in result.out + as_json.out


def test_whoami_names_the_variable_that_has_the_key(
    warpcall: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WARPCALL_API_KEY", KEY)
    with ScriptedServer(answer) as server:
        result = warpcall("whoami", "--url", server.url)

    assert "key: from WARPCALL_API_KEY\n" in result.out


def test_quotas_shows_limits_with_their_units_and_what_is_used(warpcall: Command) -> None:
    rows = [
        ("user_max_jobs", 20, "role", 3),
        ("tensor_user_bytes", 3 << 29, "user", 4096),
        ("user_requests_per_s", 0.5, "setting", None),
        ("user_device_s_per_day", 0.0, "setting", 1.25),
    ]
    quotas = [dict(zip(("name", "limit", "source", "used"), row, strict=True)) for row in rows]
    said = {"user": "ann", "quotas": quotas}
    with ScriptedServer(lambda visit: say(visit, 200, said)) as server:
        result = warpcall("quotas", "--url", server.url)
        as_json = warpcall("quotas", "--url", server.url, "--json")

    assert [line.split() for line in result.out.splitlines()] == [
        ["quota", "used", "at", "most", "from"],
        ["user_max_jobs", "3", "20", "role"],
        ["tensor_user_bytes", "4", "KiB", "1.5", "GiB", "user"],
        ["user_requests_per_s", "0.5", "setting"],
        ["user_device_s_per_day", "1.25", "s", "none", "setting"],
    ]
    assert json.loads(as_json.out) == said


def test_without_a_key_the_error_says_how_to_get_in(warpcall: Command) -> None:
    with ScriptedServer(answer) as server:
        result = warpcall("whoami", "--url", server.url)

    assert (result.code, result.out) == (1, "")
    assert result.err == (
        "warpcall: this server asks for an API key; `warpcall login --url URL` saves one, "
        "or set WARPCALL_API_KEY\n"
    )


@pytest.mark.parametrize("has_keys", [True, False])
def test_login_says_if_the_server_has_no_keys(
    has_keys: bool, folder: Path, warpcall: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "stdin", io.StringIO(f"{KEY}\n"))
    local = {**ME, "name": "local", "role": "admin"}

    with ScriptedServer(answer if has_keys else lambda visit: say(visit, 200, local)) as server:
        result = warpcall("login", "--url", server.url)

        first, *more = result.out.splitlines()
        assert first == f"{folder / 'profile.toml'} now has the key for {server.url}"
        assert read_profile() == Profile(server.url, KEY)
    none = "the server has no API keys: it needs none, and did not check this one"
    assert more == ([] if has_keys else [none])


class Terminal(io.StringIO):
    """A standard input that is a terminal."""

    def isatty(self) -> bool:
        return True


@pytest.mark.parametrize("given", [io.StringIO(""), io.StringIO("\n"), Terminal()])
def test_login_saves_the_address_of_a_server_without_keys_and_asks_for_no_key(
    given: io.StringIO, folder: Path, warpcall: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "stdin", given)
    monkeypatch.setattr("typer.prompt", lambda *_, **__: pytest.fail("it asked"))
    local = {**ME, "name": "local", "role": "admin"}

    with ScriptedServer(lambda visit: say(visit, 200, local)) as server:
        result = warpcall("login", "--url", server.url)

        assert (result.code, result.err) == (0, "")
        assert result.out == (
            f"{folder / 'profile.toml'} now has {server.url}, which needs no key\n"
        )
        assert read_profile() == Profile(server.url)


def test_login_at_a_terminal_asks_for_the_key_of_a_server_with_keys(
    warpcall: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "stdin", Terminal())
    monkeypatch.setattr("typer.prompt", lambda *_, **__: KEY)

    with ScriptedServer(answer) as server:
        result = warpcall("login", "--url", server.url)

        assert result.code == 0
        assert read_profile() == Profile(server.url, KEY)


def test_login_without_a_key_saves_nothing_of_a_server_with_keys(
    warpcall: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "stdin", io.StringIO("\n"))

    with ScriptedServer(answer) as server:
        result = warpcall("login", "--url", server.url)

    assert (result.code, result.err) == (2, "warpcall: login needs a key, got an empty line\n")
    assert read_profile() == Profile()


def test_logout_deletes_what_login_saved(folder: Path, warpcall: Command) -> None:
    write_profile(Profile("https://gpu.example.com", KEY))

    first, second = warpcall("logout"), warpcall("logout")

    path = folder / "profile.toml"
    assert first.out == f"{path} is deleted: it had https://gpu.example.com\n"
    assert second.out == f"nothing was saved in {path}\n"
    assert read_profile() == Profile()
    assert (first.code, second.code) == (0, 0)


def test_logout_says_that_the_environment_still_has_a_key(
    warpcall: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WARPCALL_API_KEY", KEY)

    result = warpcall("logout")

    assert "WARPCALL_API_KEY is still set" in result.out
    assert "secret" not in result.out
