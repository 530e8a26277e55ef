"""A queue that is fair to users, however much one of them asks for: start-time fair queueing.

Each user has a queue, first in, first out. Its head has a start tag in virtual time: the finish tag
of the user's last call, or the virtual time at which the head came if that is later. Its finish tag
is its start tag plus its cost. The head with the smallest start tag is served next, and virtual
time becomes that start tag. A user who sends very many calls moves their own start tags into the
future. A user with a single call gets a start tag of now, so it waits for calls under way, but not
for calls that others have queued. Nobody starves: whatever comes later, the head of every queue is
reached. (Goyal, Vin and Cheng, SIGCOMM 1996.)
"""

from __future__ import annotations

import itertools
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Generic, TypeVar

# The cost of a call beside its bytes: its overhead in a lane takes as long as copying this many.
CALL_BYTES = 256 << 10
# The cost of a second of compilation: a lane copies about as many bytes in that time.
SECOND_BYTES = 10 << 30

T = TypeVar("T")


@dataclass(eq=False, slots=True)
class QueueEntry(Generic[T]):
    """One item that waits in a queue.

    Attributes:
        nbytes: its cost, beside CALL_BYTES.
        arrival: virtual time at which it came.
        sequence: counts the items in the order in which they came.
        urgent: it is served before items that are not urgent, and its user is not charged.
    """

    item: T
    user: str
    nbytes: int
    arrival: int
    sequence: int
    urgent: bool


class FairQueue(Generic[T]):
    """A fair queue of items of users.

    An item that need not wait is counted with `charge`. Otherwise a user whose items never waited
    would look like a user who comes for the first time.

    Attributes:
        count: the number of items that wait.
    """

    def __init__(self) -> None:
        self._urgent: deque[QueueEntry[T]] = deque()
        self._user_queues: dict[str, deque[QueueEntry[T]]] = {}  # none is empty
        self._finish_tags: dict[str, int] = {}  # of the item of each user that was served last
        self._virtual_time = 0
        self.count = 0
        self._sequence = itertools.count()

    @property
    def nbytes(self) -> int:
        """Bytes of all items that wait."""
        return sum(entry.nbytes for queue in self._queues() for entry in queue)

    def nbytes_of(self, user: str) -> int:
        """Bytes of the items of this user that wait."""
        return sum(
            entry.nbytes for queue in self._queues() for entry in queue if entry.user == user
        )

    def count_of(self, user: str) -> int:
        """The number of items of this user that wait and are not urgent."""
        return len(self._user_queues.get(user, ()))

    def enqueue(self, user: str, nbytes: int, item: T, *, urgent: bool = False) -> QueueEntry[T]:
        """Let `item` wait; urgent items are served in the order in which they came."""
        entry = QueueEntry(item, user, nbytes, self._virtual_time, next(self._sequence), urgent)
        if urgent:
            self._urgent.append(entry)
        else:
            self._user_queues.setdefault(user, deque()).append(entry)
        self.count += 1
        return entry

    def peek(self, eligible: Callable[[QueueEntry[T]], bool] | None = None) -> QueueEntry[T] | None:
        """Return the entry to serve next, without serving it.

        Args:
            eligible: heads of user queues for which it is False are passed over.
        """
        if not self.count:
            return None
        if self._urgent:
            return self._urgent[0]
        heads = [queue[0] for queue in self._user_queues.values()]
        if eligible is None and len(heads) == 1:
            return heads[0]
        if eligible is not None:
            heads = [head for head in heads if eligible(head)]
        return min(heads, key=self._order, default=None)

    def dequeue(self, entry: QueueEntry[T]) -> None:
        """Take out an entry that `peek` returned, and charge its user."""
        self.remove(entry)
        if not entry.urgent:
            self.charge(entry.user, entry.nbytes, entry.arrival)

    def remove(self, entry: QueueEntry[T]) -> None:
        """Take out an entry that no longer waits, without charge. The operation is idempotent."""
        queue = self._urgent if entry.urgent else self._user_queues.get(entry.user)
        if queue is None or entry not in queue:
            return
        queue.remove(entry)
        self.count -= 1
        if not queue and not entry.urgent:
            del self._user_queues[entry.user]

    def charge(self, user: str, nbytes: int, arrival: int | None = None) -> None:
        """Charge `user` for a served item, which came at the virtual time `arrival`, or now."""
        start = self._virtual_time if arrival is None else arrival
        finish = self._finish_tags.get(user)
        if finish is not None:
            start = max(start, finish)
            self._virtual_time = max(start, self._virtual_time)
        self._finish_tags[user] = start + nbytes + CALL_BYTES

    def charge_seconds(self, user: str, seconds: float) -> None:
        """Charge `user` for a served item that took so much longer than its bytes say."""
        finish = self._finish_tags.get(user, self._virtual_time)
        self._finish_tags[user] = finish + int(seconds * SECOND_BYTES)

    def clear(self) -> list[T]:
        """Take out all entries, and return their items."""
        items = [entry.item for queue in self._queues() for entry in queue]
        self._urgent.clear()
        self._user_queues.clear()
        self.count = 0
        return items

    def items(self) -> list[T]:
        """All items that wait."""
        return [entry.item for queue in self._queues() for entry in queue]

    def reset(self) -> None:
        """Forget what users were charged, when nothing waits and nothing is under way."""
        if self._finish_tags:
            self._finish_tags.clear()

    def _queues(self) -> Iterable[deque[QueueEntry[T]]]:
        return (self._urgent, *self._user_queues.values())

    def _start_tag(self, entry: QueueEntry[T]) -> int:
        return max(entry.arrival, self._finish_tags.get(entry.user, 0))

    def _order(self, entry: QueueEntry[T]) -> tuple[int, int, int]:
        """Of two equal start tags the smaller item is first: the larger waits little for it."""
        return self._start_tag(entry), entry.nbytes, entry.sequence
