"""Calls and times one implementation of one case in this process."""

from __future__ import annotations

import collections
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from warpcall_kernels.measuring._clock import KEPT, Clock, Inputs, Row, Tight, Timed
from warpcall_kernels.measuring._inputs import SENTINEL, Buffer, BufferLayout, Values
from warpcall_kernels.measuring._memory import Sets, poison
from warpcall_kernels.measuring._outputs import own_tensors
from warpcall_kernels.op.declaration import Meta

KEPT_BYTES = {"cpu": 256 << 20, "cuda": 2 << 30}  # of outputs that wait to be compared

Function = Callable[..., Any]
Outputs = tuple[Tensor, ...]


class Called(NamedTuple):
    """The outputs of a call, and the most device memory that it took, without its inputs."""

    outputs: Outputs
    peak_bytes: int | None


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

    def write(self, which: int, values: Values) -> None:
        """Write values into a set."""
        self.first(which + 1)
        for name, flat in values.flat.items():
            self.buffers[which][name].write(flat)

    def changed(self, which: int, values: Values) -> str | None:
        """The name of an input that has other values now; None if all are as they were written."""
        for name, flat in values.flat.items():
            buffer = self.buffers[which][name]
            if not buffer.has_only(flat):
                buffer.bytes.fill_(SENTINEL)  # so that nobody else is blamed for it
                return name
        return None


class Executor:
    """One implementation of one case in this process.

    Args:
        function: takes the inputs by name.
        sets: its inputs.
        metas: shapes and dtypes of its outputs.
    """

    def __init__(
        self, function: Function, sets: BufferSets, metas: Mapping[str, Meta], clock: Clock
    ) -> None:
        self._function = function
        self._sets = sets
        self._metas = metas
        self._clock = clock
        self._device = clock.device
        self._last: Outputs = ()  # of the last `call`
        self.timed: Timed | None = None
        self.raised: BaseException | None = None  # by the function, in a timed call

    def write(self, which: int, values: Values) -> None:
        """Write the inputs of a set."""
        self._sets.write(which, values)

    def changed(self, which: int, values: Values) -> str | None:
        """The name of an input of a set that is not as it was written, or None."""
        return self._sets.changed(which, values)

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
        outputs = self._own(result, (0,), (self._last,))
        self._last = outputs if self._kept(2) == 2 else ()
        return Called(outputs, peak)

    def ready(self) -> None:
        """Call the function some times, so that it can be timed."""
        timed = self._clock.ready(self._call, self._sets)
        timed.kept = collections.deque(maxlen=self._kept(KEPT))
        self._last = ()
        self.timed = timed

    def shorten(self) -> None:
        """Time many calls in each sample."""
        assert self.timed is not None
        self._clock.shorten(self.timed, self._sets)

    def take(self, numbers: Sequence[int]) -> list[float]:
        """Take samples, each with a set of inputs, and return the time of a call in us."""
        assert self.timed is not None
        timed = self.timed
        return self._clock.block([(timed, which % len(timed.sets)) for which in numbers])

    def results(self) -> list[tuple[int, Outputs]]:
        """The outputs of the last calls, each with the number of its set of inputs.

        Raises:
            Wrong: one of them is not what a result must be.
        """
        assert self.timed is not None
        return self._all_own(self.timed.results())

    def tight(self) -> Tight:
        """Calls without pauses, and `results` in the form of `Executor.results`."""
        assert self.timed is not None
        found = self._clock.tightly(self.timed, self._kept(1 << 10))
        return Tight(found.run, found.count, found.flushes, lambda: self._all_own(found.results()))

    def row(self, most_us: float) -> Row:
        """Consecutive calls, for the time with inputs that may be in the cache."""
        assert self.timed is not None
        return self._clock.in_a_row(self.timed, most_us)

    def close(self) -> None:
        """Give up what was kept."""
        self.timed, self._last, self.raised = None, (), None

    def _call(self, inputs: Inputs) -> Any:
        try:
            return self._function(**inputs)
        except BaseException as error:
            self.raised = error
            raise

    def _kept(self, most: int) -> int:
        nbytes = max(1, sum(meta.nbytes for meta in self._metas.values()))
        return max(1, min(most, KEPT_BYTES[self._device.type] // nbytes))

    def _all_own(self, results: Sequence[tuple[int, Any]]) -> list[tuple[int, Outputs]]:
        found: list[tuple[int, Outputs]] = []
        for which, result in results:
            earlier = [outputs for _, outputs in found]
            found.append((which, self._own(result, (which,), earlier)))
        return found

    def _own(self, result: Any, sets: Sequence[int], earlier: Sequence[Outputs]) -> Outputs:
        inputs = {
            name: t for which in sets for name, t in self._sets.first(which + 1)[which].items()
        }
        return own_tensors(result, self._metas, self._device, inputs, earlier)
