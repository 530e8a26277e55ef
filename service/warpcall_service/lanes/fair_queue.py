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
class QueueEntry(Generic[T]):
    """One that waits.

    Attributes:
        item: what waits.
        nbytes: what it costs, beside CALL_BYTES.
        arrival: virtual time when it came.
        sequence: in order of coming.
        urgent: served before those who are not, and free of charge.
    """

    item: T
    user: str
    nbytes: int
    arrival: int
    sequence: int
    urgent: bool


class FairQueue(Generic[T]):
    """Who waits, in the order in which users deserve it.

    What need not wait passes by `charge`, so that a user who found everything free a moment ago is
    not taken for one who comes anew.

    Attributes:
        count: how many wait.
    """

    def __init__(self) -> None:
        self._urgent: deque[QueueEntry[T]] = deque()
        self._user_queues: dict[str, deque[QueueEntry[T]]] = {}  # of users who wait, none empty
        self._finish_tags: dict[str, int] = {}  # in virtual time, of what each user was served last
        self._virtual_time = 0
        self.count = 0
        self._sequence = itertools.count()

    @property
    def nbytes(self) -> int:
        """Bytes that all wait for together."""
        return sum(entry.nbytes for queue in self._queues() for entry in queue)

    def nbytes_of(self, user: str) -> int:
        """Bytes that this user waits for."""
        return sum(
            entry.nbytes for queue in self._queues() for entry in queue if entry.user == user
        )

    def enqueue(self, user: str, nbytes: int, item: T, *, urgent: bool = False) -> QueueEntry[T]:
        """Let `item` wait; urgent ones among themselves are first come, first served."""
        entry = QueueEntry(item, user, nbytes, self._virtual_time, next(self._sequence), urgent)
        if urgent:
            self._urgent.append(entry)
        else:
            self._user_queues.setdefault(user, deque()).append(entry)
        self.count += 1
        return entry

    def peek(self, eligible: Callable[[QueueEntry[T]], bool] | None = None) -> QueueEntry[T] | None:
        """Whose turn it is, without serving it.

        Args:
            eligible: asked of the head of each line that is not urgent; who may not is passed over.
        """
        if not self.count:
            return None
        if self._urgent:
            return self._urgent[0]
        heads = [queue[0] for queue in self._user_queues.values()]
        if eligible is not None:
            heads = [head for head in heads if eligible(head)]
        return min(heads, key=self._order, default=None)

    def dequeue(self, entry: QueueEntry[T]) -> None:
        """Take out one that `peek` gave, and charge its user."""
        self.remove(entry)
        if not entry.urgent:
            self.charge(entry.user, entry.nbytes, entry.arrival)

    def remove(self, entry: QueueEntry[T]) -> None:
        """Take out one that no longer waits; it costs nothing. Again is harmless."""
        queue = self._urgent if entry.urgent else self._user_queues.get(entry.user)
        if queue is None or entry not in queue:
            return
        queue.remove(entry)
        self.count -= 1
        if not queue and not entry.urgent:
            del self._user_queues[entry.user]

    def charge(self, user: str, nbytes: int, arrival: int | None = None) -> None:
        """`user` is served; without having waited, unless he did `arrival` a virtual time."""
        start = self._virtual_time if arrival is None else arrival
        finish = self._finish_tags.get(user)
        if finish is not None:
            start = max(start, finish)
            self._virtual_time = max(start, self._virtual_time)
        self._finish_tags[user] = start + nbytes + CALL_BYTES

    def clear(self) -> list[T]:
        """Take out all."""
        items = [entry.item for queue in self._queues() for entry in queue]
        self._urgent.clear()
        self._user_queues.clear()
        self.count = 0
        return items

    def reset(self) -> None:
        """Nothing waits and nothing is under way: who was served before owes nothing."""
        if self._finish_tags:
            self._finish_tags.clear()

    def _queues(self) -> Iterable[deque[QueueEntry[T]]]:
        return (self._urgent, *self._user_queues.values())

    def _start_tag(self, entry: QueueEntry[T]) -> int:
        return max(entry.arrival, self._finish_tags.get(entry.user, 0))

    def _order(self, entry: QueueEntry[T]) -> tuple[int, int, int]:
        """Of two that begin at once the smaller is served first: the larger waits little for it."""
        return self._start_tag(entry), entry.nbytes, entry.sequence
