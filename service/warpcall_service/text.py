"""Text for messages: values that a user sent, shortened."""

from __future__ import annotations

from warpcall.wire import MAX_SHOWN, brief

MAX_DETAIL_CHARS = 2000  # of a problem's detail
MAX_FIELD_CHARS = 255  # of the name of the field that a problem is about

__all__ = ["MAX_DETAIL_CHARS", "MAX_FIELD_CHARS", "MAX_SHOWN", "brief"]
