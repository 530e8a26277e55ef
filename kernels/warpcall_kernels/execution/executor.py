"""Calls and times one implementation of one case in this process."""

from __future__ import annotations

import collections
import dataclasses
import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from warpcall_kernels.execution.clock import KEPT, Clock
from warpcall_kernels.execution.inputs import (
    SENTINEL,
    Buffer,
    BufferLayout,
    Pool,
    Sets,
    Values,
    poison,
)
from warpcall_kernels.execution.outputs import check_extents, extent_of, own_tensors
from warpcall_kernels.execution.setup import STATE
from warpcall_kernels.execution.timed import Inputs, Row, Tight, Timed
from warpcall_kernels.op.declaration import Meta

KEPT_BYTES = {"cpu": 256 << 20, "cuda": 2 << 30}  # of outputs that wait to be compared

Function = Callable[..., Any]
Outputs = tuple[Tensor, ...]


class Called(NamedTuple):
    """The outputs of a call, and the most device memory that it took, without its inputs."""

    outputs: Outputs
    peak_bytes: int | None


def kept_results(metas: Mapping[str, Meta], most: int, device: torch.device) -> int:
    """Of how many calls, at most `most`, the outputs are kept until they are compared."""
    return fitting_calls(metas, most, KEPT_BYTES[device.type])


def fitting_calls(metas: Mapping[str, Meta], most: int, nbytes: int) -> int:
    """The number of calls, at most `most` and at least one, whose outputs fit into so many bytes."""
    return max(1, min(most, nbytes // max(1, sum(meta.nbytes for meta in metas.values()))))


class BufferSets(Sets):
    """Sets of buffers for the inputs of a case, shared by the implementations in one process."""

    def __init__(self, layouts: Mapping[str, BufferLayout], device: torch.device) -> None:
        buffers: list[dict[str, Buffer]] = []

        def new_set() -> Inputs:  # without a reference to this object, which would keep it alive
            made = {name: Buffer(layout, device) for name, layout in layouts.items()}
            buffers.append(made)
            return {name: buffer.tensor for name, buffer in made.items()}

        super().__init__(new_set)
        self.buffers = buffers
        self.layouts = layouts
        self.written: dict[int, tuple[object, Values]] = {}  # by whom, and what, by set
        self.filled: dict[int, tuple[object, int]] = {}  # for whom, and from which place

    def write(self, which: int, values: Values, whose: object = None) -> None:
        """Write values into a set, for a call of somebody."""
        self.first(which + 1)
        self.written[which] = whose, values
        self.filled.pop(which, None)
        for name, flat in values.flat.items():
            self.buffers[which][name].write(flat)

    def changed(self, whose: object) -> str | None:
        """The name of an input that was written for a call of somebody and is different now."""
        for which, (owner, values) in self.written.items():
            for name, flat in values.flat.items():
                buffer = self.buffers[which][name]
                if owner is whose and not buffer.has_only(flat):
                    buffer.bytes.fill_(SENTINEL)  # so that nobody else is blamed for it
                    return name
        return None


class Executor:
    """One implementation of one case in this process.

    Args:
        function: takes the inputs by name.
        sets: its inputs.
        metas: shapes and dtypes of its outputs.
        pool: of the values that are written before timed calls; None if another process writes them.
    """

    def __init__(
        self,
        function: Function,
        sets: BufferSets,
        metas: Mapping[str, Meta],
        clock: Clock,
        pool: Pool | None,
    ) -> None:
        self._function = function
        self._sets = sets
        self._metas = metas
        self._clock = clock
        self._device = clock.device
        self.pool = pool
        self._last: Outputs = ()  # of the last `call`
        self.timed: Timed | None = None
        self.raised: BaseException | None = None  # by the function, in a timed call

    def give_state(self, state: object) -> None:
        """Pass what the setup of the function has returned to each of its calls."""
        self._function = functools.partial(self._function, **{STATE: state})

    def write(self, which: int, values: Values) -> None:
        """Write the inputs of a set."""
        self._sets.write(which, values, self)

    def changed(self) -> str | None:
        """The name of an input that is not as it was written for its last calls, or None."""
        return self._sets.changed(self)

    def call(self, returned: Callable[[], None] = lambda: None) -> Called:
        """Call the function once with the first set of inputs.

        Args:
            returned: called when the function has returned, before its work on a GPU has ended.

        Raises:
            Wrong: the result is not what a result must be.
        """
        inputs = self._sets.first(1)[0]
        poison(self._metas.values(), self._device)
        peak = None
        if self._device.type != "cuda":
            result = self._function(**inputs)
        else:
            torch.cuda.synchronize(self._device)
            torch.cuda.reset_peak_memory_stats(self._device)
            before = torch.cuda.memory_allocated(self._device)
            result = self._function(**inputs)
            returned()
            torch.cuda.synchronize(self._device)
            peak = max(0, torch.cuda.max_memory_allocated(self._device) - before)
        outputs = self._own(result, (self._last,))
        self._last = outputs if self._kept(2) == 2 else ()
        return Called(outputs, peak)

    def ready(self) -> None:
        """Call the function some times, so that it can be timed."""
        timed = self._clock.ready(self._call, self._sets)
        timed.kept = collections.deque(maxlen=self._kept(KEPT))
        if self.pool is not None:
            timed.fill = self._fill
        self._last = ()
        self.timed = timed

    def shorten(self) -> None:
        """Time many calls in each sample."""
        assert self.timed is not None
        self._clock.shorten(self.timed, self._sets)
        # All of them are kept: a function could compute only those that are.
        self.timed.kept = collections.deque(maxlen=self._kept(max(KEPT, self.timed.repeats)))

    def take(self, numbers: Sequence[int], places: Sequence[int]) -> list[float]:
        """Take samples, and return the time of a call in us for each.

        Args:
            numbers: of their sets of inputs.
            places: of the values in the pool.
        """
        assert self.timed is not None
        timed = self.timed
        return self._clock.block([(timed, which % len(timed.sets)) for which in numbers], places)

    def results(self) -> list[tuple[int, Outputs]]:
        """The outputs of the last calls, each with the place of its values in the pool.

        Raises:
            Wrong: one of them is not what a result must be.
        """
        assert self.timed is not None
        return self._all_own(self.timed.results())

    def tight(self, calls: int) -> Tight:
        """So many calls without pauses, and `results` in the form of `Executor.results`."""
        assert self.timed is not None
        found = self._clock.tightly(self.timed, calls)
        return dataclasses.replace(found, results=lambda: self._all_own(found.results()))

    def row(self, most_us: float) -> Row:
        """Consecutive calls, for the time with inputs that may be in the cache."""
        assert self.timed is not None
        return self._clock.in_a_row(self.timed, most_us)

    def close(self) -> None:
        """Give up what was kept."""
        self.timed, self._last, self.raised = None, (), None
        self._sets.written.clear()
        self._sets.filled.clear()

    def _fill(self, number: int, place: int) -> None:
        """Write the values of a place of the pool into a set, unless they are there."""
        assert self.pool is not None
        if self._sets.filled.get(number) == (self, place):
            return
        values = self.pool.at(place)
        if self._sets.filled.get(number, (None, None))[1] == place:
            self._sets.written[number] = self, values
        else:
            self._sets.write(number, values, self)
        self._sets.filled[number] = self, place

    def _call(self, inputs: Inputs) -> Any:
        try:
            return self._function(**inputs)
        except BaseException as error:
            self.raised = error
            raise

    def _kept(self, most: int) -> int:
        return kept_results(self._metas, most, self._device)

    def _all_own(self, results: Sequence[tuple[int, Any]]) -> list[tuple[int, Outputs]]:
        found = [(key, self._own(result, ())) for key, result in results]
        extents = [
            (name, *extent_of(t))
            for _, outputs in found
            for name, t in zip(self._metas, outputs, strict=True)
        ]
        check_extents(extents)
        return found

    def _own(self, result: Any, earlier: Sequence[Outputs]) -> Outputs:
        inputs = [
            (name, buffer.bytes) for made in self._sets.buffers for name, buffer in made.items()
        ]
        return own_tensors(result, self._metas, self._device, inputs, earlier)
