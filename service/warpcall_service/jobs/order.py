"""In which order jobs run: start-time fair queueing of users, as `fair.py` does it for calls.

Here the state lies in the database, so that a restart changes nothing: each job has the virtual time
when it came, each user the one when what he was served last ends, and the clock is the begin of the
job that was begun last. Priorities are classes above that: of two, the higher one is emptied first.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Entry:
    """A job that waits; `priority` 0 is served before 1, the rest is as in its row in the database."""

    number: int
    user: str
    priority: int
    since_us: int
    cost_us: int


@dataclass(frozen=True, slots=True)
class Turn:
    """A job and the virtual time at which it begins."""

    entry: Entry
    begin_us: int

    @property
    def end_us(self) -> int:
        """Where, in virtual time, its user has been served up to."""
        return self.begin_us + self.entry.cost_us


def in_order(entries: Iterable[Entry], ends_us: Mapping[str, int]) -> Iterator[Turn]:
    """All jobs that wait, the one to begin next first.

    Args:
        ends_us: where what each user was served last ends, in virtual time.
    """
    ends = dict(ends_us)
    lines: dict[int, dict[str, list[Entry]]] = {}
    for entry in sorted(entries, key=lambda entry: -entry.number):
        lines.setdefault(entry.priority, {}).setdefault(entry.user, []).append(entry)
    for priority in sorted(lines):
        heads = [_head(line, ends) for line in lines[priority].values()]
        heapq.heapify(heads)
        while heads:
            begin_us, _, entry = heads[0]
            turn = Turn(entry, begin_us)
            yield turn
            ends[entry.user] = turn.end_us
            line = lines[priority][entry.user]
            line.pop()
            if line:
                heapq.heapreplace(heads, _head(line, ends))
            else:
                heapq.heappop(heads)


def forecast(estimates_s: Sequence[float], free_in_s: Iterable[float]) -> list[tuple[float, float]]:
    """When jobs in this order begin and end, in seconds from now.

    Args:
        estimates_s: what each is thought to take.
        free_in_s: for each device, when what runs there is thought to end.
    """
    free = list(free_in_s) or [0.0]
    heapq.heapify(free)
    times = []
    for estimate_s in estimates_s:
        begin_s = free[0]
        times.append((begin_s, begin_s + estimate_s))
        heapq.heapreplace(free, begin_s + estimate_s)
    return times


def _head(line: list[Entry], ends: Mapping[str, int]) -> tuple[int, int, Entry]:
    entry = line[-1]
    return max(entry.since_us, ends.get(entry.user, 0)), entry.number, entry
