"""Takes the bytes of tensors out of a message of protobuf without copying them, and puts others in.

Protobuf's own parser would copy each tensor once more, and stop the event loop while it does. What
is read here is the encoding of fields: https://protobuf.dev/programming-guides/encoding/.
"""

from __future__ import annotations

from collections.abc import Sequence

Bytes = bytes | memoryview

BYTES_TYPE = 2  # of a field that has a length, and then so many bytes
_VARINT_TYPE = 0
_FIXED_NBYTES = {1: 8, 5: 4}  # by type
_MAX_VARINT_BYTES = 10


class Malformed(ValueError):
    """The bytes are no message of protobuf."""


def take_out(message: memoryview, number: int) -> tuple[bytes, list[memoryview]]:
    """The message without its fields `number`, which have bytes, and these fields in their order.

    Raises:
        Malformed: the message is none of protobuf.
    """
    rest: list[Bytes] = []
    taken: list[memoryview] = []
    kept = at = 0  # bytes from `kept` to `at` are to keep
    while at < len(message):
        begin = at
        tag, at = _varint(message, at)
        type_ = tag & 7
        if type_ == BYTES_TYPE:
            nbytes, at = _varint(message, at)
        elif type_ == _VARINT_TYPE:
            value_at = at
            _, at = _varint(message, at)
            at, nbytes = value_at, at - value_at
        elif type_ in _FIXED_NBYTES:
            nbytes = _FIXED_NBYTES[type_]
        else:
            raise Malformed(f"a field has the type {type_}")
        if nbytes > len(message) - at:
            raise Malformed(f"a field has {nbytes} bytes, {len(message) - at} are left")
        if type_ == BYTES_TYPE and tag >> 3 == number:
            rest.append(message[kept:begin])
            taken.append(message[at : at + nbytes])
            kept = at + nbytes
        at += nbytes
    rest.append(message[kept:])
    return b"".join(rest), taken


def field(number: int, data: Sequence[Bytes]) -> list[Bytes]:
    """A field of bytes, in pieces: its head, and then `data`."""
    head = bytearray()
    for value in (number << 3 | BYTES_TYPE, sum(map(len, data))):
        while value > 127:
            head.append(value & 127 | 128)
            value >>= 7
        head.append(value)
    return [bytes(head), *data]


def _varint(message: memoryview, at: int) -> tuple[int, int]:
    """The number at `at`, and where it ends."""
    value = 0
    for place, byte in enumerate(message[at : at + _MAX_VARINT_BYTES]):
        value |= (byte & 127) << 7 * place
        if byte < 128:
            return value, at + place + 1
    raise Malformed("a number does not end")
