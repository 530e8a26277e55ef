"""The progress bars of benchmark jobs on a terminal or in a notebook."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from warpcall._progress import live
from warpcall._text import clean
from warpcall.groups import GroupPart
from warpcall.jobs import JobEvent, JobInfo, lacking

if TYPE_CHECKING:
    from rich.progress import Progress, TaskID

# The share of a case that is done when it reaches a phase, roughly. The rounds take most of it.
PHASES = {
    "preparing": 0.0,
    "correctness": 0.1,
    "warmup": 0.2,
    "rounds": 0.4,
    "left": 0.6,
    "extras": 0.95,
}
ENOUGH_ROUNDS = 30  # the bar reaches the end of the rounds here; there may be more
WORDS = {"waiting_gpu": "waiting for the device", "preparing": "preparing"}


class Bar:
    """Shows the progress of a job, event by event.

    Args:
        visible: if false, nothing is shown.
    """

    def __init__(self, job: JobInfo, visible: bool) -> None:
        self._total = job.cases_total
        self._done = 0
        self._progress: Progress | None = None
        if visible:
            self._start(job.id, waiting(job))

    def on_event(self, event: JobEvent) -> None:
        """Show what an event tells."""
        data = event.data
        if event.kind == "state":
            state = str(data.get("state"))
            self._show(self._done, WORDS.get(state, state))
        elif event.kind == "case":
            self._done = _count(data.get("cases_done", self._done + 1))
            self._show(self._done, str(data.get("case", "")))
        elif event.kind == "progress":
            phase = str(data.get("phase", ""))
            share = PHASES.get(phase, 0.0)
            if phase == "rounds":
                share += 0.5 * min(1.0, _count(data.get("rounds")) / ENOUGH_ROUNDS)
            what = " ".join(str(data[name]) for name in ("phase", "implementation") if name in data)
            rounds = f" {data['rounds']}" if "rounds" in data else ""
            self._show(self._done + share, what + rounds + (racing(data) or ratios(data)))

    @property
    def shown(self) -> bool:
        """Whether the bar is shown now."""
        return self._progress is not None

    def show(self, what: str) -> None:
        """Show what the job does now."""
        self._show(self._done, what)

    def close(self) -> None:
        """Remove the bar."""
        if self._progress is not None:
            self._progress.stop()
            self._progress = None

    def _start(self, label: str, what: str) -> None:
        self._progress = bars()
        self._progress.start()
        self._progress.add_task(label, total=self._total, done=0, what=clean(what))

    def _show(self, completed: float, what: str) -> None:
        if self._progress is not None:
            task = self._progress.task_ids[0]
            self._progress.update(task, completed=completed, done=self._done, what=clean(what))


class GroupBars:
    """Shows the progress of a group, with a bar for each part.

    Args:
        visible: if false, nothing is shown.
    """

    def __init__(self, visible: bool) -> None:
        self._visible = visible
        self._progress: Progress | None = None
        self._tasks: list[TaskID] = []

    def show(self, parts: Sequence[GroupPart]) -> None:
        """Show where the parts stand now."""
        if not self._visible:
            return
        if self._progress is None:
            self._progress = bars()
            self._progress.start()
            self._tasks = [
                self._progress.add_task(clean(part.gpu), total=1, done=0, what="") for part in parts
            ]
        for task, part in zip(self._tasks, parts, strict=False):
            done, total = (
                (0, 1) if part.job is None else (part.job.cases_done, part.job.cases_total)
            )
            self._progress.update(
                task, completed=done, total=total, done=done, what=clean(part_state(part))
            )

    def close(self) -> None:
        """Remove the bars."""
        if self._progress is not None:
            self._progress.stop()
            self._progress = None


def bars() -> Progress:
    """Bars of cases, which vanish when they are stopped."""
    from rich.progress import BarColumn, TextColumn, TimeElapsedColumn

    return live(
        TextColumn("{task.description}"),
        BarColumn(),
        TextColumn("{task.fields[done]}/{task.total} cases"),
        TimeElapsedColumn(),
        TextColumn("{task.fields[what]}", markup=False),
    )


def part_state(part: GroupPart) -> str:
    """Where a part of a group stands, and what it waits for."""
    return "private to another user" if part.job is None else waiting(part.job)


def ratios(data: Mapping[str, Any]) -> str:
    """The ratios so far to the first implementation, such as ": torch 6.06x, copy 0.92x".

    Args:
        data: of an event of progress; the text is empty if it has no medians of two or more.
    """
    medians = data.get("medians_us")
    if not isinstance(medians, Mapping) or len(medians) < 2:
        return ""
    (_, first_us), *others = medians.items()
    if not all(isinstance(us, int | float) and us > 0 for us in medians.values()):
        return ""
    return ": " + ", ".join(f"{name} {us / first_us:.3g}x" for name, us in others)


def racing(data: Mapping[str, Any]) -> str:
    """How a race stands, such as ": ann/a leads, 3 race, 12 wait", or who left.

    Args:
        data: of an event of progress; the text is empty if it is of no race.
    """
    leader, ratio = data.get("leader"), data.get("ratio")
    if not isinstance(leader, str):
        return ""
    if isinstance(ratio, int | float):
        return f" rounds: {ratio:.3g} times {leader}"
    counts = [f"{data[name]} {verb}" for name, verb in (("racing", "race"), ("waiting", "wait"))
              if _count(data.get(name))]  # fmt: skip
    return ": " + ", ".join([f"{leader} leads", *counts])


def _count(value: object) -> int:
    """A number from an event; 0 for a value of another type."""
    return value if isinstance(value, int) else 0


def waiting(job: JobInfo) -> str:
    """The state of a job, and its place if it is in the queue."""
    if job.waits_for_device:
        return lacking(job)
    if job.state == "queued" and job.position is not None:
        return f"queued, number {job.position}, starts in some {span(job.starts_in_s)}"
    return WORDS.get(job.state, job.state)


def span(seconds: float | None) -> str:
    """A duration as a person writes it: "5 s", "3 min", "2.5 h"."""
    if seconds is None:
        return "?"
    if seconds < 100:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 6000 else f"{seconds / 3600:.1f} h"
