"""Calls whose inputs and outputs are on the heap, such as those of a page."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import replace

from warpcall.errors import TooLarge
from warpcall.wire import TensorInfo
from warpcall_service.formats.params import Params
from warpcall_service.http.exchange import Exchange
from warpcall_service.lanes.engine import LocalEngine
from warpcall_service.lanes.free_ranges import round_up
from warpcall_service.lanes.plan import ALIGNMENT
from warpcall_service.settings import Settings


class ValueCalls:
    """Runs calls with the bytes of their tensors."""

    def __init__(self, settings: Settings, engine: LocalEngine) -> None:
        self._settings = settings
        self._engine = engine

    async def run_values(
        self,
        exchange: Exchange,
        op: str,
        inputs: Sequence[tuple[TensorInfo, memoryview]],
        params: Params,
        most_output_nbytes: int,
    ) -> tuple[Sequence[TensorInfo], bytes, str]:
        """Run a call, and record its op and stages for the log.

        Args:
            exchange: the request that the call is made for, and counted to.
            inputs: each with its bytes. Where they begin is chosen here.

        Returns:
            The outputs, their bytes, and the label of the device.

        Raises:
            Problem: the call is invalid, its outputs are too large, or it failed.
        """
        self._engine.quotas.check_device_time(exchange.caller.name)
        infos, begin = [], 0
        for info, data in inputs:
            end = begin + len(data)
            infos.append(replace(info, begin=begin, end=end))
            begin = round_up(end, ALIGNMENT)
        plan = await self._engine.plan_call(op, infos, params)
        if plan.output_nbytes > most_output_nbytes:
            raise TooLarge(
                f"a page shows outputs of at most {most_output_nbytes} bytes, {op} gives "
                f"{plan.output_nbytes}; use a client for larger ones"
            )
        at = round_up(plan.input_nbytes, ALIGNMENT)
        slot = await self._engine.acquire(
            at + plan.output_nbytes, self._settings.queue_timeout_s, exchange.caller.name
        )
        try:
            for info, (_, data) in zip(infos, inputs, strict=True):
                slot.view[info.begin : info.end] = data
            received = time.monotonic()
            deadline = received + self._settings.call_timeout_s
            timing = await self._engine.run_on_lane(plan, slot, slot, at, deadline)
            outputs = bytes(slot.view[at : at + plan.output_nbytes])
        finally:
            slot.release()
        exchange.op = op
        exchange.computed, exchange.compile_ms = time.monotonic(), timing.compile_ms
        exchange.stages_ms = timing.stages_ms(received - exchange.began)
        return plan.outputs, outputs, timing.device
