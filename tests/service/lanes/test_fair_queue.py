"""The fair queue: nobody starves, nothing idles, and who asks for little waits little."""

from __future__ import annotations

import itertools
from collections import Counter
from dataclasses import dataclass

import pytest
from hypothesis import given
from hypothesis import strategies as st

from warpcall_service.lanes.fair_queue import CALL_BYTES, SECOND_BYTES, FairQueue, QueueEntry

USERS = "abcd"
MAX_BYTES = 8 << 20
users = st.sampled_from(USERS)
sizes = st.integers(0, MAX_BYTES)
arrivals = st.lists(st.tuples(users, sizes), min_size=1, max_size=60)


def serve_one(queue: FairQueue[str]) -> QueueEntry[str] | None:
    waiting = queue.peek()
    if waiting is not None:
        queue.dequeue(waiting)
    return waiting


def drain(queue: FairQueue[str]) -> list[QueueEntry[str]]:
    """All that wait, in the order in which they are served."""
    served = []
    while waiting := serve_one(queue):
        served.append(waiting)
    return served


@given(arrivals)
def test_what_was_enqueued_is_served_once_each_user_in_their_own_order(
    came: list[tuple[str, int]],
) -> None:
    queue: FairQueue[str] = FairQueue()
    pushed = [queue.enqueue(user, nbytes, "") for user, nbytes in came]

    served = drain(queue)

    assert queue.count == queue.nbytes == 0
    assert {id(w) for w in served} == {id(w) for w in pushed}
    for user in USERS:
        assert [w for w in served if w.user == user] == [w for w in pushed if w.user == user]


@dataclass
class Model:
    """Start-time fair queueing as the paper writes it: tags are given on arrival."""

    now: int = 0

    def __post_init__(self) -> None:
        self.ends: Counter[str] = Counter()
        self.waiting: list[tuple[int, int, int, str]] = []

    def push(self, user: str, nbytes: int, number: int) -> None:
        begin = max(self.now, self.ends[user])
        self.ends[user] = begin + nbytes + CALL_BYTES
        self.waiting.append((begin, nbytes, number, user))

    def serve(self) -> int:
        first = min(self.waiting)
        self.waiting.remove(first)
        self.now = first[0]
        return first[2]


@given(st.lists(st.tuples(users, sizes) | st.none(), max_size=80))
def test_the_order_is_that_of_virtual_start_times(steps: list[tuple[str, int] | None]) -> None:
    queue: FairQueue[int] = FairQueue()
    model = Model()

    for number, step in enumerate(steps):
        if step is not None:
            queue.enqueue(*step, number)
            model.push(*step, number)
        elif model.waiting:
            waiting = queue.peek()
            assert waiting is not None
            queue.dequeue(waiting)
            assert waiting.item == model.serve()


@given(st.lists(st.tuples(users, sizes) | st.none(), max_size=80))
def test_it_has_somebody_to_serve_as_long_as_anybody_waits(
    steps: list[tuple[str, int] | None],
) -> None:
    queue: FairQueue[str] = FairQueue()
    waiting = 0

    for step in steps:
        if step is not None:
            queue.enqueue(*step, "")
            waiting += 1
        else:
            assert (serve_one(queue) is not None) == (waiting > 0)
            waiting = max(0, waiting - 1)
        assert queue.count == waiting


@given(
    flood=st.lists(sizes, min_size=1, max_size=40),
    begun=st.integers(0, 40),
    nbytes=sizes,
)
def test_a_single_call_waits_for_no_more_than_one_of_a_flood(
    flood: list[int], begun: int, nbytes: int
) -> None:
    queue: FairQueue[str] = FairQueue()
    for size in flood:
        queue.enqueue("a", size, "")
    for _ in range(min(begun, len(flood) - 1)):
        serve_one(queue)
    single = queue.enqueue("b", nbytes, "")

    served = drain(queue)

    assert served.index(single) <= 1


@given(
    sizes_a=st.lists(sizes, min_size=1, max_size=30),
    size_b=sizes,
    rounds=st.integers(1, 120),
)
def test_users_who_always_wait_get_the_same_but_for_one_call_each(
    sizes_a: list[int], size_b: int, rounds: int
) -> None:
    queue: FairQueue[str] = FairQueue()
    given_to: Counter[str] = Counter()
    steps = iter(range(10**6))
    queue.enqueue("a", sizes_a[0], "")
    queue.enqueue("b", size_b, "")

    for _ in range(rounds):
        waiting = serve_one(queue)
        assert waiting is not None
        given_to[waiting.user] += waiting.nbytes + CALL_BYTES
        again = sizes_a[next(steps) % len(sizes_a)] if waiting.user == "a" else size_b
        queue.enqueue(waiting.user, again, "")
        assert abs(given_to["a"] - given_to["b"]) <= 2 * (MAX_BYTES + CALL_BYTES)


@given(
    patient=sizes,
    others=st.lists(st.tuples(st.sampled_from("bcd"), sizes), min_size=1, max_size=40),
)
def test_nobody_starves_however_many_others_keep_coming(
    patient: int, others: list[tuple[str, int]]
) -> None:
    queue: FairQueue[str] = FairQueue()
    queue.charge("a", MAX_BYTES)  # the most that a user may owe
    ours = queue.enqueue("a", patient, "")
    bound = 3 * (MAX_BYTES // CALL_BYTES + 2)  # three others catch up in calls as small as can be

    for served, (user, nbytes) in enumerate(itertools.cycle(others)):
        assert served <= bound
        queue.enqueue(user, nbytes, "")
        if serve_one(queue) is ours:
            break


@given(arrivals, st.data())
def test_entries_that_are_removed_cost_their_user_nothing(
    came: list[tuple[str, int]], data: st.DataObject
) -> None:
    with_removals: FairQueue[int] = FairQueue()
    without: FairQueue[int] = FairQueue()
    leaves = data.draw(st.sets(st.integers(0, len(came) - 1)))
    for number, (user, nbytes) in enumerate(came):
        waiting = with_removals.enqueue(user, nbytes, number)
        if number in leaves:
            with_removals.remove(waiting)
            with_removals.remove(waiting)
        else:
            without.enqueue(user, nbytes, number)

    orders = []
    for queue in (with_removals, without):
        order = []
        while (waiting_now := queue.peek()) is not None:
            queue.dequeue(waiting_now)
            order.append(waiting_now.item)
        orders.append(order)

    assert orders[0] == orders[1]


def test_entries_that_may_not_run_are_skipped_and_keep_their_place() -> None:
    queue: FairQueue[str] = FairQueue()
    queue.enqueue("a", 1, "large user")
    queue.enqueue("b", 2, "other")

    passed = queue.peek(lambda waiting: waiting.user != "a")
    nobody = queue.peek(lambda waiting: False)
    first = queue.peek()

    assert passed is not None
    assert passed.item == "other"
    assert nobody is None
    assert first is not None
    assert first.item == "large user"


def test_urgent_ones_go_first_in_their_own_order_and_are_not_charged() -> None:
    queue: FairQueue[str] = FairQueue()
    queue.enqueue("a", 1, "a")
    for item in ("one", "two"):
        queue.enqueue("a", MAX_BYTES, item, urgent=True)
    queue.enqueue("b", 2, "b")

    assert [w.item for w in drain(queue)] == ["one", "two", "a", "b"]


def test_after_a_rest_nobody_owes_anything() -> None:
    queue: FairQueue[str] = FairQueue()
    queue.charge("a", MAX_BYTES)
    queue.reset()
    queue.enqueue("b", 2, "b")
    queue.enqueue("a", 1, "a")

    assert [w.item for w in drain(queue)] == ["a", "b"]


def test_a_user_whose_call_took_long_waits_for_as_much_of_others() -> None:
    queue: FairQueue[str] = FairQueue()
    for _ in range(3):
        queue.enqueue("a", 0, "")
    assert serve_one(queue) is not None
    queue.charge_seconds("a", 40 * CALL_BYTES / SECOND_BYTES)
    for _ in range(60):
        queue.enqueue("b", 0, "")

    served = "".join(one.user for one in drain(queue))

    assert served.index("a") == pytest.approx(41, abs=1)
    assert served.count("a") == 2


def test_a_charge_is_forgotten_once_its_user_was_served_while_nobody_else_waited() -> None:
    queue: FairQueue[str] = FairQueue()
    queue.charge("a", 0)
    queue.charge_seconds("a", 3.0)
    queue.charge("a", 0)
    queue.enqueue("a", 0, "")
    queue.enqueue("b", 0, "")
    queue.enqueue("b", 0, "")

    assert [one.user for one in drain(queue)] in (["b", "a", "b"], ["a", "b", "b"])
