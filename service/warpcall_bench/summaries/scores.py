"""The scores of implementations over the cases of a board."""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Sequence

from warpcall.jobs import Score
from warpcall.jobs.results import BoardEntry, Standing
from warpcall.jobs.scores import (
    NOTHING,
    Ratio,
    Sums,
    add_ratio,
    add_share_of_limit,
    score_of,
)
from warpcall_bench.runs.operator_modules import LIMIT

BASELINE = "torch"
MARGIN = 0.01  # as of the ranks of a board: smaller differences win nothing


def scores_of(standings: Sequence[Standing]) -> list[Score]:
    """The score of each implementation with a rank, who won most cases first.

    The baseline is torch if it has a rank in some case, and the copy otherwise. Both results are
    relative to the copy of their own job, and independent of each other, since the best result of each
    is often of another job.
    """
    has_baseline = any(one.implementation == BASELINE for s in standings for one in s.entries)
    against = BASELINE if has_baseline else LIMIT
    sums: defaultdict[str, Sums] = defaultdict(NOTHING.copy)
    won = Counter[str]()
    for standing in standings:
        ratios = {one.implementation: _relative(one) for one in standing.entries}
        for name, relative in ratios.items():
            add_share_of_limit(sums[name], 1 / relative.value)
            if name == against or (has_baseline and against not in ratios):
                continue
            ratio = relative.over(ratios[against]) if has_baseline else relative
            add_ratio(sums[name], ratio)
            won[name] += (ratio.high or math.inf) < math.exp(-MARGIN)
    found = [score_of(name, against, one, won[name], len(standings)) for name, one in sums.items()]
    return sorted((one for one in found if one), key=lambda one: (-one.won, one.ratio))


def _relative(entry: BoardEntry) -> Ratio:
    """The time over that of the copy. Without an interval, its bounds are those of the time itself."""
    if entry.relative_low >= entry.relative_high:
        return Ratio(entry.relative)
    return Ratio(entry.relative, entry.relative_low, entry.relative_high)
