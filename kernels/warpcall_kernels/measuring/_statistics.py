"""What samples say: medians, their confidence, ratios, verdicts. Vectorised numpy.

Times on a busy machine drift, come in bursts and have long tails. So everything is a median; what is
compared was measured side by side, round by round, so that what both suffered divides out; what
is resampled are blocks of neighbouring rounds, so that noise which lasts does not look like precision;
and where the inputs lie in memory counts alike for all: the ratios of rounds with one set of inputs and
with another may differ by a percent, and the median of both together would be anywhere in between.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray

Floats = NDArray[np.float64]
Verdict = Literal["faster", "slower", "same", "inconclusive"]

MARGIN = 0.01  # log ratios below this are no difference
WIDEST_SAME = 0.03  # of a margin within which two are called the same
MIN_PAIRS = 6  # fewer say nothing
RESAMPLES = 1000
APPROXIMATED_SAMPLES = 60  # of two runs: the approximation widens intervals of shorter series
MAX_POINTS = (
    1500  # more are first made medians of groups of neighbours, else resampling takes seconds
)
LEVEL = 0.95


@dataclass(frozen=True, slots=True)
class Comparison:
    """How `b` compares with `a`: the ratio of their times, above 1 where b takes longer.

    Args:
        ratio: exp(median(log(b / a))), the mean of the medians where there are sets of inputs.
        low, high: its 95 % confidence interval.
        n: pairs that count, or of samples that are not paired the fewer.
        verdict: of b.
    """

    ratio: float
    low: float
    high: float
    n: int
    verdict: Verdict

    @property
    def half_width(self) -> float:
        """Of the interval of the log ratio."""
        return half_width(self.low, self.high)


def compare(
    samples_a: ArrayLike,
    samples_b: ArrayLike,
    *,
    sets: ArrayLike | None = None,
    margin: float = MARGIN,
    seed: int = 0,
) -> Comparison:
    """Compare two series of times that were measured side by side.

    Args:
        samples_a, samples_b: times in one unit, entry i of both from one round; NaN where there is none.
        sets: for each round with which inputs it was measured; None where all had the same.
        margin: log ratios within it count as no difference.
        seed: of the resampling.
    """
    columns = _columns(_logs(samples_b) - _logs(samples_a), sets)
    return _told(_median(columns), _resampled_medians(columns, seed), columns.size, margin)


def compare_apart(
    samples_a: ArrayLike,
    samples_b: ArrayLike,
    *,
    sets: tuple[ArrayLike | None, ArrayLike | None] = (None, None),
    margin: float = MARGIN,
    seed: int = 0,
) -> Comparison:
    """Compare two series that have nothing to do with each other, as those of two runs.

    Two runs may have thousands of series, so the medians of resamples of long ones are approximated.
    """
    a, b = _columns(_logs(samples_a), sets[0]), _columns(_logs(samples_b), sets[1])
    is_long = min(a.size, b.size) >= APPROXIMATED_SAMPLES
    medians = _approximate_medians if is_long else _resampled_medians
    resampled = medians(b, seed) - medians(a, seed + 1)
    return _told(_median(b) - _median(a), resampled, min(a.size, b.size), margin)


def _told(middle: float, resampled: Floats, n: int, margin: float) -> Comparison:
    if n < MIN_PAIRS:
        return Comparison(_exp(middle), 0.0, math.inf, n, "inconclusive")
    low, high = _interval(resampled)
    return Comparison(_exp(middle), _exp(low), _exp(high), n, verdict(low, high, margin))


def verdict(low: float, high: float, margin: float) -> Verdict:
    """What an interval of log ratios says: it lies beyond the margin, within it, or across its edge.

    A machine so noisy that the margin is wide cannot say "same".
    """
    if low > margin:
        return "slower"
    if high < -margin:
        return "faster"
    alike = min(margin, WIDEST_SAME)
    return "same" if -alike <= low and high <= alike else "inconclusive"


def margin_from(a_a: Comparison | None) -> float:
    """The least difference that counts, where the same code compared with itself looks like `a_a`."""
    if a_a is None or a_a.n < MIN_PAIRS:
        return MARGIN
    return max(MARGIN, 2 * a_a.half_width)


def half_width(low: float, high: float) -> float:
    """Of the log of an interval; infinite where it has no bound."""
    if low <= 0 or not math.isfinite(high):
        return math.inf
    return (math.log(high) - math.log(low)) / 2


def median_interval(samples: ArrayLike, seed: int = 0) -> tuple[float, float]:
    """The 95 % confidence interval of the median of one series."""
    values = np.asarray(samples, np.float64)
    values = values[np.isfinite(values)]
    if len(values) < MIN_PAIRS:
        return 0.0, math.inf
    return _interval(_resampled_medians(values[:, None], seed))


def percentiles(samples: ArrayLike, at: Sequence[float]) -> list[float]:
    """Percentiles of what is not NaN."""
    values = np.asarray(samples, np.float64)
    return [float(p) for p in np.percentile(values[np.isfinite(values)], at)]


def _columns(values: Floats, sets: ArrayLike | None = None) -> Floats:
    """[n, sets]: for each set of inputs what was measured with it; of one as much as of another."""
    there = np.isfinite(values)
    if sets is None:
        return values[there, None]
    numbers = np.asarray(sets)
    columns = [values[there & (numbers == one)] for one in np.unique(numbers)]
    shortest = min(map(len, columns), default=0)
    return np.stack([column[:shortest] for column in columns], 1) if columns else values[:, None]


def _resampled_medians(series: Floats, seed: int) -> Floats:
    """Medians of series put together from random blocks of this one, which is taken as a circle."""
    if series.size < MIN_PAIRS:
        return np.zeros(1)
    series = _thinned(series)
    n = len(series)
    length = _block_length(series)
    random = np.random.default_rng(seed)
    begins = random.integers(0, n, (RESAMPLES, -(-n // length), 1))
    drawn = (begins + np.arange(length)).reshape(RESAMPLES, -1)[:, :n] % n
    medians: Floats = np.median(series[drawn], axis=1).mean(axis=1)
    return medians


def _approximate_medians(series: Floats, seed: int) -> Floats:
    """Approximates `_resampled_medians` in a tenth to a fiftieth of its time.

    No resample is put together. Drawn is only how many of its values lie below the median of the
    series: the sum of the counts in its blocks, which is close to normal. If this is more than half
    of them by some share, the median of the resample is the value of the series whose rank is lower
    than the middle by the same share (Bahadur's representation of a sample quantile).
    """
    if series.size < MIN_PAIRS:
        return np.zeros(1)
    series = _thinned(series)
    n, columns = series.shape
    length = _block_length(series)
    median = np.median(series, axis=0)
    below = (series < median) + 0.5 * (series == median)
    circle = np.concatenate([np.zeros((1, columns)), below, below[: length - 1]]).cumsum(axis=0)
    # For each place the values below the median in the block that begins there, as a share of n.
    counts = (circle[length:] - circle[:-length]) / n
    blocks = n / length
    covariance = blocks * np.atleast_2d(np.cov(counts, rowvar=False))
    random = np.random.default_rng(seed)
    none = np.zeros(columns)
    excess = random.multivariate_normal(none, covariance, RESAMPLES, "ignore", method="eigh")
    ranks = (np.arange(n) + 0.5) / n
    ordered = np.sort(series, axis=0)
    medians = [np.interp(0.5 - excess[:, c], ranks, ordered[:, c]) for c in range(columns)]
    mean: Floats = np.mean(medians, axis=0)
    return mean


def _block_length(series: Floats) -> int:
    """Neighbours that stay together: more, the more a sample tells of the next one.

    The length that is best for an autoregressive series of first order (Politis and White 2004), at
    least the cube root of n. Ranks instead of values, so that outliers do not hide the correlation.
    """
    n = len(series)
    ranks = np.argsort(np.argsort(series.mean(axis=1))).astype(np.float64)
    ranks -= ranks.mean()
    rho = float(ranks[1:] @ ranks[:-1] / (ranks @ ranks))
    rho = min(max(rho, 0.0), 0.98)
    stretch = max(1.0, math.pow(math.sqrt(6) * rho / (1 - rho * rho), 2 / 3))
    return max(1, min(math.ceil(stretch * math.cbrt(n)), n // 4))


def _thinned(series: Floats) -> Floats:
    """At most MAX_POINTS: medians of groups of neighbours."""
    size = -(-len(series) // MAX_POINTS)
    if size <= 1:
        return series
    whole = len(series) // size * size
    medians: Floats = np.median(series[:whole].reshape(-1, size, series.shape[1]), axis=1)
    return medians


def _interval(resampled: Floats) -> tuple[float, float]:
    tail = 50 * (1 - LEVEL)
    low, high = np.percentile(resampled, (tail, 100 - tail))
    return float(low), float(high)


def _logs(samples: ArrayLike) -> Floats:
    values = np.asarray(samples, np.float64)
    with np.errstate(divide="ignore", invalid="ignore"):
        return np.asarray(np.log(np.where(values > 0, values, np.nan)), np.float64)


def _median(columns: Floats) -> float:
    return float(np.median(columns, axis=0).mean()) if len(columns) else math.nan


def _exp(value: float) -> float:
    return math.exp(min(value, 700.0))
