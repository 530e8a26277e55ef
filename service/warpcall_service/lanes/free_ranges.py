"""The free pieces of a range of addresses."""

from __future__ import annotations

import bisect


class Extents:
    """Allocates from the lowest address at which there is room.

    So a lightly used range stays in few, warm pages.

    Attributes:
        end: where the range ends.
        free: bytes that are not allocated.
    """

    def __init__(self, begin: int, end: int) -> None:
        self.end = end
        self.free = end - begin
        self._pieces = [(begin, end)] if end > begin else []  # in order, never adjacent

    def find(self, nbytes: int, alignment: int) -> int | None:
        """Where so many bytes are free, without allocating them."""
        for begin, end in self._pieces:
            offset = round_up(begin, alignment)
            if offset + nbytes <= end:
                return offset
        return None

    def take(self, begin: int, end: int) -> None:
        """Allocate what `find` found."""
        i = bisect.bisect(self._pieces, (begin, self.end)) - 1
        low, high = self._pieces[i]
        rest = ((low, begin), (end, high))
        self._pieces[i : i + 1] = [piece for piece in rest if piece[0] < piece[1]]
        self.free -= end - begin

    def give_back(self, begin: int, end: int) -> None:
        """Free what was allocated."""
        self.free += end - begin
        pieces = self._pieces
        i = bisect.bisect(pieces, (begin, end))
        low, high = i, i
        if i < len(pieces) and pieces[i][0] == end:
            end, high = pieces[i][1], i + 1
        if i and pieces[i - 1][1] == begin:
            begin, low = pieces[i - 1][0], i - 1
        pieces[low:high] = [(begin, end)]


def round_up(nbytes: int, multiple: int) -> int:
    """The least multiple that is not below `nbytes`."""
    return -(-nbytes // multiple) * multiple
