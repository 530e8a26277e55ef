"""The side of a process that runs uploaded code: it makes the requested calls, and times them.

The process that measures sends requests (`remote`). All that this process answers is its
own word about itself: it says how long its calls took, and where its inputs and outputs lie. The
other process reads the outputs there, and has a clock of its own.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import secrets
import socket
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from warpcall_kernels import Op
from warpcall_kernels.execution import frames
from warpcall_kernels.execution.clock import Clock, clock
from warpcall_kernels.execution.context import on_device, same_arithmetic
from warpcall_kernels.execution.executor import BufferSets, Executor
from warpcall_kernels.execution.failures import class_of, first_line, traceback_of
from warpcall_kernels.execution.implementations import shipped
from warpcall_kernels.execution.inputs import BufferLayout, Pool, pool_size
from warpcall_kernels.execution.outputs import Wrong, parts_of
from warpcall_kernels.execution.setup import described
from warpcall_kernels.execution.spec import CODES, DTYPES, make_case
from warpcall_kernels.execution.timed import Row, Tight
from warpcall_kernels.execution.verified import PLAN_BYTES, read_plan
from warpcall_kernels.execution.windows import address_of
from warpcall_kernels.interpreter import needs_gpu
from warpcall_kernels.op.declaration import Meta
from warpcall_kernels.op.tolerance import RowTolerance
from warpcall_kernels.verified.launcher import OutOfBounds, PlannedFunction, overwriting

Function = Callable[..., Any]
RENEWED = 8  # blocks, on average, between two loads of the kernels of a plan


@dataclass(frozen=True)
class Loaded:
    """What a process with uploaded code has loaded.

    Args:
        function: the uploaded function; it takes inputs and parameters by name.
        setup: what returns the state that the function takes, too; None if it takes none.
        op: the op of an uploaded problem, whose reference runs here.
        error: why there is neither.
    """

    function: Function | None = None
    setup: Function | None = None
    op: Op | None = None
    error: BaseException | None = None


def serve(
    sock: socket.socket,
    load: Callable[[dict[str, Any]], Loaded],
    device: torch.device | str | None = None,
) -> None:
    """Answer requests until the process that measures has ended.

    Args:
        sock: the connection to it.
        load: imports the uploaded source; called once, with what was sent for it.
        device: on which the code runs; None means the current GPU if CUDA is in use, else the CPU.
    """
    if device is None:
        in_use = torch.cuda.is_initialized()  # type: ignore[no-untyped-call]  # torch's gap
        device = torch.device("cuda" if in_use else "cpu")
    on = torch.device(device)
    if on.type == "cuda" and on.index is None:
        on = torch.device("cuda", torch.cuda.current_device())
    with on_device(on), same_arithmetic(), torch.no_grad():
        serving = _Serving(sock, load, on)
        try:
            while True:
                request = frames.receive(sock, most_bytes=PLAN_BYTES)
                frames.send(sock, {**serving.answer(request), "number": request["number"]})
        except frames.Ended:
            return


class _Serving:
    """Answers the requests about the process as a whole; a `_Call` has those about a function.

    Args:
        sock: for messages before an answer.
    """

    def __init__(
        self,
        sock: socket.socket,
        load: Callable[[dict[str, Any]], Loaded],
        device: torch.device,
    ) -> None:
        self._sock = sock
        self._load = load
        self._device = device
        self._loaded = Loaded()
        self._clock: Clock | None = None
        self._case = 0
        self._calls: dict[str, _Call] = {}  # by role
        self._reference: tuple[BufferSets, Any] | None = None

    def answer(self, request: dict[str, Any]) -> dict[str, Any]:
        """Do what a request asks, and return its answer, or what was raised."""
        name = f"do_{request['do']}"
        try:
            of_process = getattr(self, name, None)
            function = of_process or getattr(self._calls[request["role"]], name)
            answer: dict[str, Any] = function(request)
        except (Wrong, OutOfBounds) as error:
            _flush()
            return {"failed": {"status": "wrong_result", "error": str(error), "traceback": None}}
        except BaseException as error:  # noqa: BLE001  # code of others may raise anything
            failed = {"status": class_of(error), "error": first_line(error)}
            if self._device.type == "cpu" and needs_gpu(error):
                failed = {
                    "status": "unchecked",
                    "error": f"needs a GPU: not checked: {failed['error']}",
                }
            _flush()
            return {"failed": {**failed, "traceback": traceback_of(error)}}
        return answer

    def do_load(self, request: dict[str, Any]) -> dict[str, Any]:
        """Import the source; says first that this process has imported what it needs itself."""
        frames.send(self._sock, {"first": True, "number": request["number"]})
        self._loaded = self._load(request["data"])
        _flush()
        return {}

    def do_ping(self, request: dict[str, Any]) -> dict[str, Any]:
        """Nothing, on a GPU as well."""
        if self._device.type == "cuda":
            torch.zeros(1, device=self._device)
            torch.cuda.synchronize(self._device)
        return {}

    def do_case(self, request: dict[str, Any]) -> dict[str, Any]:
        """A new call: its role, its parameters, the layouts of inputs, the metas of outputs."""
        self._raise_if_not_loaded()
        if request["case"] != self._case:
            self._case, self._calls, self._reference = request["case"], {}, None
            if self._device.type == "cuda":
                torch.cuda.empty_cache()
                torch.cuda.set_per_process_memory_fraction(request["share"], self._device)
        layouts = {n: BufferLayout.from_json(d) for n, d in request["layouts"].items()}
        metas = {n: Meta(tuple(s), DTYPES[d]) for n, (s, d) in request["outputs"].items()}
        sets = BufferSets(layouts, self._device)
        if self._clock is None:
            self._clock = clock(self._device)
        planned = None
        if "plan" in request:
            planned = PlannedFunction(read_plan(request["plan"], layouts, metas), metas)
        function = planned or self._function(request["role"], request["params"])
        executor = Executor(function, sets, metas, self._clock, None)
        call = _Call(self._sock, executor, sets, self._clock, planned)
        self._calls[request["role"]] = call
        needs_setup = planned is None and self._loaded.setup is not None
        return {**call.inputs(1), "setup": needs_setup}

    def do_setup(self, request: dict[str, Any]) -> dict[str, Any]:
        """Call the setup of the uploaded function, before values of its inputs are known."""
        assert self._loaded.setup is not None
        call = self._calls[request["role"]]
        given = _params(request["params"])
        call.give_state(self._loaded.setup(**described(call.layouts, self._device), **given))
        if self._device.type == "cuda":
            torch.cuda.synchronize(self._device)
        _flush()
        return {}

    def do_describe(self, request: dict[str, Any]) -> dict[str, Any]:
        """What the op of a problem says about a case."""
        self._raise_if_not_loaded()
        assert self._loaded.op is not None
        case = make_case(self._loaded.op, request["spec"], timed=request["timed"])
        tolerance = case.op.tolerance
        assert tolerance is None or isinstance(tolerance, RowTolerance)
        return {
            "name": case.op.name,
            "spec": case.spec,
            "outputs": {n: [list(m.shape), CODES[m.dtype]] for n, m in case.outputs.items()},
            "bytes_moved": case.bytes_moved,
            "tolerance": None
            if tolerance is None
            else {CODES[dtype]: error for dtype, error in tolerance.by_dtype.items()},
        }

    def do_reference_inputs(self, request: dict[str, Any]) -> dict[str, Any]:
        """Memory for the inputs of the reference; answers where it lies."""
        layouts = {n: BufferLayout.from_json(d) for n, d in request["layouts"].items()}
        sets = BufferSets(layouts, self._device)
        sets.first(1)
        self._reference = sets, None
        return {"inputs": {n: address_of(b.bytes) for n, b in sets.buffers[0].items()}}

    def do_reference(self, request: dict[str, Any]) -> dict[str, Any]:
        """Call the reference of a problem; answers what its outputs are, and where."""
        assert self._loaded.op is not None
        assert self._reference is not None
        sets, _ = self._reference
        given = _params(request["params"])
        result = parts_of(self._loaded.op.reference(**sets.first(1)[0], **given))
        outputs = tuple(t.contiguous() for t in result)
        if self._device.type == "cuda":
            torch.cuda.synchronize(self._device)
        self._reference = sets, outputs
        kinds = [[list(t.shape), CODES[t.dtype]] for t in outputs]
        return {"kinds": kinds, "outputs": [address_of(t) for t in outputs]}

    def _raise_if_not_loaded(self) -> None:
        if (error := self._loaded.error) is not None:
            raise error.with_traceback(error.__traceback__)

    def _function(self, role: str, params: Mapping[str, Any]) -> Function:
        given, op = _params(params), self._loaded.op
        if op is None:
            assert self._loaded.function is not None
            return functools.partial(self._loaded.function, **given)
        (found,) = (one for one in shipped() if one.name == role)
        return found.build(op, given)


class _Call:
    """One function in one case, and what was prepared for it."""

    def __init__(
        self,
        sock: socket.socket,
        executor: Executor,
        sets: BufferSets,
        clock: Clock,
        planned: PlannedFunction | None,
    ) -> None:
        self._sock = sock
        self._planned = planned
        self._executor = executor
        self._sets = sets
        self._clock = clock
        self._tight: Tight | None = None
        self._row: Row | None = None
        self._announced = 0  # sets of inputs that the other process knows

    @property
    def layouts(self) -> Mapping[str, BufferLayout]:
        """How its inputs lie in memory."""
        return self._sets.layouts

    def give_state(self, state: object) -> None:
        """Pass what the setup of the function has returned to each of its calls."""
        self._executor.give_state(state)

    def do_pool(self, request: dict[str, Any]) -> dict[str, Any]:
        """Memory for the values that are written before timed calls; answers where it lies."""
        layouts, device = self._sets.layouts, self._clock.device
        flat = {
            name: torch.zeros(
                pool_size(layout) * layout.dtype.itemsize, dtype=torch.uint8, device=device
            ).view(layout.dtype)
            for name, layout in layouts.items()
        }
        self._executor.pool = Pool(layouts, flat)
        return {"pool": {name: address_of(t) for name, t in flat.items()}}

    def do_call(self, request: dict[str, Any]) -> dict[str, Any]:
        """One call; says first that the function has returned, and then where its outputs lie."""
        first = {"first": True, "number": request["number"]}
        checking = contextlib.nullcontext() if self._planned is None else self._planned.checking()
        with checking:
            called = self._executor.call(lambda: frames.send(self._sock, first))
        _flush()
        return {"outputs": _addresses(called.outputs), "peak_bytes": called.peak_bytes}

    def do_sets(self, request: dict[str, Any]) -> dict[str, Any]:
        """More sets of inputs; answers where the new ones lie."""
        return self.inputs(request["count"])

    def do_ready(self, request: dict[str, Any]) -> dict[str, Any]:
        """The first calls."""
        if self._planned is not None:
            self._planned.choose(self._sets.first(1)[0])
        self._executor.ready()
        if self._planned is not None and (labels := self._planned.chosen):
            assert self._executor.timed is not None
            # In words of ours: a label could be a tag that means something, such as "not captured".
            self._executor.timed.tags += (f"chosen: {'; '.join(labels)}",)
        return self._facts()

    def do_shorten(self, request: dict[str, Any]) -> dict[str, Any]:
        """Many calls in each sample from now on."""
        if self._planned is None:
            self._executor.shorten()
            return self._facts()
        with self._planned.keeping() as memory:
            self._executor.shorten()
        timed = self._executor.timed
        assert timed is not None
        if timed.replay is not None and timed.fill is not None:
            timed.fill = overwriting(timed.fill, memory)
        return self._facts()

    def do_take(self, request: dict[str, Any]) -> dict[str, Any]:
        """Samples on a GPU; answers their times."""
        self._forget()
        if self._planned is not None and secrets.randbelow(RENEWED) == 0:
            self._planned.renew()  # what a graph launches stays as it was captured
        return {"samples_us": self._executor.take(request["numbers"], request["places"])}

    def do_forget(self, request: dict[str, Any]) -> dict[str, Any]:
        """Free the outputs of earlier calls."""
        self._forget()
        return {}

    def do_sample(self, request: dict[str, Any]) -> dict[str, Any]:
        """One sample on a CPU with the cache as it is; answers its time, and where outputs lie."""
        timed = self._executor.timed
        assert timed is not None
        which = request["which"] % len(timed.sets)
        samples_us = [self._clock.sample_us(timed, which, request["place"])]
        results = [[key, _places(result)] for key, result in timed.results()]
        return {"samples_us": samples_us, "results": results}

    def do_results(self, request: dict[str, Any]) -> dict[str, Any]:
        """Where the outputs of the last calls lie."""
        return _results(self._executor.results())

    def do_tighten(self, request: dict[str, Any]) -> dict[str, Any]:
        """Prepare calls without pauses; answers where their outputs will lie, if they stay there."""
        tight = self._tight = self._executor.tight(request["calls"])
        facts = self._facts()
        return {**facts, **_results(tight.results())} if tight.stays else facts

    def do_tight(self, request: dict[str, Any]) -> dict[str, Any]:
        """Calls without pauses; says when they are done, then where outputs lie that do not stay."""
        assert self._tight is not None
        self._sets.filled.clear()  # the other process has written other values
        self._tight.run()
        frames.send(self._sock, {"first": True, "number": request["number"]})
        return {} if self._tight.stays else _results(self._tight.results())

    def do_prepare_row(self, request: dict[str, Any]) -> dict[str, Any]:
        """Prepare consecutive calls; answers how many."""
        self._row = self._executor.row(request["most_us"])
        return {"calls": self._row.calls}

    def do_row(self, request: dict[str, Any]) -> dict[str, Any]:
        """Consecutive calls; answers the time of one."""
        assert self._row is not None
        return {"us": self._row()}

    def inputs(self, count: int) -> dict[str, Any]:
        """Where the sets of inputs lie that the other process does not know yet."""
        self._sets.first(count)
        new = self._sets.buffers[self._announced :]
        self._announced = len(self._sets.buffers)
        return {"new": [{n: address_of(b.bytes) for n, b in one.items()} for one in new]}

    def _forget(self) -> None:
        """Forget outputs of earlier calls, which had other inputs."""
        timed = self._executor.timed
        assert timed is not None
        timed.kept.clear()

    def _facts(self) -> dict[str, Any]:
        timed = self._executor.timed
        assert timed is not None
        return {
            "method": timed.method,
            "rough_us": timed.rough_us,
            "host_us": timed.host_us,
            "repeats": timed.repeats,
            "sets": len(timed.sets),
            "tags": list(timed.tags),
            **self.inputs(len(timed.sets)),
        }


def _flush() -> None:
    """Write out what Python and C have buffered of what the code printed."""
    for stream in (sys.stdout, sys.stderr):  # the code may have put anything in their place
        with contextlib.suppress(BaseException):
            stream.flush()
    ctypes.CDLL(None).fflush(None)


def _params(params: Mapping[str, Any]) -> dict[str, Any]:
    return {name: tuple(v) if isinstance(v, list) else v for name, v in params.items()}


def _results(results: Sequence[tuple[int, tuple[Tensor, ...]]]) -> dict[str, Any]:
    return {"results": [[key, _addresses(outputs)] for key, outputs in results]}


def _addresses(outputs: Sequence[Tensor]) -> list[dict[str, Any]]:
    return [address_of(t) for t in outputs]


def _places(result: Any) -> list[dict[str, Any]]:
    """Where the outputs of a call lie on a CPU, before anybody knows whether they are outputs."""
    return [{"address": t.data_ptr()} for t in parts_of(result) if isinstance(t, Tensor)]
