"""The header `traceparent` of W3C Trace Context: which trace a request belongs to.

What cannot be read is ignored, as the standard wants it: a request never fails because of its trace.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

NAME = b"traceparent"
VALUE_BYTES = 55  # of version 00
STATE_BYTES = 512  # of a `tracestate`; a longer one is ignored
# Version, id of the trace, id of the caller's span, flags. Later versions may add fields at the end.
_VALUE = re.compile(rb"(?!ff)([0-9a-f]{2})-(?!0{32})[0-9a-f]{32}-(?!0{16})[0-9a-f]{16}-[0-9a-f]{2}")
_FIELD = b"\r\ntraceparent: "  # as our clients send it


def checked(value: bytes) -> bytes:
    """The fields of version 00 of a header's value; empty if the value is malformed."""
    found = _VALUE.match(value)
    if found is None:
        return b""
    rest = value[VALUE_BYTES:]
    is_valid = not rest if found[1] == b"00" else not rest or rest.startswith(b"-")
    return value[:VALUE_BYTES] if is_valid else b""


def traceparent_of(fields: Iterable[tuple[bytes, bytes]]) -> bytes:
    """The valid `traceparent` among the headers of a request; empty if there is none, or several."""
    given = [value for name, value in fields if name == NAME]
    return checked(given[0]) if len(given) == 1 else b""


def tracestate_of(fields: Iterable[tuple[bytes, bytes]]) -> bytes:
    """The `tracestate` among the headers of a request; empty if there is none, or it is too long."""
    given = b",".join(value for name, value in fields if name == b"tracestate")
    return given if len(given) <= STATE_BYTES else b""


def cut(data: bytes) -> tuple[bytes, bytes]:
    """The valid `traceparent` in the head of a request, and the request without it.

    Both are empty if there is none, or if it is not written as our clients do it.

    Args:
        data: the first bytes of the request.
    """
    begin = data.find(_FIELD, 0, data.find(b"\r\n\r\n") + 2) + len(_FIELD)
    if begin < len(_FIELD):
        return b"", b""
    end = begin + VALUE_BYTES
    found = checked(data[begin:end])
    return found, data[:begin] + data[end:] if found else b""
