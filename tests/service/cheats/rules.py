"""The rules that catch cheats, and how a test switches each of them off.

A rule is switched off in the process that measures and in that of the upload, by one function that
is replaced. A cheat that succeeds without a rule, and not with it, was caught by this rule.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

PROCESS = "a process of its own"


def _nothing(*_: Any, **__: Any) -> None:
    return None


def _replace(owner: Any, name: str, value: Any) -> None:
    setattr(owner, name, value)


def _kind() -> None:
    from warpcall_kernels.execution import outputs

    _replace(outputs, "_check_kind", _nothing)


def _memory() -> None:
    from warpcall_kernels.execution import executor, outputs, reading

    for module in (executor, outputs, reading):
        _replace(module, "check_extents", _nothing)


def _values() -> None:
    from warpcall_kernels.execution import check

    _replace(check.Expected, "check", _nothing)


def _timed() -> None:
    from warpcall_kernels.measuring import _blocks

    _replace(_blocks.Blocks, "_check_timed", _nothing)


def _inputs() -> None:
    from warpcall_kernels.execution import remote

    _replace(remote.RemoteExecutor, "changed", _nothing)


def _fresh() -> None:
    from warpcall_kernels.measuring import _blocks

    _replace(_blocks.Blocks, "_new_place", lambda _: 7)


def _clock() -> None:
    from warpcall_kernels.execution.claims import CpuClaims

    _replace(CpuClaims, "time_us", lambda self, claim_us, calls: claim_us)
    _replace(CpuClaims, "disagreement", _nothing)


def _overwritten() -> None:
    from warpcall_kernels.execution import reading

    _replace(reading, "_overwrite", _nothing)


def _exchange() -> None:
    from warpcall_kernels.execution import claims

    _replace(claims, "MOST_EXCHANGE_US", 1e9)


def _inputs_last() -> None:
    from warpcall_kernels.execution import remote
    from warpcall_kernels.execution.timed import place_of

    sample = remote.RemoteExecutor._sample

    def early(self: Any, which: int, place: int) -> float:
        number = which % self._known.sets
        self.write(number, self._pool.at(place_of(place, number)))
        return sample(self, which, place)

    _replace(remote.RemoteExecutor, "_sample", early)


def _calls() -> None:
    from warpcall_kernels.execution import answers, remote

    def learn(self: Any, answer: dict[str, Any], calls: int) -> None:
        self._add_sets(answer)
        self.facts = answers.facts(answer)

    _replace(remote.RemoteExecutor, "_learn", learn)


def _all_results() -> None:
    from warpcall_kernels.execution import executor, remote

    read = remote.RemoteExecutor._read_results
    _replace(
        remote.RemoteExecutor, "_read_results", lambda self, found, keys: read(self, found, {*keys})
    )
    _replace(executor.Executor, "shorten", lambda self: self._clock.shorten(self.timed, self._sets))


def _stand_still() -> None:
    import time

    from warpcall_kernels.execution import process

    _replace(process.RemoteProcess, "stop", lambda self: time.sleep(0.01))


def _in_the_upload() -> None:
    """As with the others off: nothing is to be done."""


RULES: dict[str, Callable[[], None]] = {
    "kinds of results": _kind,
    "memory of their own": _memory,
    "values": _values,
    "values of timed calls": _timed,
    "inputs stay": _inputs,
    "fresh values": _fresh,
    "our clock": _clock,
    "outputs are overwritten": _overwritten,
    "trusted latency": _exchange,
    "inputs come last": _inputs_last,
    "numbers of calls": _calls,
    "all results": _all_results,
    "processes stand still": _stand_still,
    PROCESS: _in_the_upload,
}
