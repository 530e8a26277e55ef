"""What a measurement says, as data that JSON carries."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from warpcall_kernels.measuring._statistics import Comparison, Verdict

Status = Literal["ok", "wrong_result", "compile_error", "oom", "cuda_error", "invalid"]


@dataclass(frozen=True)
class Ratio:
    """A time relative to another: above 1 is slower. `low` to `high` is the 95 % interval, None where too few
    pairs were taken to tell."""

    ratio: float
    low: float | None
    high: float | None
    n: int
    verdict: Verdict

    @classmethod
    def of(cls, found: Comparison) -> Ratio:
        low = found.low if found.low > 0 else None
        high = found.high if math.isfinite(found.high) else None
        return cls(found.ratio, low, high, found.n, found.verdict)


@dataclass(frozen=True)
class ImplementationResult:
    """How one implementation did. Times are device time of a call, in us; None without samples.

    Args:
        name: of the implementation.
        status: "ok", or why there are no times to be relied on.
        error: the same in words.
        method: how it was timed, such as "events", "graph of 16", "perf_counter".
        n: samples that count: not masked.
        median_us, p5_us ... min_us: of these.
        ci_low_us, ci_high_us: 95 % confidence interval of the median.
        relative: to the first implementation of the case; None for that one.
        gb_per_s: compulsory bytes over the median.
        share_of_limit: the limit's time over this one's; 1 is the speed of a copy.
        peak_bytes: device memory at the peak of a call, beside its inputs.
        hot_us: median with inputs that may lie in the L2 already.
        host_us: what a call takes the CPU, median.
        energy_mj: energy of a call, in mJ.
        samples_us: one of each round; None where there is none.
        tags: such as "suspect" and "not captured".
    """

    name: str
    status: Status
    error: str | None = None
    method: str | None = None
    n: int = 0
    median_us: float | None = None
    p5_us: float | None = None
    p25_us: float | None = None
    p75_us: float | None = None
    p95_us: float | None = None
    min_us: float | None = None
    ci_low_us: float | None = None
    ci_high_us: float | None = None
    relative: Ratio | None = None
    gb_per_s: float | None = None
    share_of_limit: float | None = None
    peak_bytes: int | None = None
    hot_us: float | None = None
    host_us: float | None = None
    energy_mj: float | None = None
    samples_us: tuple[float | None, ...] = ()
    tags: tuple[str, ...] = ()


@dataclass(frozen=True)
class Masked:
    """A round that does not count, and why."""

    round: int
    reason: str


@dataclass(frozen=True)
class CaseResult:
    """How the implementations of one case compare.

    Args:
        key: of the case.
        op: its name.
        spec: of the case, explicit.
        device: such as "cuda:0" or "cpu".
        clock: what measured: "cuda events" or "perf_counter".
        column: what was measured: "device_cold", with inputs that are not in the cache.
        precision: the preset's name.
        seed: of the values that were timed.
        bytes_moved: compulsory traffic.
        output_bytes: of them, what is written.
        rounds: measured in all, masked ones among them.
        masked: those that do not count.
        converged: whether the intervals became as narrow as the preset asks for.
        margin: log ratios within it are "same".
        a_a: the first implementation compared with itself.
        limit: the copy that moves as many bytes.
        implementations: in the order they were asked for.
        device_lost: an error that sticks ended the measurement: this process can use the device no more.
        seconds: wall time of all of it.
        tags: such as "unstable" and "power capped".
    """

    key: str
    op: str
    spec: Mapping[str, Any]
    device: str
    clock: str
    precision: str
    seed: int
    bytes_moved: int
    output_bytes: int
    implementations: tuple[ImplementationResult, ...]
    limit: ImplementationResult | None = None
    column: str = "device_cold"
    rounds: int = 0
    masked: tuple[Masked, ...] = ()
    converged: bool = False
    margin: float = 0.01
    a_a: Ratio | None = None
    device_lost: bool = False
    seconds: float = 0.0
    tags: tuple[str, ...] = field(default=())

    def to_json(self) -> dict[str, Any]:
        """Plain data: what json.dumps takes, without NaN or infinities."""
        plain: dict[str, Any] = dataclasses.asdict(self)
        return plain

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> CaseResult:
        """The result that `to_json` told of."""
        limit = data["limit"]
        return cls(
            **{
                **data,
                "implementations": tuple(map(_implementation, data["implementations"])),
                "limit": None if limit is None else _implementation(limit),
                "masked": tuple(Masked(**m) for m in data["masked"]),
                "a_a": _ratio(data["a_a"]),
                "tags": tuple(data["tags"]),
            }
        )


def _implementation(data: Mapping[str, Any]) -> ImplementationResult:
    tuples = {name: tuple(data[name]) for name in ("samples_us", "tags")}
    return ImplementationResult(**{**data, **tuples, "relative": _ratio(data["relative"])})


def _ratio(data: Mapping[str, Any] | None) -> Ratio | None:
    return None if data is None else Ratio(**data)
