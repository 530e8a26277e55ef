"""API keys: what one looks like, what the server keeps of it, and whether a given one is right.

wc_<8 hex digits that name it>_<256 random bits>. The server keeps a salt and SHA-256(salt + key). A
slow hash defends passwords that can be guessed; nobody guesses 256 bits, and SHA-256 takes less than
a microsecond, so that each request is checked from scratch and no key stays in memory.
"""

from __future__ import annotations

import hashlib
import hmac
import secrets
from collections.abc import Mapping
from dataclasses import dataclass

from warpcall_service.identity import Caller

SALT_BYTES = 16


@dataclass(frozen=True, slots=True)
class KeyRecord:
    """What the server keeps of a key, and whose it is.

    Attributes:
        expires_at: seconds since 1970, None for never.
        withdrawn: why it no longer counts, whatever the time; else empty.
    """

    caller: Caller
    salt: bytes
    digest: bytes
    expires_at: int | None = None
    withdrawn: str = ""

    def refusal(self, now: float) -> str:
        """Why it does not count at `now`; empty if it does."""
        if self.withdrawn:
            return self.withdrawn
        if self.expires_at is not None and self.expires_at <= now:
            return "has expired"
        return ""


# Stands in for keys that do not exist, so that these cost what others do. Nothing has this digest.
_NOBODY = KeyRecord(Caller("", "call"), secrets.token_bytes(SALT_BYTES), b"\0" * 32)


def new_key() -> tuple[str, str]:
    """The name of a new key, and the key."""
    key_id = secrets.token_hex(4)
    return key_id, f"wc_{key_id}_{secrets.token_urlsafe(32)}"


def digest_of(key: bytes, salt: bytes) -> bytes:
    """What is kept of a key."""
    return hashlib.sha256(salt + key).digest()


def find(key: bytes, records: Mapping[bytes, KeyRecord]) -> KeyRecord | None:
    """The record of `key`, None if it is wrong.

    Whatever is wrong with it, the same is done: one look-up by its public part, one hash, one
    comparison in constant time.
    """
    record = records.get(key[3:11], _NOBODY)
    right = hmac.compare_digest(digest_of(key, record.salt), record.digest)
    return record if right else None
