"""The profile: what it supplies, to which server its key is sent, and who may read it."""

from __future__ import annotations

import io
import stat
from pathlib import Path

import pytest

from tests.client.command import Command
from tests.client.scripted import ScriptedServer, Visit
from warpcall import InvalidInput, Unauthorized, errors
from warpcall._config import configure
from warpcall._profile import Profile, profile_path, read_profile, write_profile

KEY = "wc_1a2b3c4d_secret"
URL = "https://gpu.example.com"


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of the profile."""
    for name in ("WARPCALL_URL", "WARPCALL_API_KEY"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    return tmp_path / "warpcall"


def test_it_is_in_the_users_configuration(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    assert profile_path() == tmp_path / "warpcall/profile.toml"

    monkeypatch.delenv("XDG_CONFIG_HOME")
    monkeypatch.setenv("HOME", str(tmp_path))
    assert profile_path() == tmp_path / ".config/warpcall/profile.toml"


def test_without_one_nothing_changes() -> None:
    assert read_profile() == Profile()
    assert configure(None, None)[0].url == "http://127.0.0.1:8000"


def test_a_user_without_a_home_has_none(monkeypatch: pytest.MonkeyPatch, folder: Path) -> None:
    folder.parent.joinpath("file").touch()

    monkeypatch.setenv("XDG_CONFIG_HOME", str(folder.parent / "file"))

    assert read_profile() == Profile()


def test_what_is_written_is_read_again_and_nobody_elses(folder: Path) -> None:
    for profile in (Profile(URL, KEY), Profile(URL), Profile(None, 'a "quoted" \\ key')):
        path = write_profile(profile)

        assert read_profile() == profile
        assert stat.S_IMODE(path.stat().st_mode) == 0o600
        assert stat.S_IMODE(folder.stat().st_mode) == 0o700
        assert list(folder.iterdir()) == [path]


def test_it_is_asked_after_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    write_profile(Profile(URL, KEY))

    (config,) = configure(None, None)
    assert (config.url, config.api_key) == (URL, KEY)

    monkeypatch.setenv("WARPCALL_API_KEY", "other")
    assert (configure(None, None)[0].url, configure(None, None)[0].api_key) == (URL, "other")
    assert configure(None, "mine")[0].api_key == "mine"


@pytest.mark.parametrize("how", ["argument", "environment"])
def test_its_key_does_not_go_to_another_server(how: str, monkeypatch: pytest.MonkeyPatch) -> None:
    write_profile(Profile(URL, KEY))
    other = "https://elsewhere.example.com"
    if how == "environment":
        monkeypatch.setenv("WARPCALL_URL", other)

    (config,) = configure(other if how == "argument" else None, None)

    assert (config.url, config.api_key) == (other, None)
    assert configure(f"{URL}/", None)[0].api_key == KEY


def test_a_key_without_an_address_is_for_this_machine() -> None:
    write_profile(Profile(None, KEY))

    assert configure(None, None)[0].api_key == KEY
    assert configure(URL, None)[0].api_key is None


@pytest.mark.parametrize("mode", [0o640, 0o604, 0o660, 0o601])
def test_a_key_that_others_may_read_is_not_used(mode: int, folder: Path) -> None:
    path = write_profile(Profile(URL, KEY))
    path.chmod(mode)

    with pytest.raises(InvalidInput, match=f"mode {mode:o}.*chmod 600") as caught:
        configure(None, None)

    assert caught.value.field == "profile"
    assert KEY not in str(caught.value)
    write_profile(Profile(URL)).chmod(0o644)
    assert configure(None, None)[0].url == URL, "an address alone is no secret"


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("url = 3", "may have url"),
        ("token = 'x'", "may have url"),
        ("[server]\nurl = 'x'", "may have url"),
        ("url", "must be TOML"),
        ("\x00", "must be TOML"),
    ],
)
def test_what_cannot_be_read_is_named(text: str, says: str, folder: Path) -> None:
    write_profile(Profile(URL)).write_text(text)

    with pytest.raises(InvalidInput, match=says) as caught:
        configure(None, None)

    assert str(folder / "profile.toml") in str(caught.value)


def test_login_keeps_a_key_that_the_server_takes(
    warpcall: Command, monkeypatch: pytest.MonkeyPatch, folder: Path
) -> None:
    monkeypatch.setattr("sys.stdin", io.StringIO(f"{KEY}\n"))

    result = warpcall("login")

    assert (result.code, result.err) == (0, "")
    assert result.out == f"{folder}/profile.toml now has the key for {warpcall.server.url}\n"
    assert read_profile() == Profile(warpcall.server.url, KEY)
    assert KEY not in result.out


def test_login_keeps_no_key_that_the_server_refuses(
    warpcall: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(visit: Visit) -> None:
        visit.answer(
            401,
            b'{"type": "urn:warpcall:problem:unauthorized", "detail": "not yours"}',
            {"Content-Type": errors.MEDIA_TYPE},
        )

    monkeypatch.setattr("sys.stdin", io.StringIO(f"{KEY}\n"))
    with ScriptedServer(refuse) as server:
        result = warpcall("login", "--url", server.url)

    assert (result.code, result.err) == (1, "warpcall: not yours; nothing was saved\n")
    assert read_profile() == Profile()
    assert Unauthorized.status == 401


def test_login_needs_a_key(warpcall: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.stdin", io.StringIO("\n"))

    result = warpcall("login")

    assert (result.code, result.err) == (2, "warpcall: login needs a key, got an empty line\n")
