"""Which jobs have lost their server, found without comparing the clocks of two machines.

A server that runs a job counts a number up in the job's row every so often: the heartbeat. Every
other server looks at these numbers equally often. A job is an orphan if its number was the same in
OBSERVATIONS looks that followed the first one. Looks are counted, and not seconds, because a pause of the
observer or of the database must not count against a server that could not write meanwhile: after
such a pause that server still has all the looks that are left.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

OBSERVATIONS = 6  # in one lease; a living server writes about as many heartbeats


@dataclass(frozen=True, slots=True)
class Heartbeat:
    """What a server last said of a job that it runs.

    Attributes:
        fence: which claim of the job that server has.
        ran_ms: the heartbeat: how long the run had lasted by that server's own monotonic clock.
    """

    fence: int
    ran_ms: int


class OrphanDetector:
    """What was seen of running jobs, look by look."""

    def __init__(self) -> None:
        self._seen: dict[int, tuple[Heartbeat, int]] = {}  # by the job's number, with looks since

    def observe(self, heartbeats: Mapping[int, Heartbeat]) -> dict[int, Heartbeat]:
        """Note what there is now, and return the jobs that are orphans.

        Args:
            heartbeats: of all running jobs but the observer's own, by the job's number.
        """
        seen = {}
        for number, heartbeat in heartbeats.items():
            before, looks = self._seen.get(number, (None, 0))
            seen[number] = heartbeat, looks + 1 if heartbeat == before else 0
        self._seen = seen
        return {
            number: heartbeat
            for number, (heartbeat, looks) in seen.items()
            if looks >= OBSERVATIONS
        }
