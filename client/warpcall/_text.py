"""Makes text from a server or a file safe to print: one line, no control characters, bounded.

A terminal acts on control characters. ESC and the C1 controls move the cursor, change the window's
title or hide the text that follows. Bidirectional overrides show text in another order.
"""

from __future__ import annotations

import json
import re

MOST_CHARACTERS = 2000
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
