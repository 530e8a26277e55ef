"""Text for messages: values that a user sent, shortened."""

from __future__ import annotations

import reprlib

MAX_SHOWN = 60  # characters of a value in a message
MAX_DETAIL_CHARS = 2000  # of a problem's detail
MAX_FIELD_CHARS = 255  # of the name of the field that a problem is about

_SHORT = reprlib.Repr()
_SHORT.maxlevel = 3
_SHORT.maxlist = _SHORT.maxtuple = _SHORT.maxset = 10
_SHORT.maxdict = 5
_SHORT.maxstring = _SHORT.maxother = MAX_SHOWN
_SHORT.maxlong = 5000  # json reads integers of up to 4300 digits


def brief(value: object) -> str:
    """What came, short enough for a message, and in a time that does not grow with the value."""
    start = value[: MAX_SHOWN + 1] if isinstance(value, str | bytes) else None
    text = _SHORT.repr(value) if start is None else repr(start)
    return text if len(text) <= MAX_SHOWN else text[: MAX_SHOWN - 3] + "..."
