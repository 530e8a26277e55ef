"""The types of monitors: measurements that the server repeats, and the steps that it finds in them.

The SDK returns these types, and the server builds its answers and its OpenAPI from them. Times of
day are texts as in RFC 3339, UTC. Every other quantity has its unit in its name.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

from warpcall.jobs import Payload, Titled

MonitorState = Literal["active", "paused", "stopped"]
"""Whether a monitor measures: "stopped" means that its user is disabled."""

DeliveryState = Literal["waiting", "sending", "delivered", "failed"]
"""Where a call of a monitor's URL stands: the next attempt waits or is under way; the receiver has
answered with a 2xx status; or all attempts have failed."""

MonitorEvent = Literal["steps", "failing", "recovered"]
"""What a call of a monitor's URL is about: a run shows steps; its runs begin to fail; they work
again."""

LEAST = 0.03
"""The smallest step that a monitor reports by default, as a share of the time before it."""


@dataclass(frozen=True, kw_only=True)
class Monitor(Titled, Payload):
    """A measurement that the server repeats."""

    id: str
    """Name of the monitor on its server."""
    user: str
    """Name of the user who added it, whose jobs its runs are."""
    op: str
    """Name of the op that is measured, "user/name" of a problem."""
    request: dict[str, Any]
    """The job that is repeated, without the fields that were left out."""
    every_s: int
    """Seconds between two runs."""
    least: float
    """The smallest step that is reported, as a share of the time before it: 0.03 is 3 %."""
    private: bool
    """Whether only its user and administrators can read it; all users can read other monitors."""
    state: MonitorState
    """Whether it measures."""
    detail: str
    """Why its last run failed, for readers; empty if it did not."""
    failing_since: str | None
    """When its runs began to fail: a job was refused or did not succeed, or an implementation has no
    time in a case. Null if the last run did not fail."""
    notify: str | None
    """URL that is called for steps, and when runs begin to fail and work again; null if there is
    none, and for other users."""
    runs: int
    """Number of jobs that it has submitted."""
    steps: int
    """Number of steps that were found."""
    created_at: str
    """When it was added."""
    next_at: str | None
    """When its next run is due; null if it is not active."""
    last_job: str | None
    """Id of its latest job; null before the first, and if the job is private to another user."""
    first_case: str = ""
    """Key of the first case of that job; empty without a job, and from older servers."""
    cases_total: int = 0
    """Number of cases of that job; 0 without a job, and from older servers."""

    @property
    def name(self) -> str:  # type: ignore[override]
        """The name of its jobs; empty without one."""
        return str(self.request.get("name") or "")


@dataclass(frozen=True, kw_only=True)
class NewMonitor(Monitor):
    """A monitor that was just added; its other fields are those of Monitor."""

    secret: str | None
    """With which calls of its URL are signed. It cannot be shown again; null without a URL."""


@dataclass(frozen=True, kw_only=True)
class MonitorList(Payload):
    """Monitors, the latest first."""

    monitors: list[Monitor]
    """Monitors that the user may read."""


@dataclass(frozen=True, kw_only=True)
class MonitorPoint(Payload):
    """What one run measured."""

    job: str
    """Id of the job."""
    at: str
    """When it was measured."""
    median_us: float
    """Median in microseconds."""


@dataclass(frozen=True, kw_only=True)
class MonitorSeries(Payload):
    """The history of one implementation in one case on devices of one model."""

    case: str
    """Key of the case, such as "permute x=F32[8,8] dims=1,0"."""
    implementation: str
    """Name of the implementation."""
    model: str
    """Model of the device; empty if it has no name."""
    points: list[MonitorPoint]
    """One for each run that has a time, the earliest first."""
    level_us: float | None
    """The present level in microseconds; null until it has 8 runs, as the three fields below."""
    low_us: float | None
    """A run counts towards a step down if it takes less than this, in microseconds."""
    high_us: float | None
    """A run counts towards a step up if it takes longer than this, in microseconds."""
    noise: float | None
    """Standard deviation of a run at one level, as a share of the level."""


@dataclass(frozen=True, kw_only=True)
class MonitorStep(Payload):
    """A step in a series: the times changed and stayed so for at least two runs."""

    case: str
    """Key of the case."""
    implementation: str
    """Name of the implementation."""
    model: str
    """Model of the device; empty if it has no name."""
    job: str
    """Id of the first job at the new level."""
    found_job: str
    """Id of the job after which the step was found."""
    found_at: str
    """When it was found."""
    before_us: float
    """Median of the times before the step, in microseconds."""
    after_us: float
    """Median of the times from the step on, in microseconds, when it was found."""
    ratio: float
    """`after_us` over `before_us`; above 1 means slower."""
    noise: float
    """Standard deviation of a run at one level, as a share of the level."""
    changed: list[str]
    """What else changed with the step: "source", "problem", and facts of the environment such as
    "driver"."""


@dataclass(frozen=True, kw_only=True)
class MonitorDelivery(Payload):
    """A call of the monitor's URL. The URL is sent a MonitorNotification."""

    id: str
    """Sent as the header Warpcall-Delivery, the same in each attempt."""
    event: MonitorEvent
    """What it is about."""
    state: DeliveryState
    """Where it stands."""
    attempts: int
    """Number of attempts that began."""
    status: int | None
    """Status of the last answer; null if there was none."""
    detail: str
    """Why the last attempt failed, for readers; empty if it did not."""
    created_at: str
    """When the steps were found, or the run failed or worked again."""
    next_at: str | None
    """When the next attempt is due; null if there is none."""
    finished_at: str | None
    """When it was delivered or given up; null until then."""


@dataclass(frozen=True, kw_only=True)
class MonitorNotification(Payload):
    """What the server sends to the URL of a monitor, as JSON."""

    delivery: str
    """Id of the delivery, the same in each attempt."""
    event: MonitorEvent
    """What it is about."""
    monitor: str
    """Id of the monitor."""
    user: str
    """Name of its user."""
    op: str
    """Name of the op that is measured, "user/name" of a problem."""
    created_at: str
    """When the steps were found, or the run failed or worked again."""
    job: str | None
    """Id of the run's job; null if the job was refused."""
    detail: str
    """Why the run failed, for readers; empty for other events."""
    steps: list[MonitorStep]
    """The steps that the run shows; empty for other events."""


@dataclass(frozen=True, kw_only=True)
class MonitorDetails(Monitor):
    """A monitor with its history; see Monitor for its other fields."""

    series: list[MonitorSeries]
    """The times of the latest runs that the user may read, at most 200 of each."""
    found: list[MonitorStep]
    """The latest steps, at most 200, the latest first."""
    deliveries: list[MonitorDelivery]
    """The latest calls of its URL, at most 50, the latest first; empty for other users."""
