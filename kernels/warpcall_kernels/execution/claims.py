"""Holds what another process says of its samples on a CPU against our clock.

Our clock runs from the moment at which the process is resumed until its answer is here. A call takes
at least as long as the threads of the process computed until they stood still. What an exchange of
messages takes, and the time for which others used the machine, is taken off.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch

from warpcall_kernels.execution.process import RemoteProcess

DISAGREEMENT = 0.03  # between a claim and our clock, above which a row is invalid
SLACK_US = 150.0  # of our clock around one sample, besides
BLOCK_SLACK_US = 60.0  # of our clock around one block on a GPU
MOST_EXCHANGE_US = 400.0  # in which a process is resumed, answers a request for nothing, and stops
MOST_AGREE = 0.25  # quantile of the disagreements above which a row is invalid
UNCONFIRMED = 0.3  # share of a sample that the slack may be

Answer = dict[str, Any]


class ThreadTimes(NamedTuple):
    """Times of a thread so far, in us; 0 where the kernel does not count them."""

    ran_us: float
    waited_us: float


def times_of(pid: int | str, thread: int) -> ThreadTimes:
    """The times of one thread of a process."""
    with contextlib.suppress(OSError, IndexError, ValueError):  # not every kernel has this file
        ran, waited, *_ = Path(f"/proc/{pid}/task/{thread}/schedstat").read_text().split()
        return ThreadTimes(int(ran) / 1000, int(waited) / 1000)
    return ThreadTimes(0.0, 0.0)


class Usage(NamedTuple):
    """Times so far of what takes part in a sample on a CPU.

    Attributes:
        ours_us: for which the thread that measures has waited for a CPU, in us.
        main: of the main thread of the process with uploaded code.
        all_us: that all threads of all its processes ran, in us.
    """

    ours_us: float
    main: ThreadTimes
    all_us: float


class Late(NamedTuple):
    """How much later an answer came because others used the machine, in us.

    Attributes:
        at_least: what the upload cannot have caused. Time that it used itself is not part of it: one
            of its threads could let another, or ours, wait while a third one computes.
        at_most: all the time for which our thread and its main thread waited for a CPU.
    """

    at_least: float
    at_most: float


def late(before: Usage, answered: tuple[float, float], stopped: Usage) -> Late:
    """How much later an answer came because others used the machine.

    Args:
        before: when the request was sent.
        answered: for how long our thread and its main thread had waited when the answer was here.
        stopped: when no thread of the upload ran any more. Only then the kernel has counted all.
    """
    ran_us = stopped.all_us - before.all_us
    others_us = max(0.0, ran_us - (stopped.main.ran_us - before.main.ran_us))
    ours_us = answered[0] - before.ours_us
    main_us = answered[1] - before.main.waited_us
    return Late(max(0.0, ours_us - ran_us) + max(0.0, main_us - others_us), ours_us + main_us)


def longer_us(blocks_us: Sequence[float], calls: int, claim_us: float) -> float:
    """The time of a call on a GPU by our clock if it is longer than a process says, else 0.

    Args:
        blocks_us: the time of a call in each block without pauses, by our clock.
        calls: in a block.
    """
    least_us = min(blocks_us, default=0.0)
    allowed_us = claim_us * (1 + DISAGREEMENT) + BLOCK_SLACK_US / calls
    return least_us if least_us > allowed_us else 0.0


class _Sample(NamedTuple):
    """A sample, or an exchange of messages for nothing, by our clock in us.

    Attributes:
        spent_us: until the answer was here.
        least_us: without all that may have another reason than the upload.
        most_us: without what must have another reason.
    """

    spent_us: float
    least_us: float
    most_us: float


class CpuClaims:
    """The samples of one implementation in another process."""

    def __init__(self, process: RemoteProcess) -> None:
        self._process = process
        self._exchange_us = 0.0  # of the next sample
        self._sample = _Sample(0.0, 0.0, 0.0)  # the last one, with its exchange
        # Our times of calls less what the process says of them:
        self._least_over_us: list[float] = []
        self._most_over_us: list[float] = []
        self._claims_us: list[float] = []
        self._exchanges_us: list[float] = []

    def measure_exchange(self, ping: Callable[[], Answer]) -> None:
        """Measure how long a request for nothing takes, for the next sample."""
        self._process.stop()
        self._timed(ping)
        self._exchange_us = min(self._sample.most_us, MOST_EXCHANGE_US)

    def run(self, sample: Callable[[], Answer]) -> Answer:
        """Let the process take a sample while our clock runs; returns its answer."""
        return self._timed(sample)

    def _timed(self, ask: Callable[[], Answer]) -> Answer:
        before = self._usage()
        begin = time.perf_counter_ns()
        answer = ask()
        spent_us = (time.perf_counter_ns() - begin) / 1000
        answered = self._waiting()
        self._process.stop()
        stopped = self._usage()
        # Threads may compute after the answer, until they stand still. An honest implementation
        # computes in as many threads as torch has, and is done when it answers.
        threads_us = (stopped.all_us - before.all_us) / torch.get_num_threads()
        ran_us = max(stopped.main.ran_us - before.main.ran_us, threads_us)
        late_us = late(before, answered, stopped)
        self._sample = _Sample(
            spent_us,
            least_us=max(spent_us - late_us.at_most, ran_us),
            most_us=max(spent_us - late_us.at_least, ran_us),
        )
        return answer

    def time_us(self, claim_us: float, calls: int) -> float:
        """The time of a call in the last sample, as far as our clock agrees with a claim.

        Args:
            claim_us: what the process says.
            calls: in the sample.
        """
        least_us = (self._sample.least_us - self._exchange_us) / calls
        most_us = (self._sample.most_us - self._exchange_us) / calls
        self._least_over_us.append(least_us - claim_us)
        self._most_over_us.append(most_us - claim_us)
        self._claims_us.append(claim_us)
        self._exchanges_us.append(self._exchange_us)
        if most_us - claim_us > self._allowed_us(claim_us, calls):
            return most_us
        return min(claim_us, self._sample.spent_us / calls)

    def disagreement(self, median_us: float, calls: int) -> tuple[float, float] | None:
        """What the process says, and the time by our clock, if these disagree in most samples.

        Those of an honest process agree in more than a few samples. All waiting for a CPU is taken
        off, so that the row of an honest process is not invalid because others use the machine.
        """
        if not self._claims_us or self._is_short(median_us, calls):
            return None
        over_us = float(np.quantile(self._least_over_us, MOST_AGREE))
        claim_us = float(np.median(self._claims_us))
        if over_us <= self._allowed_us(claim_us, calls):
            return None
        return claim_us, claim_us + over_us

    def hidden_share(self, median_us: float, calls: int) -> float:
        """How much longer calls may take than they seem to, as a share."""
        hidden_us = SLACK_US + float(np.median(self._exchanges_us))
        return DISAGREEMENT + hidden_us / (median_us * calls)

    def is_confirmed(self, median_us: float, calls: int) -> bool:
        """Whether our clock confirms the times of the calls.

        They must take long enough, and in half of the samples no waiting may matter that the upload
        can have caused.
        """
        over_us = float(np.median(self._most_over_us))
        agrees = over_us <= self._allowed_us(float(np.median(self._claims_us)), calls)
        return agrees and not self._is_short(median_us, calls)

    def _allowed_us(self, claim_us: float, calls: int) -> float:
        return DISAGREEMENT * claim_us + SLACK_US / calls

    def _is_short(self, median_us: float, calls: int) -> bool:
        return UNCONFIRMED * median_us * calls < SLACK_US

    def _waiting(self) -> tuple[float, float]:
        """How long our thread and the main thread of the process have waited for a CPU so far."""
        pid = self._process.peer.pid
        ours = times_of("self", threading.get_native_id())
        return ours.waited_us, times_of(pid, pid).waited_us

    def _usage(self) -> Usage:
        peer = self._process.peer
        ours_us, waited_us = self._waiting()
        main_us = times_of(peer.pid, peer.pid).ran_us
        return Usage(ours_us, ThreadTimes(main_us, waited_us), peer.cpu_us())
