"""Text for messages: values that a user sent, and exceptions, shortened."""

from __future__ import annotations

from warpcall.wire import MAX_SHOWN, brief

MAX_DETAIL_CHARS = 2000  # of a problem's detail
MAX_FIELD_CHARS = 255  # of the name of the field that a problem is about

MAX_ERROR_CHARS = 1000  # of the message of an exception that is not a problem

__all__ = ["MAX_DETAIL_CHARS", "MAX_FIELD_CHARS", "MAX_SHOWN", "brief", "error_text", "printable"]


def error_text(error: BaseException) -> str:
    """The class and message of an exception, shortened, with the notes that were added to it."""
    notes = getattr(error, "__notes__", ())  # such as the step of a program
    return ", ".join((f"{type(error).__name__}: {error}".strip()[:MAX_ERROR_CHARS], *notes))


def printable(text: str) -> str:
    """A text that every database stores and that no reader's program acts on.

    Line ends stay, and other white space becomes spaces. All else that is not printable becomes
    U+FFFD: PostgreSQL refuses NUL, UTF-8 has no lone surrogates, terminals act on control
    characters, and bidirectional controls show a text in another order.
    """
    return text if text.isprintable() else "".join(map(_printable, text))


def _printable(character: str) -> str:
    if character.isprintable() or character == "\n":
        return character
    return " " if character.isspace() else "\ufffd"
