"""Allocates from a range of addresses: first fit."""

from __future__ import annotations

import bisect


class FreeRanges:
    """The free parts of a range of addresses.

    The lowest address with enough room is taken, so that a lightly used range stays in few pages,
    which the CPU's caches hold.

    Attributes:
        end: the end of the range.
        free_nbytes: the number of bytes that are not allocated.
    """

    def __init__(self, begin: int, end: int) -> None:
        self.end = end
        self.free_nbytes = end - begin
        self._ranges = [(begin, end)] if end > begin else []  # sorted, never adjacent

    def find(self, nbytes: int, alignment: int) -> int | None:
        """Find the first aligned address with `nbytes` free, without allocating them."""
        for begin, end in self._ranges:
            offset = round_up(begin, alignment)
            if offset + nbytes <= end:
                return offset
        return None

    def allocate(self, begin: int, end: int) -> None:
        """Allocate what `find` found."""
        i = bisect.bisect(self._ranges, (begin, self.end)) - 1
        low, high = self._ranges[i]
        left = ((low, begin), (end, high))
        self._ranges[i : i + 1] = [part for part in left if part[0] < part[1]]
        self.free_nbytes -= end - begin

    def free(self, begin: int, end: int) -> None:
        """Free what was allocated, and join it with its free neighbours."""
        self.free_nbytes += end - begin
        ranges = self._ranges
        i = bisect.bisect(ranges, (begin, end))
        low, high = i, i
        if i < len(ranges) and ranges[i][0] == end:
            end, high = ranges[i][1], i + 1
        if i and ranges[i - 1][1] == begin:
            begin, low = ranges[i - 1][0], i - 1
        ranges[low:high] = [(begin, end)]


def round_up(nbytes: int, multiple: int) -> int:
    """The least multiple of `multiple` that is at least `nbytes`."""
    return -(-nbytes // multiple) * multiple
