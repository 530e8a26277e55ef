"""How far two runs of the same code lie apart: the margin for a comparison of two runs."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

SHARE = 0.98  # of the differences between two runs of the same code lie within the margin
# A few runs show too little of the spread. For normal noise, SHARE of new differences lie within
# the quantile of those between `repeats + 1` earlier runs, multiplied by this factor.
FACTORS = (
    (1, 32), (2, 5.3), (3, 2.9), (4, 2.2), (5, 1.8), (6, 1.6), (7, 1.48), (8, 1.36), (12, 1.24),
    (15, 1.2), (20, 1.14), (30, 1.11), (40, 1.06),
)  # fmt: skip


def between_runs(groups: Sequence[Sequence[float]], repeats: int) -> float | None:
    """The margin within which the logarithms of two runs' times may differ by chance.

    It is the quantile of all differences within groups, so that it holds whatever the distribution:
    times between runs often have two modes, and the spread differs from case to case. Each run of a
    group counts alike, so that a group of many runs does not outweigh the others.

    Args:
        groups: logarithms of times. Those in a group are of the same code and case, one of a run.
        repeats: number of runs that repeated an earlier one. Times of one run in several groups may
            be off together, so the number of values would overstate what is known.

    Returns:
        None if no code was timed twice.
    """
    differences, weights = [], []
    for group in groups:
        if len(group) > 1:
            first, second = np.triu_indices(len(group), 1)
            values = np.asarray(group, np.float64)
            differences.append(np.abs(values[first] - values[second]))
            weights.append(np.full(len(first), 2 / len(group)))
    if not differences or repeats < 1:
        return None
    found = np.concatenate(differences)
    order = np.argsort(found)
    covered = np.cumsum(np.concatenate(weights)[order])
    at = int(np.searchsorted(covered, SHARE * covered[-1] - 1e-9))
    factor = next(factor for least, factor in reversed(FACTORS) if repeats >= least)
    return factor * float(found[order[at]])
