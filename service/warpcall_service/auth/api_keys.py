"""API keys: their form, what the server stores of them, and how a given key is checked.

A key is wc_<8 hex digits, its id>_<256 random bits>. The server stores a salt and
SHA-256(salt + key). A slow hash would protect passwords that can be guessed, but 256 random bits
cannot be. SHA-256 takes less than a microsecond, so each request is checked anew and no valid key
has to be kept in memory.
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
    """What the server stores of a key, and the caller that it belongs to.

    Attributes:
        expires_at: seconds since 1970; None if the key does not expire.
        withdrawn: why the key is not valid at any time; empty if it is valid until it expires.
    """

    caller: Caller
    salt: bytes
    digest: bytes
    expires_at: int | None = None
    withdrawn: str = ""

    def refusal(self, now: float) -> str:
        """Why the key is not valid at `now`; empty if it is valid."""
        if self.withdrawn:
            return self.withdrawn
        if self.expires_at is not None and self.expires_at <= now:
            return "has expired"
        return ""


# Used for keys that do not exist, so that checking them takes as long as checking others. No key
# has this digest.
_NO_KEY = KeyRecord(Caller("", "call"), secrets.token_bytes(SALT_BYTES), b"\0" * 32)


def new_key() -> tuple[str, str]:
    """The id of a new key, and the key."""
    key_id = secrets.token_hex(4)
    return key_id, f"wc_{key_id}_{secrets.token_urlsafe(32)}"


def digest_of(key: bytes, salt: bytes) -> bytes:
    """The digest that is stored for a key."""
    return hashlib.sha256(salt + key).digest()


def find(key: bytes, records: Mapping[bytes, KeyRecord]) -> KeyRecord | None:
    """The record of `key`; None if the key is wrong.

    The work is the same whatever is wrong with a key, so that its time reveals nothing: one lookup
    by the public part, one hash, one comparison in constant time.
    """
    record = records.get(key[3:11], _NO_KEY)
    right = hmac.compare_digest(digest_of(key, record.salt), record.digest)
    return record if right else None
