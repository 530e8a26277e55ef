"""The side of the process that measures: an implementation that runs in another process.

It sends requests, each an object with the member `do`, and the other process answers each with one
object (`serve`). What the other process says is a claim. Its outputs are read from its memory and
compared here, and its times are held against a clock of this process.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Container, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import torch

from warpcall_kernels.execution import answers
from warpcall_kernels.execution.answers import Facts
from warpcall_kernels.execution.claims import CpuClaims, longer_us
from warpcall_kernels.execution.clock import SWAPPED, Clock
from warpcall_kernels.execution.executor import Called, Outputs, fitting_calls, kept_results
from warpcall_kernels.execution.inputs import BufferLayout, Pool, Values, is_image
from warpcall_kernels.execution.process import Deadlines, RemoteFailed, RemoteProcess, reaching
from warpcall_kernels.execution.reading import RandomSamples, Results, choose_calls, read_outputs
from warpcall_kernels.execution.spec import CODES
from warpcall_kernels.execution.timed import place_of
from warpcall_kernels.execution.windows import Address, Window
from warpcall_kernels.op.declaration import Meta, ParamValue

MOST_PEAK_BYTES = 1 << 50
MOST_LATENCY_US = 600.0  # of an answer, that a claim may hide behind
TIGHT_US = 10_000  # of calls without pauses, so that the start of their block is a small part
TIGHT_BYTES = 8 << 30  # of their outputs, which are all kept
TIGHT_SHARE = 0.25  # of the memory that torch may allocate in the other process, for them
FEWEST_CALLS = 0.5  # of those that fit into a block, from which on our clock confirms a claim
TAKE_S = 30.0  # beyond the expected time of a block


class RemoteExecutor:
    """One implementation of one case in another process; the interface of `Executor`.

    Args:
        role: "" for an uploaded function; of a problem "torch" or "torch.compile".
        pool: of the values of the inputs.
        metas: shapes and dtypes of the outputs.
        number: of the measurement; the process forgets those before.
        share: of a GPU's memory that torch may allocate there.

    Attributes:
        printed: what it printed until its first call had returned; None before.

    Raises:
        RemoteFailed: the process cannot be started, its source not be imported, or its setup failed.
    """

    def __init__(
        self,
        process: RemoteProcess,
        role: str,
        params: Mapping[str, ParamValue],
        pool: Pool,
        metas: Mapping[str, Meta],
        clock: Clock,
        deadlines: Deadlines,
        number: int,
        share: float,
    ) -> None:
        self._process = process
        self._role = role
        self._pool = pool
        self._layouts = layouts = pool.layouts
        self._metas = metas
        self._clock = clock
        self._device = clock.device
        self._tight_bytes = min(TIGHT_BYTES, int(TIGHT_SHARE * share * _memory(clock.device)))
        self._deadlines = deadlines
        self._called = False
        self._addresses: list[dict[str, Any]] = []
        self._written: dict[int, Values] = {}  # into its sets of inputs, for its last calls
        self._places: set[int] = set()  # of the values of its last calls
        self._chosen = RandomSamples(metas)  # of a block on a CPU
        self._claims = CpuClaims(process)
        self._tight_calls = 2  # in a block without pauses
        self._tight_us: list[float] = []  # our clock around such a block, for each call
        self._answers_us: list[float] = []  # of requests for nothing, before such calls
        self._claims_over = 0  # blocks whose claims add up to more than our clock
        self.facts: Facts | None = None
        self.printed: str | None = None
        case = described(params, layouts, metas)
        case |= process.case_data(case, deadlines)
        process.begin(deadlines)
        process.begin_printing()
        self._window = Window(process.peer.pid, self._device)
        answer = self._ask(
            *("case", deadlines.compile_s, "the start of its case"),
            **case,
            case=number,
            share=share,
        )
        self._add_sets(answer)
        if answer.get("setup") is True:
            process.set_up(role, params, deadlines.compile_s)

    def write(self, which: int, values: Values) -> None:
        """Write the inputs of a set."""
        if which >= len(self._addresses):
            call_s = self._deadlines.call_s
            self._add_sets(self._ask("sets", call_s, "more inputs", count=which + 1))
        self._written[which] = values
        with reaching():
            for name, flat in values.flat.items():
                layout, at = self._layouts[name], self._addresses[which][name]
                place = at["address"] + layout.begin * layout.dtype.itemsize
                self._window.write({**at, "address": place}, flat.view(torch.uint8))

    def changed(self) -> str | None:
        """The name of an input that is not as it was written for its last calls, or None."""
        with reaching():
            for which, values in self._written.items():
                for name, flat in values.flat.items():
                    layout = self._layouts[name]
                    found = self._window.read(self._addresses[which][name], layout.nbytes)
                    if not is_image(found, layout, flat):
                        return name
        return None

    def call(self) -> Called:
        """Call the function once with the first set of inputs."""
        call_s = self._deadlines.call_s
        limit_s = call_s if self._called else self._deadlines.compile_s
        answer = self._ask("call", limit_s, "a call", first=lambda _: call_s)
        if not self._called:
            self._called, self.printed = True, self._process.take_printed().text()
        peak = answer.get("peak_bytes")
        known = type(peak) is int and 0 <= peak < MOST_PEAK_BYTES
        with self._sound("an answer about its results"):
            places = answers.addresses(answer.get("outputs"))
        return Called(self._outputs(places), peak if known else None)

    def ready(self) -> None:
        """Call the function some times, so that it can be timed."""
        if self._device.type == "cuda":
            self._write_pool()
        begin = time.perf_counter_ns()
        self._learn(self._ask("ready", self._many_s(10), "its first calls"), 1)
        spent_us = (time.perf_counter_ns() - begin) / 1000
        self._known.rough_us = min(self._known.rough_us, spent_us)  # later deadlines depend on it

    def shorten(self) -> None:
        """Time many calls in each sample."""
        nbytes = sum(t.numel() * t.element_size() for t in self._pool.at(0).tensors.values())
        answer = self._ask("shorten", self._many_s(10), "the capture of its calls")
        self._claims = CpuClaims(self._process)  # samples of one call tell nothing of those of many
        self._learn(answer, self._clock.calls_of_sample(nbytes))

    def take(self, numbers: Sequence[int], places: Sequence[int]) -> list[float]:
        """Take samples, and return the time of a call in us for each. Arguments as for `Executor`."""
        if self._device.type == "cpu":
            return [self._sample(*one) for one in zip(numbers, places, strict=True)]
        limit_s, given = self._many_s(len(numbers)), {"numbers": [*numbers], "places": [*places]}
        begin = time.perf_counter_ns()
        answer = self._ask("take", limit_s, "its timed calls", **given)
        spent_us = (time.perf_counter_ns() - begin) / 1000
        self._note_places(numbers, places)
        samples_us = self._times(answer, len(numbers))
        if sum(samples_us) * self._known.repeats > spent_us:
            self._claims_over += 1
        return [min(time_us, spent_us / self._known.repeats) for time_us in samples_us]

    def results(self) -> Results:
        """The outputs of the last calls, each with the place of its values in the pool."""
        if self._device.type == "cpu":  # they are read before the process may run on
            self._ask("results", self._deadlines.call_s, "its results")  # are they tensors?
            return self._chosen.take()
        answer = self._ask("results", self._deadlines.call_s, "its results")
        return self._read_results(answer["results"], self._places)

    def tighten(self) -> None:
        """Prepare calls without pauses, whose time this process measures."""
        rough_us = self._known.rough_us
        calls = self._tight_calls = self._calls_of_block(rough_us)
        limit_s = self._many_s(calls)
        answer = self._ask("tighten", limit_s, "the capture of its calls", calls=calls)
        self._learn(answer, self._known.repeats)
        self._known.rough_us = rough_us  # measured by samples, not of its first calls

    def time_answer(self) -> None:
        """Measure the time of an answer to a request for nothing, for the next `take_tight`.

        A GPU takes longer for the first work of a process after another one has used it. Before the
        answer and the calls, stop the process and write all sets of inputs. So both take equally
        long to begin.
        """
        begin = time.perf_counter_ns()
        self._ask("ping", self._deadlines.call_s, "an answer")
        self._answers_us.append((time.perf_counter_ns() - begin) / 1000)
        self.stop()

    def take_tight(self) -> Results:
        """Let calls run without pauses while our clock runs, and return their outputs.

        Call `time_answer` some times before, and then write all sets of inputs.
        """
        known, calls, ends = self._known, self._tight_calls, list[int]()

        def first(_: dict[str, Any]) -> float:
            ends.append(time.perf_counter_ns())
            return self._deadlines.call_s

        limit_s, begin = self._many_s(calls), time.perf_counter_ns()
        answer = self._ask("tight", limit_s, "its timed calls", first=first)
        spent_us = ([*ends, time.perf_counter_ns()][0] - begin) / 1000
        self.stop()
        found = answer.get("results", known.tight_results)
        results = self._read_results(found, [i % known.sets for i in range(calls)])
        # A copy at once: work that is not done yet must not be done before they are compared.
        copies = [(key, tuple(t.clone() for t in outputs)) for key, outputs in results]
        self._clock.synchronize()
        answer_us = min(float(np.median(self._answers_us)), MOST_LATENCY_US)
        self._answers_us.clear()
        self._tight_us.append((spent_us - answer_us) / calls)
        return copies

    def doubt(self, median_us: float) -> str | None:
        """Why its times cannot be right; None if our clock agrees with them.

        Args:
            median_us: the median of its claims.
        """
        if self._claims_over > 1:
            return "its own times add up to more than the time that passed"
        if self._device.type == "cpu":
            found = self._claims.disagreement(median_us, self._known.repeats)
        else:
            real_us = longer_us(self._tight_us, self._tight_calls, median_us)
            found = (median_us, real_us) if real_us and self._is_captured else None
        if found is None:
            return None
        said, real = (f"{us:.4g} us" for us in found)
        return f"its process says that a call takes {said}, by our own clock it takes {real}"

    def hidden_share(self, median_us: float) -> float:
        """How much longer its calls may take than it says, as a share, without a doubt of ours."""
        if self._device.type == "cuda":
            return 0.0
        return self._claims.hidden_share(median_us, self._known.repeats)

    def is_confirmed(self, median_us: float) -> bool:
        """Whether our clock can confirm the times of its calls.

        On a CPU they must take long enough, and others must leave it time enough. On a GPU a block
        must have as many calls as fit, which a process could lower by a claim to take long, and our
        clock also counts the time in which calls are queued that no graph captures.
        """
        if self._device.type == "cpu":
            return self._claims.is_confirmed(median_us, self._known.repeats)
        if self._tight_calls < FEWEST_CALLS * self._calls_of_block(median_us):
            return False
        return self._is_captured or not longer_us(self._tight_us, self._tight_calls, median_us)

    def prepare_row(self, most_us: float) -> int:
        """Prepare consecutive calls, and return how many."""
        answer = self._ask("prepare_row", self._many_s(100), "its calls in a row", most_us=most_us)
        calls = answer.get("calls")
        if type(calls) is not int or not 0 < calls < 1 << 30:
            raise self._process.broken("an answer")
        return calls

    def run_row(self) -> float:
        """Make the prepared calls, and return the time of one in us."""
        found = self._ask("row", self._many_s(1), "its calls in a row").get("us")
        return self._times({"samples_us": [found]}, 1)[0]

    @property
    def sets(self) -> int:
        """The number of its sets of inputs, or of those that it must have."""
        return max(len(self._addresses), SWAPPED)

    def stop(self) -> None:
        """Let the process wait without taking time from others, until the next request."""
        self._process.stop()

    def end(self) -> None:
        """End the process."""
        self._window.close()
        self._process.end()

    def retire(self) -> None:
        """End the process, which has done nothing wrong."""
        self._window.close()
        self._process.retire()

    def close(self) -> None:
        """Give up what was opened in the other process."""
        self._window.close()

    @property
    def _is_captured(self) -> bool:
        return "not captured" not in self._known.tags

    @property
    def _known(self) -> Facts:
        assert self.facts is not None
        return self.facts

    def _ask(self, do: str, limit_s: float, what: str, **more: Any) -> dict[str, Any]:
        try:
            return self._process.ask(do, limit_s, what, role=self._role, **more)
        except RemoteFailed:
            self._window.close()
            raise

    def _many_s(self, calls: int) -> float:
        """Seconds for a number of calls of which each has its own deadline, and usually takes less."""
        call_s, rough_us = self._deadlines.call_s, self._known.rough_us if self.facts else 0.0
        return call_s + calls * min(3 * rough_us / 1e6, call_s) + (0 if self._called else TAKE_S)

    def _calls_of_block(self, call_us: float) -> int:
        """The number of calls in a block without pauses, whose outputs must all fit."""
        most = fitting_calls(self._metas, answers.MOST_RESULTS, self._tight_bytes)
        return max(2, min(most, int(TIGHT_US / max(call_us, 1))))

    def _write_pool(self) -> None:
        """Give the process the pool of values, from which it writes its inputs."""
        answer = self._ask("pool", self._deadlines.call_s, "more memory")
        with self._sound("an answer about its inputs"):
            (found,) = answers.sets([answer.get("pool")], self._layouts)
        with reaching():
            for name, flat in self._pool.flat.items():
                self._window.write(found[name], flat.view(torch.uint8))

    def _note_places(self, numbers: Sequence[int], places: Sequence[int]) -> None:
        """Remember which values the last calls had, and so its sets of inputs."""
        known = self._known
        self._places, self._written = set(), {}
        captured = known.method.startswith("graph")
        for which, place in [(0, places[0])] if captured else zip(numbers, places, strict=True):
            for i in range(which, which + known.repeats):
                number = i % known.sets
                self._places.add(place_of(place, number))
                self._written[number] = self._pool.at(place_of(place, number))

    def _sample(self, which: int, place: int) -> float:
        """Take one sample on a CPU, of which our clock has the last word.

        The process stands still while its inputs are written and the cache is overwritten, so that
        it cannot compute before the sample begins. Our clock runs until the process stands still
        again, so that it cannot compute after it has answered.
        """
        known, call_s = self._known, self._deadlines.call_s
        numbers = [i % known.sets for i in range(which, which + known.repeats)]
        places = [place_of(place, number) for number in numbers]
        self._ask("forget", call_s, "an answer")  # freeing old outputs takes time
        self._clock.flush()  # as before the sample
        self._claims.measure_exchange(lambda: self._ask("ping", call_s, "an answer"))
        self._written = {}
        for number, one in zip(numbers, places, strict=True):
            self.write(number, self._pool.at(one))
        keys = places[-kept_results(self._metas, known.repeats, self._device) :]
        self._clock.flush()
        limit_s, what = self._many_s(known.repeats), "a timed call"
        answer = self._claims.run(
            lambda: self._ask("sample", limit_s, what, which=which, place=place)
        )
        (claim_us,) = self._times(answer, 1)
        self._chosen.add(lambda: self._read_results(answer.get("results", ()), keys))
        return self._claims.time_us(claim_us, known.repeats)

    def _times(self, answer: dict[str, Any], count: int) -> list[float]:
        with self._sound("an answer about its times"):
            return answers.times(answer.get("samples_us"), count)

    def _learn(self, answer: dict[str, Any], calls: int) -> None:
        """Take over what it says of its timed calls.

        Args:
            calls: in one sample, as both processes compute it. A process that says more of them
                would divide the time of a sample by calls that it does not make.
        """
        self._add_sets(answer)
        with self._sound("an answer about its calls"):
            facts = answers.facts(answer)
            if self._device.type == "cpu" and facts.repeats != calls:
                raise answers.Unsound
            if facts.sets > len(self._addresses):
                raise answers.Unsound
        self.facts = facts

    def _add_sets(self, answer: dict[str, Any]) -> None:
        with self._sound("an answer about its inputs"):
            new = answers.sets(answer.get("new"), self._layouts)
            if len(self._addresses) + len(new) > answers.MOST_SETS:
                raise answers.Unsound
        self._addresses += new

    def _read_results(self, results: Any, keys: Container[int]) -> Results:
        """Read the outputs of some calls.

        Args:
            keys: that the results may have; those of a list must all be there, in this order.
        """
        with self._sound("an answer about its results"):
            found = answers.results(results, keys)
            if isinstance(keys, list) and [key for key, _ in found] != keys:
                raise answers.Unsound  # some calls have no outputs
            some = choose_calls(found, self._metas)
        return [(key, self._outputs(places)) for key, places in some]

    @contextlib.contextmanager
    def _sound(self, what: str) -> Iterator[None]:
        """End the process if it sent what it may not send."""
        try:
            yield
        except answers.Unsound:
            raise self._process.broken(what) from None

    def _outputs(self, places: Sequence[Address]) -> Outputs:
        """Read the outputs of a call where they lie."""
        inputs = [
            (f"the input {name}", answers.place(one[name]), self._layouts[name].nbytes)
            for one in self._addresses
            for name in self._layouts
        ]
        return read_outputs(self._window, places, self._metas, inputs, self._device)


def described(
    params: Mapping[str, ParamValue],
    layouts: Mapping[str, BufferLayout],
    metas: Mapping[str, Meta],
) -> dict[str, Any]:
    """What another process must know of a case."""
    return {
        "params": dict(params),
        "layouts": {name: layout.to_json() for name, layout in layouts.items()},
        "outputs": {name: [list(m.shape), CODES[m.dtype]] for name, m in metas.items()},
    }


def _memory(device: torch.device) -> int:
    """Bytes of memory of a GPU; on a CPU there is no such limit."""
    if device.type == "cpu":
        return 1 << 62
    return int(torch.cuda.get_device_properties(device).total_memory)
