"""Numbers, times and durations as the pages write them."""

from __future__ import annotations

import math
from datetime import UTC, datetime

MISSING = "–"


def microseconds(us: float | None) -> str:
    """A time in microseconds with four significant digits, or as a whole number from 1,000 on."""
    if us is None:
        return MISSING
    return significant(us, 4) if us < 1e3 else f"{us:,.0f}"


def ratio(value: float | None) -> str:
    """A ratio with three decimals below 10, and with three significant digits above."""
    if value is None:
        return MISSING
    return f"{value:.3f}" if value < 10 else significant(value, 3)


def times(value: float) -> str:
    """A ratio for a sentence, such as "1.03×" or "6.1×"."""
    if 0.95 < value < 1.05:
        return f"{value:.3f}×"
    return f"{value:.2f}×" if value < 2 else f"{significant(value, 2)}×"


def plus_minus(middle: float | None, low: float | None, high: float | None) -> str:
    """Half the width of an interval, relative to its middle, such as "± 0.05 %"."""
    if not middle or low is None or high is None:
        return MISSING
    half = 50 * (high - low) / middle
    decimals = 2 if half < 1 else 1 if half < 10 else 0
    return f"± {half:.{decimals}f} %"


def whole(value: float | None) -> str:
    """A number without decimals."""
    return MISSING if value is None else f"{value:.0f}"


def percent(share: float | None) -> str:
    """A share as a whole percentage."""
    return MISSING if share is None else f"{100 * share:.0f} %"


def gb_per_s(value: float | None) -> str:
    """A bandwidth in GB/s with at least three digits."""
    if value is None:
        return MISSING
    return f"{value:,.0f}" if value >= 100 else significant(value, 3)


def nbytes(value: float | None) -> str:
    """A number of bytes in B, kB, MB or GB, which are powers of 1,000."""
    if value is None:
        return MISSING
    for unit in ("B", "kB", "MB", "GB"):
        if value < 1000 or unit == "GB":
            text = significant(value, 3)
            return f"{text.rstrip('0').rstrip('.') if '.' in text else text} {unit}"
        value /= 1000
    raise AssertionError  # the loop returns at GB


def span(seconds: float | None) -> str:
    """A duration as a person writes it: "5 s", "3 min", "2.5 h", "4 days"."""
    if seconds is None:
        return MISSING
    if seconds < 100:
        return f"{seconds:.0f} s"
    if seconds < 6000:
        return f"{seconds / 60:.0f} min"
    if seconds < 172_800:
        hours = seconds / 3600
        return f"{hours:.1f} h" if hours < 10 else f"{hours:.0f} h"
    return f"{seconds / 86_400:.0f} days"


def ago(moment: str) -> str:
    """The time since a moment in the form of RFC 3339."""
    past = datetime.now(UTC) - datetime.fromisoformat(moment)
    return f"{span(max(0.0, past.total_seconds()))} ago"


def day(moment: str) -> str:
    """A moment as date and minute, in UTC."""
    return f"{datetime.fromisoformat(moment):%Y-%m-%d %H:%M}"


def significant(value: float, digits: int) -> str:
    """A number with so many significant digits, without an exponent."""
    if value == 0 or not math.isfinite(value):
        return f"{value:g}"
    decimals = max(0, digits - 1 - math.floor(math.log10(abs(value))))
    return f"{value:,.{decimals}f}"


def count(number: int, one: str, many: str = "") -> str:
    """A number with its noun, such as "1 case" or "1,200 cases"."""
    return f"{number:,} {one if number == 1 else many or one + 's'}"


def fact(name: str) -> str:
    """The name of a fact of an environment for readers, such as "kernels" for "kernels_sha256"."""
    return name.removesuffix("_sha256").replace("_", " ")


def sentence(text: str) -> str:
    """A phrase with a capital letter at its beginning and a full stop at its end.

    The backticks of docstrings are left out.
    """
    text = text.replace("`", "")
    return f"{text[:1].upper()}{text[1:]}{'' if text.endswith('.') else '.'}"
