"""Where the token of a session must not be, and the commands that end sessions."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.service.auth.browsers import Site, cookie_in, keep, log_in, who
from tests.service.requests import log_of

pytestmark = pytest.mark.slow


def test_neither_the_database_nor_the_log_has_a_token(site: Site) -> None:
    _, key = site.user()
    with site.browser() as http:
        answer = log_in(http, key)
        secret = cookie_in(answer)[1][20:]
        keep(http, answer)
        assert who(http)

    folder = Path(site.database.settings["WARPCALL_DATA_DIR"])
    stored = b"".join(file.read_bytes() for file in folder.glob("warpcall.sqlite3*"))
    assert b"ws_" not in stored
    assert secret.encode() not in stored
    assert secret not in (log := log_of(site.server))
    assert key[12:] not in log


def test_the_administrators_commands_name_what_is_wrong(site: Site) -> None:
    database = site.database

    assert "there is no session 'x'" in database.command("sessions", "revoke", "x", status=1)
    assert "there is no user 'x'" in database.command("sessions", "list", "--user", "x", status=1)
    assert "there is no user 'x'" in database.command("sessions", "revoke", "--user", "x", status=1)
    assert "either a session or --user" in database.command("sessions", "revoke", status=2)
    assert json.loads(database.command("sessions", "list", "--json")) is not None
