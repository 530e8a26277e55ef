"""Statistics of samples: medians, confidence intervals, ratios, verdicts. Vectorised numpy.

Times on a busy machine drift, come in bursts and have long tails. Therefore:

- All estimates are medians.
- Times that are compared come from the same round, so that a disturbance of both divides out.
- The bootstrap resamples blocks of neighbouring rounds, so that noise which lasts for some rounds
  does not look like precision.
- Each set of inputs has the same weight. The ratios with two sets may differ by a percent, because
  of the addresses, and the median of both together could be anywhere in between.
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

MARGIN = 0.01  # smaller log ratios count as no difference
WIDEST_SAME = 0.03  # with a wider margin, nothing is called the same
MIN_PAIRS = 6  # fewer pairs give no interval
RESAMPLES = 1000
APPROXIMATED_SAMPLES = 60  # in shorter series the approximation widens intervals
MAX_POINTS = (
    1500  # longer series are first reduced to medians of groups, or resampling takes seconds
)
LEVEL = 0.95


@dataclass(frozen=True, slots=True)
class Comparison:
    """The comparison of `b` with `a`: the ratio of their times, above 1 if b takes longer.

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
        """Half the width of the interval of the log ratio."""
        return half_width(self.low, self.high)


def compare(
    samples_a: ArrayLike,
    samples_b: ArrayLike,
    *,
    sets: ArrayLike | None = None,
    margin: float = MARGIN,
    seed: int = 0,
) -> Comparison:
    """Compare two series of times from the same rounds.

    Args:
        samples_a, samples_b: times in one unit, entry i of both from one round; NaN where there is
            none.
        sets: for each round with which inputs it was measured; None where all had the same.
        margin: log ratios within it count as no difference.
        seed: of the resampling.
    """
    columns = _columns(_logs(samples_b) - _logs(samples_a), sets)
    resampled = _resampled_medians(columns, seed).mean(axis=1)
    return _comparison(_median(columns), resampled, columns.size, margin)


def compare_apart(
    samples_a: ArrayLike,
    samples_b: ArrayLike,
    *,
    sets: tuple[ArrayLike | None, ArrayLike | None] = (None, None),
    limits: tuple[ArrayLike, ArrayLike] | None = None,
    margin: float = MARGIN,
    seed: int = 0,
) -> Comparison:
    """Compare two independent series, such as those of two runs.

    Two runs may have thousands of series. Therefore the resampled medians of long ones are
    approximated.

    Args:
        limits: for each series times from the same rounds. The medians of both series are divided
            by the medians of these.
    """
    a, b = (
        _with_limit(_logs(samples), None if limits is None else _logs(limits[i]), sets[i])
        for i, samples in enumerate((samples_a, samples_b))
    )
    n = min(a[0].size, b[0].size)
    if limits is not None:
        n //= 2
    resampled = _resampled_difference(*b, seed) - _resampled_difference(*a, seed + 1)
    return _comparison(_difference(*b) - _difference(*a), resampled, n, margin)


def _with_limit(
    samples: Floats, limit: Floats | None, sets: ArrayLike | None
) -> tuple[Floats, Floats]:
    """Columns of a series and of its limit from the same rounds, and the weight of each column."""
    if limit is None:
        columns = _columns(samples, sets)
        return columns, np.full(columns.shape[1], 1 / columns.shape[1])
    both = np.isfinite(samples) & np.isfinite(limit)
    kept = None if sets is None else np.asarray(sets)[both]
    columns, limits = _columns(samples[both], kept), _columns(limit[both], kept)
    weight = np.full(columns.shape[1], 1 / columns.shape[1])
    return np.concatenate([columns, limits], axis=1), np.concatenate([weight, -weight])


def _difference(columns: Floats, weights: Floats) -> float:
    return float(np.median(columns, axis=0) @ weights) if len(columns) else math.nan


def _resampled_difference(columns: Floats, weights: Floats, seed: int) -> Floats:
    is_long = columns.shape[0] * np.count_nonzero(weights > 0) >= APPROXIMATED_SAMPLES
    medians = _approximate_medians if is_long else _resampled_medians
    found: Floats = medians(columns, seed) @ weights
    return found


def _comparison(middle: float, resampled: Floats, n: int, margin: float) -> Comparison:
    if n < MIN_PAIRS:
        return Comparison(_exp(middle), 0.0, math.inf, n, "inconclusive")
    low, high = _interval(resampled)
    return Comparison(_exp(middle), _exp(low), _exp(high), n, verdict(low, high, margin))


def verdict(low: float, high: float, margin: float) -> Verdict:
    """The verdict on an interval of log ratios: beyond the margin, within it, or neither.

    With a margin wider than WIDEST_SAME the verdict is never "same".
    """
    if low > margin:
        return "slower"
    if high < -margin:
        return "faster"
    alike = min(margin, WIDEST_SAME)
    return "same" if -alike <= low and high <= alike else "inconclusive"


def margin_from(a_a: Comparison | None) -> float:
    """The smallest log ratio that counts, if `a_a` is the comparison of equal code."""
    if a_a is None or a_a.n < MIN_PAIRS:
        return MARGIN
    return max(MARGIN, 2 * a_a.half_width)


def half_width(low: float, high: float) -> float:
    """Half the width of an interval's logarithm; infinite if the interval has no bound."""
    if low <= 0 or not math.isfinite(high):
        return math.inf
    return (math.log(high) - math.log(low)) / 2


@dataclass(frozen=True, slots=True)
class Median:
    """The median of a series, and its 95 % confidence interval."""

    value: float
    low: float
    high: float


def median_of(samples: ArrayLike, sets: ArrayLike | None = None, *, seed: int = 0) -> Median:
    """The median of one series of times, which are above 0; NaN if there are none.

    Args:
        samples: times in one unit; NaN where there is none.
        sets: for each time with which inputs it was measured; None where all had the same. With
            several sets, the result is the geometric mean of the medians with each of them, as the
            ratios of `compare` are.
        seed: of the resampling.
    """
    columns = _columns(_logs(samples), sets)
    middle = _exp(_median(columns))
    if columns.size < MIN_PAIRS:
        return Median(middle, 0.0, math.inf)
    low, high = _interval(_resampled_medians(columns, seed).mean(axis=1))
    return Median(middle, _exp(low), _exp(high))


def median_value_of(samples: ArrayLike, sets: ArrayLike | None = None) -> float:
    """The `value` of `median_of` alone: without the interval it takes a hundredth of the time."""
    return _exp(_median(_columns(_logs(samples), sets)))


def percentiles(samples: ArrayLike, at: Sequence[float]) -> list[float]:
    """Percentiles of the values that are not NaN."""
    values = np.asarray(samples, np.float64)
    return [float(p) for p in np.percentile(values[np.isfinite(values)], at)]


def _columns(values: Floats, sets: ArrayLike | None = None) -> Floats:
    """[n, sets]: a column of values for each set of inputs, all of the same length."""
    there = np.isfinite(values)
    if sets is None:
        return values[there, None]
    numbers = np.asarray(sets)
    columns = [values[there & (numbers == one)] for one in np.unique(numbers[there])]
    shortest = min(map(len, columns), default=0)
    return np.stack([column[:shortest] for column in columns], 1) if columns else values[:0, None]


def _resampled_medians(series: Floats, seed: int) -> Floats:
    """[RESAMPLES, columns]: medians of resampled series.

    Random blocks are drawn of the series, which is treated as a circle, the same of all columns.
    """
    if series.size < MIN_PAIRS:
        return np.zeros((1, series.shape[1]))
    series = _thinned(series)
    n = len(series)
    length = _block_length(series)
    random = np.random.default_rng(seed)
    begins = random.integers(0, n, (RESAMPLES, -(-n // length), 1))
    drawn = (begins + np.arange(length)).reshape(RESAMPLES, -1)[:, :n]  # it goes on after the end
    return np.stack([_medians_of_rows(column, drawn) for column in series.T], axis=1)


def _medians_of_rows(values: Floats, drawn: NDArray[np.int_]) -> Floats:
    """The median of each row of `values[drawn]`, where `values` begins anew after its end.

    To sort 16-bit ranks takes a tenth of the time of sorting the values, with the same result.
    """
    n = len(values)
    order = np.argsort(values)
    ranks = np.empty(n, np.uint16)  # n is at most MAX_POINTS
    ranks[order] = np.arange(n)
    ordered = np.sort(np.concatenate([ranks, ranks]).take(drawn), axis=1)
    low, high = (values[order[ordered[:, middle]]] for middle in ((n - 1) // 2, n // 2))
    medians: Floats = (low + high) / 2
    return medians


def _approximate_medians(series: Floats, seed: int) -> Floats:
    """Approximates `_resampled_medians` in a tenth to a fiftieth of its time.

    It draws only the number of values of a resample that lie below the median of the series. This
    is the sum of the counts in its blocks, which is close to normal. If it exceeds one half by some
    share, the median of the resample is the value of the series whose rank is below the middle by
    the same share (Bahadur's representation of a sample quantile).
    """
    if series.size < MIN_PAIRS:
        return np.zeros((1, series.shape[1]))
    series = _thinned(series)
    n, columns = series.shape
    length = _block_length(series)
    median = np.median(series, axis=0)
    below = (series < median) + 0.5 * (series == median)
    circle = np.concatenate([np.zeros((1, columns)), below, below[: length - 1]]).cumsum(axis=0)
    # For each position: the share of n that lies below the median in the block that begins there.
    counts = (circle[length:] - circle[:-length]) / n
    blocks = n / length
    covariance = blocks * np.atleast_2d(np.cov(counts, rowvar=False))
    random = np.random.default_rng(seed)
    none = np.zeros(columns)
    excess = random.multivariate_normal(none, covariance, RESAMPLES, "ignore", method="eigh")
    ranks = (np.arange(n) + 0.5) / n
    ordered = np.sort(series, axis=0)
    medians = [np.interp(0.5 - excess[:, c], ranks, ordered[:, c]) for c in range(columns)]
    return np.stack(medians, axis=1)


def _block_length(series: Floats) -> int:
    """Length of the blocks that are resampled: longer if neighbouring samples are more correlated.

    It is the best length for an autoregressive series of first order (Politis and White 2004), and
    at least the cube root of n. The correlation is that of ranks, so that outliers do not hide it.
    """
    n = len(series)
    ranks = np.argsort(np.argsort(series.mean(axis=1))).astype(np.float64)
    ranks -= ranks.mean()
    rho = float(ranks[1:] @ ranks[:-1] / (ranks @ ranks))
    rho = min(max(rho, 0.0), 0.98)
    stretch = max(1.0, math.pow(math.sqrt(6) * rho / (1 - rho * rho), 2 / 3))
    return max(1, min(math.ceil(stretch * math.cbrt(n)), n // 4))


def _thinned(series: Floats) -> Floats:
    """The series reduced to at most MAX_POINTS medians of neighbouring samples."""
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
