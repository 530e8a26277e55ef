"""What readers type to find rows of lists, and the order of names in lists."""

from __future__ import annotations

import re

LONGEST = 100  # characters of a filter
MOST_WORDS = 8  # of a filter
NUMBERS = re.compile(r"(\d+)")
TIMES = re.compile(r"(?<=\d)[x×](?=\d)")


def words_of(text: str) -> list[str]:
    """The words of a filter. A size that is typed as 8192x8192 or 8192 x 8192 has those of 8192,8192."""
    words = TIMES.sub(",", text.casefold()).split()
    return [word for word in words if word not in ("x", "×")]


def natural(text: str) -> tuple[tuple[int, int | str], ...]:
    """A key that sorts texts without regard to case, and numbers in them by their value."""
    parts = NUMBERS.split(text.casefold())
    return tuple((0, int(part)) if part.isdecimal() else (1, part) for part in parts if part)
