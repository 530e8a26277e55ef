"""Finds the prepared answer of a request by the first bytes of the request.

Two requests have the same prepared answer if the bytes of their heads are the same, and those of the
headers of their bodies. The header of a body is that of safetensors, which begins with its length, or
JSON, whose length follows from the head. If the first member of the JSON is `id`, its value is not
compared.
"""

from __future__ import annotations

import hashlib
import re
import secrets
from typing import Generic, NamedTuple, Protocol, TypeVar

HEAD_END = b"\r\n\r\n"
MAX_PREPARED = 16  # of a connection; the one that was made first is forgotten first
MAX_HEADER_BYTES = 4 << 10  # of the body's header
LENGTH_BYTES = 8  # in front of a safetensors header

# The value of `id`, if that is the first member of an object, and if JSON writes each character of the
# value as itself. The parser refuses an object with two members of one name, so that no later member is
# the `id`.
_ID = re.compile(rb'\{[ \t\r\n]*"id"[ \t\r\n]*:[ \t\r\n]*"([ !#-\[\]-~]*)"')

# Heads contain API keys. Connections remember keyed hashes of them and no heads.
_SECRET = secrets.token_bytes(32)


class Prepared(Protocol):
    """What is known of a request before it comes.

    Attributes:
        nbytes: bytes of the whole body.
        json_nbytes: bytes of the JSON at the start of the body; None if the body starts with a
            safetensors header.
        request_id: the `id` in the JSON of the first such request; None if it has none.
    """

    nbytes: int
    json_nbytes: int | None
    request_id: bytes | None


P = TypeVar("P", bound=Prepared)


class Found(NamedTuple, Generic[P]):
    """A request for which something is prepared.

    Attributes:
        begin: where the body goes on behind its header.
        request_id: the `id` in its JSON; empty if it has none.
    """

    prepared: P
    begin: int
    request_id: bytes


class _Key(NamedTuple):
    """What is compared of a request.

    Attributes:
        digest: keyed hash of the bytes that are compared.
        end: where the head ends.
        begin: where the body goes on behind its header.
        request_id: the `id`, which is not compared; None if all bytes up to `begin` are.
    """

    digest: bytes
    end: int
    begin: int
    request_id: bytes | None


class PreparedRequests(Generic[P]):
    """What one connection has prepared, for at most MAX_PREPARED kinds of requests."""

    def __init__(self) -> None:
        self._prepared: dict[bytes, P] = {}
        self._json_nbytes: dict[
            bytes, int
        ] = {}  # by the hash of a head whose body begins with JSON

    def find(self, data: bytes) -> Found[P] | None:
        """Find what is prepared for a request.

        Args:
            data: the first bytes of the request.

        Returns:
            None if nothing is prepared, if `data` ends before the tensors, or if it has bytes of the next
            request.
        """
        if not self._prepared:
            return None
        key = self._key(data)
        if key is None:
            return None
        prepared = self._prepared.get(key.digest)
        if prepared is None or len(data) - key.end > prepared.nbytes:
            return None
        return Found(prepared, key.begin, key.request_id or b"")

    def lacks_json(self, data: bytes) -> bool:
        """Whether these first bytes of a request end in JSON that may be like that of an earlier request."""
        if not self._json_nbytes:
            return False
        end = _head_end(data)
        nbytes = self._json_nbytes.get(_hash(data[:end]).digest()) if end else None
        return nbytes is not None and len(data) < end + nbytes

    def add(self, first: bytes, prepared: P) -> None:
        """Prepare something for requests like the one whose first bytes are `first`.

        This has no effect if `first` ends before the tensors or has bytes of the next request, or if the
        request has an `id` that would be compared.
        """
        end, nbytes = _head_end(first), prepared.json_nbytes
        if not end or len(first) - end > prepared.nbytes:
            return
        if nbytes is not None:
            if nbytes > MAX_HEADER_BYTES:
                return
            _put(self._json_nbytes, _hash(first[:end]).digest(), nbytes)
        key = self._key(first)
        if key is not None and key.request_id == prepared.request_id:
            _put(self._prepared, key.digest, prepared)

    def _key(self, data: bytes) -> _Key | None:
        """None if `data` ends before the header of the body does."""
        end = _head_end(data)
        if not end:
            return None
        if data[end : end + 1] == b"{":
            compared = _hash(data[:end])
            nbytes = self._json_nbytes.get(compared.digest())
            if nbytes is not None:
                return _key_of_json(data, end, end + nbytes, compared)
        header = int.from_bytes(data[end : end + LENGTH_BYTES], "little")
        begin = end + LENGTH_BYTES + header
        if header > MAX_HEADER_BYTES or begin > len(data):
            return None
        return _Key(_hash(data[:begin]).digest(), end, begin, None)


def _key_of_json(data: bytes, end: int, begin: int, compared: hashlib.blake2b) -> _Key | None:
    """The key of a request with JSON from `end` to `begin`; `compared` has the hash of its head."""
    if begin > len(data):
        return None
    found = _ID.match(data, end, begin)
    if found is None:
        compared.update(data[end:begin])
        return _Key(compared.digest(), end, begin, None)
    # All JSON behind one head has the same length, and so every `id` that is left out of equal bytes.
    compared.update(data[end : found.start(1)])
    compared.update(data[found.end(1) : begin])
    return _Key(compared.digest(), end, begin, found[1])


def _head_end(data: bytes) -> int:
    """Where the head of a request ends; 0 if it is not complete."""
    at = data.find(HEAD_END)
    return 0 if at < 0 else at + len(HEAD_END)


def _hash(data: bytes) -> hashlib.blake2b:
    return hashlib.blake2b(data, digest_size=16, key=_SECRET)


V = TypeVar("V")


def _put(entries: dict[bytes, V], key: bytes, value: V) -> None:
    if len(entries) >= MAX_PREPARED and key not in entries:
        del entries[next(iter(entries))]
    entries[key] = value
