"""The result of a measurement, as data that JSON can hold."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from warpcall_kernels.execution.failures import Status
from warpcall_kernels.measuring._observe import Reading
from warpcall_kernels.measuring._statistics import Comparison, Verdict


@dataclass(frozen=True)
class Ratio:
    """A time relative to another: above 1 is slower.

    `low` to `high` is the 95 % interval; a bound is None if there were too few pairs for it.
    """

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
class RaceInterval:
    """The ratio of two times in a race; above 1 is slower.

    `low` to `high` holds it with the error bound of the whole race; a bound is None if there is
    none yet.
    """

    ratio: float
    low: float | None
    high: float | None


@dataclass(frozen=True)
class RaceRow:
    """What came of one implementation in a race.

    Args:
        rank: 1 for the fastest, and for all that are the same; None if its times are no basis for a
            verdict, or if nobody is the fastest.
        to_leader: its time relative to that of the leader at the end; None without a rank, and where
            nothing is known of it.
        left_round: number of rounds after which it left; None if it raced until the end.
        left_why: "slower" if it was surely slower than the leader of then, "same" if it was within
            the margin of it and made room for others.
        left_leader: name of the leader of then.
        left_ratio: its time relative to that of the leader of then.
        left_s: seconds of the race after which it left, without those in which others entered.
    """

    rank: int | None
    to_leader: RaceInterval | None
    left_round: int | None = None
    left_why: str | None = None
    left_leader: str | None = None
    left_ratio: RaceInterval | None = None
    left_s: float | None = None


@dataclass(frozen=True)
class RaceHistory:
    """How the candidates stood during a race. All sequences have one length.

    Args:
        rounds: how many rounds were taken at each point, in order.
        seconds: of the race until each point, without those in which candidates entered.
        ratios: by the name of a candidate, its time relative to that of the leader of then; None
            where it did not race.
    """

    rounds: tuple[int, ...]
    seconds: tuple[float, ...]
    ratios: Mapping[str, tuple[float | None, ...]]


@dataclass(frozen=True)
class RaceResult:
    """How a race ended.

    Args:
        outcome: "winner" if one is surely the fastest, "same" if several are within the margin of
            each other and all others are slower, "undecided" if the time was up before, "none" if
            there is no implementation whose times are a basis for a verdict.
        leader: name of the fastest; None if there is none.
        fastest: names of the leader and of all that may be as fast.
        device_s: seconds of timed calls of the implementations that raced.
        full_device_s: about what measuring all of them fully would have taken at the same certainty;
            None if only one had a time.
        history: how the candidates stood meanwhile; None in results of versions that did not keep it.
    """

    outcome: str
    leader: str | None
    fastest: tuple[str, ...]
    device_s: float
    full_device_s: float | None
    history: RaceHistory | None = None


@dataclass(frozen=True)
class ImplementationResult:
    """The result of one implementation. Times are device times of a call in us; None if not
    measured.

    Args:
        name: name of the implementation.
        status: "ok", or the class of the error because of which there are no valid times. "timeout"
            is a call that did not end within its deadline, "crashed" a process that ended, and
            "unchecked" a kernel that cannot run on this machine.
        error: message of that error.
        traceback: of the exception that the implementation raised, at most 4 KB.
        method: how it was timed, such as "events", "graph of 16", "perf_counter".
        n: number of samples that are not masked.
        median_us: median of these samples: the geometric mean of the medians with each of the two
            sets of inputs.
        p5_us, p25_us, p75_us, p95_us, min_us: percentiles and minimum of all these samples.
        ci_low_us, ci_high_us: 95 % confidence interval of the median.
        relative: comparison with the first implementation of the case; None for the first.
        gb_per_s: compulsory bytes divided by the median time.
        share_of_limit: the limit's time divided by this one's; 1 is the speed of a copy.
        peak_bytes: peak of device memory during a call, without its inputs.
        hot_us: median time with inputs that may be in the L2 cache.
        host_us: median time that the CPU needs to queue a call.
        energy_mj: energy of a call in mJ.
        samples_us: the sample of each round; None where there is none.
        race: what came of it in a race; None if there was none.
        verified: whether no code of its author for the host met the clock, as for an upload whose
            launch plans another process carried out.
        tags: remarks such as "suspect" and "not captured".
    """

    name: str
    status: Status
    error: str | None = None
    traceback: str | None = None
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
    race: RaceRow | None = None
    samples_us: tuple[float | None, ...] = ()
    verified: bool = False
    tags: tuple[str, ...] = ()


@dataclass(frozen=True)
class Masked:
    """A round that is excluded from the statistics, and the reason."""

    round: int
    reason: str


@dataclass(frozen=True)
class Readings:
    """The state of a GPU while rounds were taken, read between timed blocks. All have one length.

    Args:
        rounds: number of the last round before each reading, in order.
        sm_clock_mhz: clock of the multiprocessors in MHz; None where the GPU does not tell it, as
            in the following ones.
        power_w: power that the board draws, in W.
        temperature_c: temperature of the GPU, in degrees Celsius.
    """

    rounds: tuple[int, ...] = ()
    sm_clock_mhz: tuple[int | None, ...] = ()
    power_w: tuple[float | None, ...] = ()
    temperature_c: tuple[int | None, ...] = ()

    @classmethod
    def of(cls, taken: Sequence[tuple[int, Reading]]) -> Readings | None:
        """Readings with the numbers of their rounds; None if there are none."""
        if not taken:
            return None
        return cls(
            tuple(number for number, _ in taken),
            tuple(reading.sm_clock_mhz for _, reading in taken),
            tuple(reading.power_w for _, reading in taken),
            tuple(reading.temperature_c for _, reading in taken),
        )


@dataclass(frozen=True)
class CaseResult:
    """The results of all implementations of one case.

    Args:
        key: text that identifies the case.
        op: name of the op.
        spec: complete description of the case.
        device: such as "cuda:0" or "cpu".
        clock: "cuda events" or "perf_counter".
        column: what was measured: "device_cold" means with inputs that are not in the cache.
        precision: name of the preset.
        seed: of the inputs that were timed.
        bytes_moved: compulsory traffic in bytes.
        output_bytes: the part of it that is written.
        rounds: number of all rounds, including masked ones.
        masked: the masked rounds.
        converged: whether the intervals became as narrow as the preset demands.
        margin: log ratios within it count as "same".
        a_a: comparison of the first implementation with itself.
        limit: the copy that moves as many bytes.
        implementations: in the order of the request.
        device_lost: whether an error has made the device unusable for this process.
        seconds: wall time of the whole measurement.
        tags: remarks such as "unstable" and "power capped".
        readings: the state of the GPU during the rounds; None for a CPU, and in results of versions
            that did not read it.
        compile_s: seconds for which implementations were imported and compiled: the imports of
            uploads, and the first call of each implementation without the time of its second one.
        setup_s: seconds of the setups of uploads, which are done before anything is timed.
        race: how the race ended; None if there was none. The samples of those that left end there.
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
    readings: Readings | None = None
    compile_s: float = 0.0
    setup_s: float = 0.0
    race: RaceResult | None = None

    def to_json(self) -> dict[str, Any]:
        """The result as plain data for json.dumps, without NaN or infinities."""
        plain: dict[str, Any] = dataclasses.asdict(self)
        return plain

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> CaseResult:
        """The result of the data that `to_json` returned."""
        limit, readings, race = data["limit"], data.get("readings"), data.get("race")
        return cls(
            **{
                **data,
                "implementations": tuple(map(_implementation, data["implementations"])),
                "limit": None if limit is None else _implementation(limit),
                "masked": tuple(Masked(**m) for m in data["masked"]),
                "a_a": _ratio(data["a_a"]),
                "tags": tuple(data["tags"]),
                "readings": None if readings is None else _readings(readings),
                "race": None if race is None else _race(race),
            }
        )


def _implementation(data: Mapping[str, Any]) -> ImplementationResult:
    tuples = {name: tuple(data[name]) for name in ("samples_us", "tags")}
    others = {"relative": _ratio(data["relative"]), "race": _race_row(data.get("race"))}
    return ImplementationResult(**{**data, **tuples, **others})


def _race(data: Mapping[str, Any]) -> RaceResult:
    history = data.get("history")
    if history is not None:
        ratios = {name: tuple(values) for name, values in history["ratios"].items()}
        times = {name: tuple(history[name]) for name in ("rounds", "seconds")}
        history = RaceHistory(**times, ratios=ratios)
    return RaceResult(**{**data, "fastest": tuple(data["fastest"]), "history": history})


def _race_row(data: Mapping[str, Any] | None) -> RaceRow | None:
    if data is None:
        return None
    ratios = {name: data[name] for name in ("to_leader", "left_ratio")}
    found = {name: one and RaceInterval(**one) for name, one in ratios.items()}
    return RaceRow(**{**data, **found})


def _readings(data: Mapping[str, Any]) -> Readings:
    return Readings(**{name: tuple(values) for name, values in data.items()})


def _ratio(data: Mapping[str, Any] | None) -> Ratio | None:
    return None if data is None else Ratio(**data)
