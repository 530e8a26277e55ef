"""How long a measurement may take, and how narrow its intervals must be."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType


@dataclass(frozen=True)
class Precision:
    """When the measurement of a case ends.

    Args:
        name: name of the preset.
        seconds: the longest time of rounds, for each implementation.
        min_rounds, min_seconds: rounds, and seconds of each implementation, before it may end.
        max_rounds: rounds after which it ends.
        half_width: half the width of the 95 % interval of log ratios at which it ends.
        warm_window_s, warm_seconds: one window of the warm-up, and the longest warm-up.
        extras: whether to measure the time with a hot cache, and the energy, too.
        timed: whether anything is timed. Otherwise results are checked only.
    """

    name: str
    seconds: float
    min_rounds: int = 30
    min_seconds: float = 0.5
    max_rounds: int = 5000
    half_width: float = 0.005
    warm_window_s: float = 0.1
    warm_seconds: float = 3.0
    extras: bool = True
    timed: bool = True


PRECISIONS: Mapping[str, Precision] = MappingProxyType(
    {
        "quick": Precision(
            "quick",
            2,
            min_rounds=60,
            min_seconds=0,
            max_rounds=500,
            warm_seconds=1,
            extras=False,
        ),
        "standard": Precision("standard", 10, max_rounds=2000),
        "publish": Precision("publish", 60),
        "check": Precision("check", 0, extras=False, timed=False),
    }
)
