"""Measures one case of a benchmark: a row of its table."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np

from bench.kernels import phases
from bench.kernels.peers import Peers, by_do_bench
from bench.kernels.references import References
from warpcall_kernels import Op, measuring
from warpcall_kernels.op.cases import Case


class Effort(NamedTuple):
    """How much time a benchmark takes for each case.

    Args:
        rounds: samples of each measurement.
        warm_seconds: the longest warm-up.
        timed: whether anything is timed. Otherwise only our results are checked.
    """

    rounds: int = 30
    warm_seconds: float = 0.2
    timed: bool = True


SHORT = Effort(rounds=8, warm_seconds=0.06)


class Planned(NamedTuple):
    """A case that is to be measured.

    Args:
        group: "recorded", "sweep" or "explore".
        compiled: whether torch.compile is timed for it, although it is not recorded.
    """

    op: Op
    group: str
    case: Case
    compiled: bool = False

    @property
    def key(self) -> tuple[str, str]:
        """The names of the op and of the case."""
        return self.op.name, self.case.name

    @property
    def has_reference(self) -> bool:
        """Whether torch.compile is timed for it."""
        return self.compiled or self.group == "recorded"


class Bench:
    """Measures cases, each in the same way.

    Args:
        effort: the time for each case.
        peers: the recorded times of other implementations.
        device: "cuda", or "cpu" for tests.
        references: the references for torch.compile; None leaves them out.
        spent: to which the time of each phase is added; None means nobody reads it.
    """

    def __init__(
        self,
        effort: Effort,
        peers: Peers,
        device: str,
        references: References | None,
        spent: phases.Phases | None = None,
    ) -> None:
        self._spent = spent or phases.Phases()
        self._precision = measuring.Precision(
            "rounds",
            seconds=10,
            min_rounds=effort.rounds,
            min_seconds=0,
            max_rounds=effort.rounds,
            warm_window_s=effort.warm_seconds / 10,
            warm_seconds=effort.warm_seconds,
            extras=False,
            timed=effort.timed,
        )
        self._peers = peers
        self._device = device
        self._references = references

    def row(self, planned: Planned) -> dict[str, Any]:
        """One line of the table: times in ms, memory in bytes, None for what was not measured."""
        op, group, case = planned[:3]
        job = measuring.JobCase(op, case.inputs, op.check_params(case.params))
        names = ["warpcall", "torch"] if self._precision.timed else ["warpcall"]
        self._spent.begin(phases.REFERENCES)
        before = self._spent.seconds.get(phases.REFERENCES, 0.0)
        if self._references is not None and planned.has_reference:
            reference = self._references.implementation(op, case)
            names += [] if reference is None else [reference]
        called: set[str] = set()

        def note(event: Mapping[str, Any]) -> None:
            self._spent.begin(phases.of_event(event, called))

        measured = measuring.measure(
            job, names, self._device, self._precision, seed=case.seed, progress=note
        )
        self._spent.begin(phases.PEERS)
        if self._references is not None:
            self._references.add(op, self._spent.seconds[phases.REFERENCES] - before)
        ours, *others = measured.implementations
        eager, compiled = others[:1], others[1:]
        samples = [s for s in ours.samples_us if s is not None]
        best = self._peers.best(op.name, case.name)
        by_peers_clock = best is not None and best.clock == "do_bench" and not ours.error
        row = {
            "op": op.name,
            "group": group,
            "case": case.name,
            "bytes": measured.bytes_moved,
            "extra_bytes": _beside_outputs(job, ours.peak_bytes),
            "ms": _ms(ours.median_us),
            "p20_ms": _ms(np.percentile(samples, 20) if samples else None),
            "p80_ms": _ms(np.percentile(samples, 80) if samples else None),
            "method": ours.method,
            "copy_ms": None if measured.limit is None else _ms(measured.limit.median_us),
            "eager_ms": _ms(eager[0].median_us) if eager else None,
            "compile_ms": _ms(compiled[0].median_us) if compiled else None,
            "best_peer": best.name if best else None,
            "best_peer_ms": best.ms if best else None,
            "peer_clock": best.clock if best else None,
            "do_bench_ms": by_do_bench(op, case) if by_peers_clock else None,
            "status": ours.status,
            "error": ours.error,
            "out_of_memory": any(one.status == "oom" for one in measured.implementations),
            "device_lost": measured.device_lost,
        }
        self._spent.begin(None)
        return row


def failed_row(planned: Planned, status: str, error: str) -> dict[str, Any]:
    """The row of a case of which nothing could be measured."""
    times = ("ms", "p20_ms", "p80_ms", "copy_ms", "eager_ms", "compile_ms", "do_bench_ms")
    peer = ("best_peer", "best_peer_ms", "peer_clock")
    return {
        "op": planned.op.name,
        "group": planned.group,
        "case": planned.case.name,
        **dict.fromkeys(("bytes", "extra_bytes", "method", *times, *peer)),
        "status": status,
        "error": error,
        "out_of_memory": status == "oom",
        "device_lost": status == "cuda_error",
    }


def _beside_outputs(job: measuring.JobCase, peak_bytes: int | None) -> int | None:
    """Peak device memory of a call in bytes, without its inputs and its outputs."""
    if peak_bytes is None:
        return None
    given = sum(-(-meta.nbytes // 512) * 512 for meta in job.outputs.values())
    return max(0, peak_bytes - given)


def _ms(us: float | None) -> float | None:
    return None if us is None else float(us) / 1000
