"""Detects jobs whose server is lost, without comparing the clocks of two machines.

A server that runs a job increases a number in the job's row at regular intervals: the heartbeat.
Every other server reads these numbers equally often. A job is an orphan if its heartbeat was the
same in OBSERVATIONS reads after the first one. The detector counts reads and not seconds, because a
pause of the reader or of the database must not count against a server that could not write in that
time. After such a pause, the server still has all the remaining reads to write its next heartbeat.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

OBSERVATIONS = 6  # in one lease; a live server writes about as many heartbeats in that time


@dataclass(frozen=True, slots=True)
class Heartbeat:
    """The last heartbeat of a job.

    Attributes:
        fence: number of the claim under which the job runs.
        ran_ms: how long the run had lasted, by its server's monotonic clock.
    """

    fence: int
    ran_ms: int


class OrphanDetector:
    """Remembers the heartbeats of running jobs between reads."""

    def __init__(self) -> None:
        self._seen: dict[
            int, tuple[Heartbeat, int]
        ] = {}  # by job: the heartbeat, and how often it was the same

    def observe(self, heartbeats: Mapping[int, Heartbeat]) -> dict[int, Heartbeat]:
        """Compare with the previous call, and return the orphans with their last heartbeats.

        Args:
            heartbeats: of all running jobs except this server's own, by the job's number.
        """
        seen = {}
        for number, heartbeat in heartbeats.items():
            before, unchanged = self._seen.get(number, (None, 0))
            seen[number] = heartbeat, unchanged + 1 if heartbeat == before else 0
        self._seen = seen
        return {
            number: heartbeat
            for number, (heartbeat, unchanged) in seen.items()
            if unchanged >= OBSERVATIONS
        }
