"""Makes text from a server or a file safe to print: one line, no control characters, bounded.

A terminal acts on control characters. ESC and the C1 controls move the cursor, change the window's
title or hide the text that follows. Bidirectional overrides show text in another order.
"""

from __future__ import annotations

import difflib
import json
import re
import shutil
import textwrap
from collections.abc import Iterable

MOST_CHARACTERS = 2000
MOST_COMPARED = 64  # characters of a name that is compared with others
_SUSPECT = re.compile(r"[^\x20-\x7e]")


def clean(text: str, most: int = MOST_CHARACTERS) -> str:
    r"""`text` on one line, with every character that is not printable written as its escape.

    Line ends and other white space become spaces; ESC becomes the four characters \x1b. Text beyond
    `most` characters is cut off and ends in "...".
    """
    if len(text) > most:
        text = text[: most - 3] + "..."
    return text if text.isascii() and text.isprintable() else _SUSPECT.sub(_shown, text)


def clean_json(text: str) -> str:
    """The same JSON document, with its unprintable characters written as escapes."""
    return _SUSPECT.sub(_escaped, text)


def did_you_mean(given: str, known: Iterable[str]) -> str:
    """What follows a message that refuses `given`: "; did you mean 'permute'?", or nothing."""
    found = difflib.get_close_matches(given[:MOST_COMPARED].lower(), known, 1)
    return f"; did you mean {found[0]!r}?" if found else ""


def _shown(match: re.Match[str]) -> str:
    character = match[0]
    if character.isprintable():
        return character
    return " " if character.isspace() else character.encode("unicode_escape").decode()


def _escaped(match: re.Match[str]) -> str:
    character = match[0]
    return (
        character if character.isprintable() or character == "\n" else json.dumps(character)[1:-1]
    )


def wrap_line(line: str) -> str:
    """A line for a terminal, with line ends between words where it would be too long.

    Words are never cut, because a user may copy them: an address, an id, a path.
    """
    width = shutil.get_terminal_size().columns
    if len(line) <= width:
        return line
    indent = " " * (len(line) - len(line.lstrip()) + 2)
    return textwrap.fill(
        line, width, subsequent_indent=indent, break_long_words=False, break_on_hyphens=False
    )
