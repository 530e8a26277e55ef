"""The side of a process that runs uploaded code: it calls and times what it is told to.

The process that measures sends requests, `_remote` lists them. All that this process answers is its
own word about itself: it says how long its calls took, and where its inputs and outputs lie. The
other process reads the outputs there, and has a clock of its own.
"""

from __future__ import annotations

import functools
import socket
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from warpcall_kernels import Op
from warpcall_kernels.measuring import _frames
from warpcall_kernels.measuring._clock import Clock, Tight, clock
from warpcall_kernels.measuring._context import on_device, same_arithmetic
from warpcall_kernels.measuring._executor import BufferSets, Executor
from warpcall_kernels.measuring._failures import class_of, first_line, traceback_of
from warpcall_kernels.measuring._implementations import shipped
from warpcall_kernels.measuring._inputs import BufferLayout, Pool, pool_size
from warpcall_kernels.measuring._outputs import Wrong
from warpcall_kernels.measuring._spec import DTYPES
from warpcall_kernels.measuring._windows import address_of
from warpcall_kernels.op.declaration import Meta

Function = Callable[..., Any]


@dataclass(frozen=True)
class Loaded:
    """What a process with uploaded code has loaded.

    Args:
        function: the uploaded function; it takes inputs and parameters by name.
        op: the op of an uploaded problem, whose reference runs here.
        error: why there is neither.
    """

    function: Function | None = None
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
                request = _frames.receive(sock)
                _frames.send(sock, serving.answer(request))
        except _frames.Ended:
            return


class _Serving:
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
        self._sets: BufferSets | None = None
        self._executor: Executor | None = None
        self._tight: Tight | None = None
        self._row: Any = None
        self._told = 0  # sets of inputs that the other process knows

    def answer(self, request: dict[str, Any]) -> dict[str, Any]:
        """Do what a request asks, and return its answer, or what was raised."""
        try:
            done: dict[str, Any] = getattr(self, f"_do_{request['do']}")(request)
        except Wrong as error:
            return {"failed": {"status": "wrong_result", "error": str(error), "traceback": None}}
        except BaseException as error:  # noqa: BLE001  # code of others may raise anything
            status = class_of(error)
            failed = {"status": status, "error": first_line(error)}
            return {"failed": {**failed, "traceback": traceback_of(error)}}
        return done

    def _do_load(self, request: dict[str, Any]) -> dict[str, Any]:
        self._loaded = self._load(request["data"])
        return {}

    def _do_case(self, request: dict[str, Any]) -> dict[str, Any]:
        """A new case: its parameters, the layouts of its inputs, the metas of its outputs."""
        if self._loaded.error is not None:
            raise self._loaded.error.with_traceback(self._loaded.error.__traceback__)
        self._executor = self._tight = self._sets = self._row = None
        self._told = 0
        if self._device.type == "cuda":
            torch.cuda.empty_cache()
        layouts = {n: BufferLayout.from_json(d) for n, d in request["layouts"].items()}
        metas = {n: Meta(tuple(s), DTYPES[d]) for n, (s, d) in request["outputs"].items()}
        self._sets = BufferSets(layouts, self._device)
        function = self._function(request["role"], request["params"])
        if self._clock is None:
            self._clock = clock(self._device)
        self._executor = Executor(function, self._sets, metas, self._clock, None)
        return self._inputs(1)

    def _do_pool(self, request: dict[str, Any]) -> dict[str, Any]:
        """Memory for the values that are written before timed calls; answers where it lies."""
        assert self._sets is not None
        layouts = self._sets.layouts
        flat = {
            name: torch.zeros(
                pool_size(layout) * layout.dtype.itemsize, dtype=torch.uint8, device=self._device
            ).view(layout.dtype)
            for name, layout in layouts.items()
        }
        self._ready_executor.pool = Pool(layouts, flat)
        return {"pool": {name: address_of(t) for name, t in flat.items()}}

    def _do_call(self, request: dict[str, Any]) -> dict[str, Any]:
        called = self._ready_executor.call(lambda: _frames.send(self._sock, {"returned": True}))
        return {"outputs": self._addresses(called.outputs), "peak_bytes": called.peak_bytes}

    def _do_sets(self, request: dict[str, Any]) -> dict[str, Any]:
        """More sets of inputs; answers where the new ones lie."""
        return self._inputs(request["count"])

    def _do_ready(self, request: dict[str, Any]) -> dict[str, Any]:
        self._ready_executor.ready()
        return self._facts()

    def _do_shorten(self, request: dict[str, Any]) -> dict[str, Any]:
        self._ready_executor.shorten()
        return self._facts()

    def _do_take(self, request: dict[str, Any]) -> dict[str, Any]:
        executor = self._forgotten()
        return {"samples_us": executor.take(request["numbers"], request["places"])}

    def _do_flush(self, request: dict[str, Any]) -> dict[str, Any]:
        assert self._clock is not None
        self._clock.flush()
        return {}

    def _do_sample(self, request: dict[str, Any]) -> dict[str, Any]:
        """One sample on a CPU with the cache as it is; answers where its outputs lie."""
        executor = self._forgotten()
        timed = executor.timed
        assert self._clock is not None
        assert timed is not None
        which = request["which"] % len(timed.sets)
        samples_us = [self._clock.sample_us(timed, which, request["place"])]
        return {"samples_us": samples_us, **self._results(executor.results())}

    def _do_results(self, request: dict[str, Any]) -> dict[str, Any]:
        return self._results(self._ready_executor.results())

    def _do_tighten(self, request: dict[str, Any]) -> dict[str, Any]:
        tight = self._tight = self._ready_executor.tight()
        facts = {**self._facts(), "count": tight.count, "flushes": tight.flushes}
        return {**facts, **self._results(tight.results())} if tight.stays else facts

    def _do_tight(self, request: dict[str, Any]) -> dict[str, Any]:
        """Calls without pauses; on a CPU it answers where the outputs lie, on a GPU they stay."""
        assert self._tight is not None
        self._tight.run()
        moves = self._device.type == "cpu" or not self._tight.stays
        return self._results(self._tight.results()) if moves else {}

    def _do_prepare_row(self, request: dict[str, Any]) -> dict[str, Any]:
        self._row = self._ready_executor.row(request["most_us"])
        return {"calls": self._row.calls}

    def _do_row(self, request: dict[str, Any]) -> dict[str, Any]:
        return {"us": self._row()}

    def _do_ping(self, request: dict[str, Any]) -> dict[str, Any]:
        if self._device.type == "cuda":
            torch.zeros(1, device=self._device)
            torch.cuda.synchronize(self._device)
        return {}

    def _forgotten(self) -> Executor:
        """The executor without outputs of earlier calls, which had other inputs."""
        executor = self._ready_executor
        assert executor.timed is not None
        executor.timed.kept.clear()
        return executor

    @property
    def _ready_executor(self) -> Executor:
        assert self._executor is not None
        return self._executor

    def _function(self, role: str, params: Mapping[str, Any]) -> Function:
        given = {n: tuple(v) if isinstance(v, list) else v for n, v in params.items()}
        op = self._loaded.op
        if op is None:
            assert self._loaded.function is not None
            return functools.partial(self._loaded.function, **given)
        if role == "reference":
            return functools.partial(op.reference, **given)
        (found,) = (one for one in shipped() if one.name == role)
        return found.build(op, given)

    def _facts(self) -> dict[str, Any]:
        timed = self._ready_executor.timed
        assert timed is not None
        return {
            "method": timed.method,
            "rough_us": timed.rough_us,
            "host_us": timed.host_us,
            "repeats": timed.repeats,
            "sets": len(timed.sets),
            "tags": list(timed.tags),
            **self._inputs(len(timed.sets)),
        }

    def _inputs(self, count: int) -> dict[str, Any]:
        """Where the sets of inputs lie that the other process does not know yet."""
        assert self._sets is not None
        self._sets.first(count)
        new = self._sets.buffers[self._told :]
        self._told = len(self._sets.buffers)
        return {"new": [{n: address_of(b.bytes) for n, b in one.items()} for one in new]}

    def _results(self, results: Sequence[tuple[int, tuple[Tensor, ...]]]) -> dict[str, Any]:
        return {"results": [[which, self._addresses(outputs)] for which, outputs in results]}

    def _addresses(self, outputs: Sequence[Tensor]) -> list[dict[str, Any]]:
        return [address_of(t) for t in outputs]
