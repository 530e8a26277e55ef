"""Measures JSON before it is parsed: its bytes without the content of its texts.

A parser takes some 200 ns and some 300 bytes of memory for each value, however short it is, so a body
of few MiB could take seconds and a GiB. The content of texts costs next to nothing.
"""

from __future__ import annotations


def structure_nbytes(content: bytes, most: int) -> int:
    """The bytes of JSON without the content of its texts, in time linear in all bytes.

    The content need not be valid JSON. Behind the place where it is not, which is where a parser
    stops, the number is meaningless.

    Args:
        most: for more quotation marks than this, their number is returned, and nothing is split.
    """
    # Escapes are only in texts, so every quotation mark that is left begins or ends a text.
    plain = content.replace(rb"\\", b"").replace(rb"\"", b"")
    quotes = plain.count(b'"')
    if quotes > most:
        return quotes
    return quotes + sum(map(len, plain.split(b'"')[::2]))
