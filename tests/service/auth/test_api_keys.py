"""Keys: what they are made of, what is kept of them, and that wrong ones are all treated alike."""

from __future__ import annotations

import gc
import re
import sys
from types import FrameType
from typing import Any

import pytest

from warpcall_service.auth.api_keys import SALT_BYTES, KeyRecord, digest_of, find, new_key
from warpcall_service.identity import LOCAL, NOBODY, ROLES, Caller

KEY_ID, KEY = new_key()
SALT = b"s" * SALT_BYTES
RECORD = KeyRecord(Caller("alice", "call", KEY_ID), SALT, digest_of(KEY.encode(), SALT))
KEYS = {KEY_ID.encode(): RECORD}


def changed(at: int) -> str:
    """The key with another character at a place."""
    return KEY[:at] + ("0" if KEY[at] != "0" else "1") + KEY[at + 1 :]


WRONG = {
    "empty": "",
    "of another service": "sk-" + "a" * 40,
    "of a name that nobody has": changed(5),
    "wrong from the beginning of the secret": changed(12),
    "wrong at the end": changed(len(KEY) - 1),
    "too short": KEY[:-1],
    "too long": KEY + "x",
    "only the name": KEY[:12],
    "very long": KEY * 1000,
}


def test_a_key_has_a_name_and_256_random_bits() -> None:
    assert re.fullmatch(r"wc_[0-9a-f]{8}_[\w-]{43}", KEY)
    assert KEY[3:11] == KEY_ID
    assert len({new_key()[1] for _ in range(1000)}) == 1000


def test_what_is_kept_does_not_hold_the_key_and_differs_for_the_same_one() -> None:
    other = digest_of(KEY.encode(), b"t" * SALT_BYTES)

    assert KEY[12:] not in repr(RECORD)
    assert other != RECORD.digest


def test_the_right_key_is_found() -> None:
    assert find(KEY.encode(), KEYS) is RECORD


@pytest.mark.parametrize("key", WRONG.values(), ids=WRONG)
def test_a_wrong_key_is_not(key: str) -> None:
    assert find(key.encode(), KEYS) is None
    assert find(key.encode(), {}) is None


def test_whatever_is_wrong_the_same_steps_are_taken() -> None:
    """Time follows the steps: one look-up, one hash, one comparison whose time tells nothing."""
    steps = {name: trace(key.encode()) for name, key in {"right": KEY, **WRONG}.items()}

    first = steps["right"]
    assert sum("compare_digest" in step for step in first) == 1
    assert sum("sha256" in step for step in first) == 1
    assert all(taken == first for taken in steps.values()), steps


def test_what_is_compared_has_one_length() -> None:
    """`compare_digest` may tell lengths apart."""
    assert {len(digest_of(key.encode(), SALT)) for key in WRONG.values()} == {len(RECORD.digest)}


def test_each_role_may_do_what_those_before_it_may() -> None:
    may = {role: [r for r in ROLES if Caller("alice", role).may(r)] for role in ROLES}

    assert may == {
        "call": ["call"],
        "bench": ["call", "bench"],
        "upload": ["call", "bench", "upload"],
        "scratch": ["call", "bench", "upload", "scratch"],
        "admin": ["call", "bench", "upload", "scratch", "admin"],
    }
    assert (LOCAL.role, NOBODY.role) == ("admin", "call")


def trace(key: bytes) -> list[str]:
    """The functions that `find` calls, and the lines that it runs, in order."""
    steps: list[str] = []

    def profile(frame: FrameType, event: str, argument: Any) -> None:
        if event == "c_call":
            steps.append(argument.__name__)
        elif event == "call":
            steps.append(frame.f_code.co_name)

    def lines(frame: FrameType, event: str, argument: Any) -> Any:
        steps.append(f"line {frame.f_lineno}")
        return lines

    before = sys.gettrace()
    gc.disable()  # what it would finalise in the middle is no step of ours
    sys.settrace(lines)
    sys.setprofile(profile)
    try:
        find(key, KEYS)
    finally:
        sys.setprofile(None)
        sys.settrace(before)
        gc.enable()
    return steps[: steps.index("setprofile")]
