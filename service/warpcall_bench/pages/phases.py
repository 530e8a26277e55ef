"""The bar of a job's phases."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from warpcall.jobs import JobPhase
from warpcall_bench.summaries.progress import NAMES

LABELS = {
    "queue": "in the queue",
    "start": "starting",
    "check": "compile and check",
    "warm": "warm-up",
    "rounds": "rounds",
    "extras": "hot times and energy",
}


@dataclass(frozen=True, slots=True)
class Phase:
    """A phase with its share of the bar, in percent."""

    name: str
    label: str
    seconds: float
    begin: float
    share: float


def bar(phases: Sequence[JobPhase]) -> list[Phase]:
    """The phases with their places in the bar."""
    total = sum(phase.seconds for phase in phases)
    found, begin = [], 0.0
    for phase in phases:
        share = 100 * phase.seconds / total
        found.append(
            Phase(phase.name, LABELS[phase.name], phase.seconds, round(begin, 2), round(share, 2))
        )
        begin += share
    return found


def label_of(phase: str) -> str:
    """The name of a phase of the sampler, for readers."""
    return LABELS.get(NAMES.get(phase, phase), phase)
