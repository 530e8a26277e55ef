"""How long a measurement may take, and how sure it is to be."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType


@dataclass(frozen=True)
class Precision:
    """When a case has been measured for long enough.

    Args:
        name: of the preset.
        seconds: of rounds for each implementation, at most.
        min_rounds, min_seconds: of each implementation, before it may be over.
        max_rounds: at most.
        half_width: of the 95 % interval of log ratios, at which it is over.
        warm_window_s, warm_seconds: a window of the warm-up, and all of it at most.
        extras: measure a hot cache, the host's time and energy, too.
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


PRECISIONS: Mapping[str, Precision] = MappingProxyType(
    {
        "quick": Precision("quick", 2, max_rounds=500, warm_seconds=1, extras=False),
        "standard": Precision("standard", 10, max_rounds=2000),
        "publish": Precision("publish", 60),
    }
)
