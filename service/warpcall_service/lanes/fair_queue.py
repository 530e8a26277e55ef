"""A queue that is fair to users, however much one of them asks for: start-time fair queueing.

Each user has a line of his own, first come, first served. What is at its head begins, in virtual
time, where the user's last one ended, or now if that is past; it ends as much later as it costs. The
earliest begin is served next, and virtual time is the begin of what was served last. Who floods
pushes his own begins into the future; who comes with a single call begins now, and waits for what is
under way and not for what the others have queued. Nobody starves: every line moves on in virtual
time, whatever comes after. (Goyal, Vin and Cheng, SIGCOMM 1996.)
"""

from __future__ import annotations

import itertools
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Generic, TypeVar

# What a call costs beside its bytes: on its way through a lane it takes as long as copying this.
CALL_BYTES = 256 << 10

T = TypeVar("T")


@dataclass(eq=False, slots=True)
class Waiting(Generic[T]):
    """One that waits.

    Attributes:
        item: what waits.
        nbytes: what it costs, beside CALL_BYTES.
        since: virtual time when it came.
        number: in order of coming.
        urgent: served before those who are not, and free of charge.
    """

    item: T
    user: str
    nbytes: int
    since: int
    number: int
    urgent: bool


class FairQueue(Generic[T]):
    """Who waits, in the order in which users deserve it.

    What need not wait passes by `charge`, so that a user who found everything free a moment ago is
    not taken for one who comes anew.

    Attributes:
        count: how many wait.
    """

    def __init__(self) -> None:
        self._urgent: deque[Waiting[T]] = deque()
        self._lines: dict[str, deque[Waiting[T]]] = {}  # of users who wait, none empty
        self._ends: dict[str, int] = {}  # in virtual time, of what each user was served last
        self._now = 0
        self.count = 0
        self._numbers = itertools.count()

    @property
    def nbytes(self) -> int:
        """Bytes that all wait for together."""
        return sum(waiting.nbytes for line in self._all() for waiting in line)

    def nbytes_of(self, user: str) -> int:
        """Bytes that this user waits for."""
        return sum(w.nbytes for line in self._all() for w in line if w.user == user)

    def push(self, user: str, nbytes: int, item: T, *, urgent: bool = False) -> Waiting[T]:
        """Let `item` wait; urgent ones among themselves are first come, first served."""
        waiting = Waiting(item, user, nbytes, self._now, next(self._numbers), urgent)
        if urgent:
            self._urgent.append(waiting)
        else:
            self._lines.setdefault(user, deque()).append(waiting)
        self.count += 1
        return waiting

    def first(self, may: Callable[[Waiting[T]], bool] | None = None) -> Waiting[T] | None:
        """Whose turn it is, without serving it.

        Args:
            may: asked of the head of each line that is not urgent; who may not is passed over.
        """
        if not self.count:
            return None
        if self._urgent:
            return self._urgent[0]
        heads = [line[0] for line in self._lines.values()]
        if may is not None:
            heads = [head for head in heads if may(head)]
        return min(heads, key=self._order, default=None)

    def serve(self, waiting: Waiting[T]) -> None:
        """Take out one that `first` gave, and charge its user."""
        self.withdraw(waiting)
        if not waiting.urgent:
            self.charge(waiting.user, waiting.nbytes, waiting.since)

    def withdraw(self, waiting: Waiting[T]) -> None:
        """Take out one that no longer waits; it costs nothing. Again is harmless."""
        line = self._urgent if waiting.urgent else self._lines.get(waiting.user)
        if line is None or waiting not in line:
            return
        line.remove(waiting)
        self.count -= 1
        if not line and not waiting.urgent:
            del self._lines[waiting.user]

    def charge(self, user: str, nbytes: int, since: int | None = None) -> None:
        """`user` is served; without having waited, unless he did `since` a virtual time."""
        begin = self._now if since is None else since
        end = self._ends.get(user)
        if end is not None:
            begin = max(begin, end)
            self._now = max(begin, self._now)
        self._ends[user] = begin + nbytes + CALL_BYTES

    def clear(self) -> list[T]:
        """Take out all."""
        items = [waiting.item for line in self._all() for waiting in line]
        self._urgent.clear()
        self._lines.clear()
        self.count = 0
        return items

    def rest(self) -> None:
        """Nothing waits and nothing is under way: who was served before owes nothing."""
        if self._ends:
            self._ends.clear()

    def _all(self) -> Iterable[deque[Waiting[T]]]:
        return (self._urgent, *self._lines.values())

    def _begin(self, waiting: Waiting[T]) -> int:
        return max(waiting.since, self._ends.get(waiting.user, 0))

    def _order(self, waiting: Waiting[T]) -> tuple[int, int, int]:
        """Of two that begin at once the smaller is served first: the larger waits little for it."""
        return self._begin(waiting), waiting.nbytes, waiting.number
