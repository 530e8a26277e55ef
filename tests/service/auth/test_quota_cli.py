"""The command `quotas`: what it changes, and what it says to what cannot be."""

from __future__ import annotations

import re

import pytest

from tests.service.databases import Database

pytestmark = pytest.mark.slow


def test_limits_are_set_listed_and_removed(database: Database) -> None:
    database.key("ann", "bench")

    said = database.command("quotas", "set", "tensor_user_bytes", "2GiB", "--user", "ann")
    database.command("quotas", "set", "user_max_jobs", "5", "--role", "bench")
    everything = database.listed("quotas", "list")
    own = database.listed("quotas", "list", "--user", "ann")
    removed = database.command("quotas", "remove", "user_max_jobs", "--role", "bench")

    assert said == "the user ann has the quota tensor_user_bytes of 2147483648, not 4294967296\n"
    assert everything == [
        {"of": "role bench", "quota": "user_max_jobs", "limit": 5},
        {"of": "user ann", "quota": "tensor_user_bytes", "limit": 2 << 30},
    ]
    assert {"quota": "tensor_user_bytes", "limit": 2 << 30, "from": "user"} in own
    assert {"quota": "user_max_jobs", "limit": 5, "from": "role"} in own
    assert {"quota": "user_max_monitors", "limit": 20, "from": "setting"} in own
    assert removed == "removed the quota user_max_jobs of the role bench\n"
    assert [one["of"] for one in database.listed("quotas", "list")] == ["user ann"]


@pytest.mark.parametrize(
    ("words", "status", "says"),
    [
        (("set", "user_max_jobs", "-1", "--role", "call"), 2, "No such option"),
        (("set", "user_max_jobs", "0", "--role", "call"), 1, "must be greater than or equal to 1"),
        (("set", "user_max_cats", "5", "--role", "call"), 1, "quota must be user_max_requests"),
        (("set", "user_max_jobs", "5", "--role", "boss"), 1, "the role must be call"),
        (("set", "user_max_jobs", "5", "--user", "nobody"), 1, "there is no user"),
        (("set", "user_max_jobs", "5"), 2, "give either --user or --role"),
        (("remove", "user_max_jobs", "--role", "call"), 1, "has no quota user_max_jobs"),
        (("list", "--user", "nobody"), 1, "there is no user"),
    ],
)
def test_what_cannot_be_is_refused_with_the_reason(
    sqlite: Database, words: tuple[str, ...], status: int, says: str
) -> None:
    assert says in re.sub(r"\s+", " ", sqlite.command("quotas", *words, status=status))
