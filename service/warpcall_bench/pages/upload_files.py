"""The files of an upload as its page shows them: whole, or what differs from another version."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from markupsafe import Markup

from warpcall_bench.drawing.sources import DiffLine, difference, highlighted, plain

MOST_SHOWN = 512 << 10  # bytes of all files that a page shows whole
MOST_COMPARED = 512 << 10  # bytes of all files that a page compares
PYTHON = ".py"
NO_TEXT = "It is no text."
TOO_LONG = "The page would be too long with it."


@dataclass(frozen=True, slots=True)
class FilePart:
    """A file of a version.

    Attributes:
        path: in the upload.
        state: "added", "removed" or "changed" since the other version; empty without another one.
        code: the whole text; None if only a difference is shown, or nothing.
        lines: what differs; None if the whole text is shown, or nothing.
        note: why nothing is shown; otherwise empty.
    """

    path: str
    nbytes: int
    state: str = ""
    code: Markup | None = None
    lines: Sequence[DiffLine] | None = None
    note: str = ""


def whole_files(files: Mapping[str, bytes], first: str) -> list[FilePart]:
    """All files of a version, with the texts of those that fit on a page.

    Args:
        first: path of the one that is shown before the others.
    """
    left, found = MOST_SHOWN, []
    for path in sorted(files, key=lambda path: (path != first, path)):
        content = files[path]
        text = _text(content)
        if text is None or len(content) > left:
            note = NO_TEXT if text is None else TOO_LONG
            found.append(FilePart(path, len(content), note=note))
            continue
        left -= len(content)
        code = highlighted(text) if path.endswith(PYTHON) else plain(text)
        found.append(FilePart(path, len(content), code=code))
    return found


def changed_files(before: Mapping[str, bytes], after: Mapping[str, bytes]) -> list[FilePart]:
    """The files that were added, removed or changed between two versions, by path."""
    left, found = MOST_COMPARED, []
    for path in sorted({*before, *after}):
        old, new = before.get(path), after.get(path)
        if old == new:
            continue
        state = "added" if old is None else "removed" if new is None else "changed"
        texts = (_text(old or b""), _text(new or b""))
        size = len(new if new is not None else old or b"")
        left -= len(old or b"") + len(new or b"")
        if texts[0] is None or texts[1] is None:
            found.append(FilePart(path, size, state, note=NO_TEXT))
            continue
        lines = difference(texts[0], texts[1]) if left >= 0 else None
        note = TOO_LONG if lines is None else ""
        found.append(FilePart(path, size, state, lines=lines, note=note))
    return found


def _text(content: bytes) -> str | None:
    """A file as text; None if it is none."""
    try:
        text = content.decode()
    except UnicodeDecodeError:
        return None
    return None if "\0" in text else text
