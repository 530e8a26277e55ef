"""The bar of a benchmark job on a terminal."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from warpcall._text import clean

if TYPE_CHECKING:
    from rich.progress import Progress

# How far a case has come when it reaches a phase, roughly; the rounds are the most of it.
PHASES = {"preparing": 0.0, "correctness": 0.1, "warmup": 0.2, "rounds": 0.4, "extras": 0.95}
ENOUGH_ROUNDS = 30
WORDS = {"waiting_gpu": "waiting for the device", "preparing": "preparing"}


class Bar:
    """Shows what the events of a job tell.

    Args:
        job: as the server tells of it.
        wanted: or nothing is shown.
    """

    def __init__(self, job: Mapping[str, Any], wanted: bool) -> None:
        self._total = _count(job["cases_total"])
        self._done = 0
        self._case = ""
        self._progress: Progress | None = None
        if wanted:
            self._start(str(job["id"]), waiting(job))

    def tell(self, event: Mapping[str, Any]) -> None:
        """Something has happened."""
        data = event["data"]
        if event["kind"] == "state":
            state = str(data.get("state"))
            self._show(self._done, WORDS.get(state, state))
        elif event["kind"] == "case":
            self._done = _count(data.get("cases_done", self._done + 1))
            self._show(self._done, str(data.get("case", "")))
        elif event["kind"] == "progress":
            phase = str(data.get("phase", ""))
            share = PHASES.get(phase, 0.0)
            if phase == "rounds":
                share += 0.5 * min(1.0, _count(data.get("rounds")) / ENOUGH_ROUNDS)
            what = " ".join(str(data[name]) for name in ("phase", "implementation") if name in data)
            rounds = f" {data['rounds']}" if "rounds" in data else ""
            self._show(self._done + share, what + rounds)

    @property
    def shown(self) -> bool:
        """Whether anyone can see it."""
        return self._progress is not None

    def show(self, what: str) -> None:
        """Say what the job does."""
        self._show(self._done, what)

    def close(self) -> None:
        """Take it away."""
        if self._progress is not None:
            self._progress.stop()
            self._progress = None

    def _start(self, label: str, what: str) -> None:
        from rich.console import Console
        from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

        self._progress = Progress(
            TextColumn("{task.description}"),
            BarColumn(),
            TextColumn("{task.fields[done]}/{task.total} cases"),
            TimeElapsedColumn(),
            TextColumn("{task.fields[what]}", markup=False),
            console=Console(stderr=True),
            transient=True,
        )
        self._progress.start()
        self._progress.add_task(label, total=self._total, done=0, what=clean(what))

    def _show(self, completed: float, what: str) -> None:
        if self._progress is not None:
            task = self._progress.task_ids[0]
            self._progress.update(task, completed=completed, done=self._done, what=clean(what))


def _count(told: object) -> int:
    """A number that a server told; 0 for anything else."""
    return told if isinstance(told, int) else 0


def waiting(job: Mapping[str, Any]) -> str:
    """What a job waits for, as far as is known: its state, its place in the queue."""
    state = str(job["state"])
    if state == "queued" and job.get("position") is not None:
        return f"queued, number {job['position']}, starts in some {span(job.get('starts_in_s'))}"
    return WORDS.get(state, state)


def span(seconds: float | None) -> str:
    """A time as one says it: "5 s", "3 min", "2.5 h"."""
    if seconds is None:
        return "?"
    if seconds < 100:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 6000 else f"{seconds / 3600:.1f} h"
