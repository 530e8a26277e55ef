"""When the process that speaks HTTP and a lane's worker wait for each other without sleeping.

A process that sleeps is woken late, and runs its next steps slowly. How much that costs depends on
the machine. With few CPUs the processes wait for short calls: on a virtual machine with 2 CPUs, waking
a process takes some 25 us, four times a call, and one client's calls of 4 KB take 0.11 instead of 0.28
ms. With more CPUs they wait for calls whose inputs are copied to a GPU: on a machine with an H200,
calls of 1 MB took 0.60 instead of 0.75 ms. Calls of 4 KB gained 5 to 17 % on one with an H100, for 2.7
times the worker's CPU time.
"""

from __future__ import annotations

import asyncio
import os
import time

LONE_CALLS = 32  # in a row came one at a time; so the next one is expected to do so, too
CPUS = 4  # with fewer, other processes need them
# Longest time for which the event loop does not sleep while a call is on the lane.
AWAKE_S = 1e-3
FEW_CPUS_AWAKE_S = 150e-6


def has_few_cpus() -> bool:
    """Whether this process may use fewer CPUs than CPUS."""
    return len(os.sched_getaffinity(0)) < CPUS


class LoneCalls:
    """Keeps the event loop from sleeping while a call is on the lane, if calls come one at a time.

    Meanwhile the event loop does all else that there is to do.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._few_cpus = has_few_cpus()
        self._awake_s = FEW_CPUS_AWAKE_S if self._few_cpus else AWAKE_S
        self._in_row = 0
        self._has_copied = False
        self._awake_until = 0.0
        self._is_awake = False

    def sent(self, *, is_short: bool, beside_others: bool) -> None:
        """A call was sent to the worker process.

        Args:
            is_short: calls took at most `lane_call.SHORT_CALL_S` on the device lately.
            beside_others: the process has others, which it has not answered.
        """
        if beside_others:
            self._in_row = 0
            self._awake_until = 0.0
            return
        self._in_row += 1
        waits = is_short if self._few_cpus else self._has_copied
        if waits and self._in_row >= LONE_CALLS:
            self._awake_until = time.monotonic() + self._awake_s
            if not self._is_awake:
                self._stay_awake()

    def answered(self, *, has_copied: bool) -> None:
        """The worker process has answered a call; `has_copied` if it copied the inputs to a GPU."""
        self._has_copied = has_copied
        self._awake_until = 0.0

    def _stay_awake(self) -> None:
        self._is_awake = time.monotonic() < self._awake_until
        if self._is_awake:
            self._loop.call_soon(self._stay_awake)
