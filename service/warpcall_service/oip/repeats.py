"""How inference requests are written that repeat an earlier one of their connection.

`calls/quick.py` runs such calls without parsing their JSON. They have all tensors behind the JSON or in
shared memory, in both directions, and all their parameters in the JSON.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from warpcall_service.calls.call_template import CallFormat, ClientMemory
from warpcall_service.calls.upload import output_begin
from warpcall_service.formats.oip_request import Span, shared_spans
from warpcall_service.http.exchange import SLICE_BYTES, Exchange
from warpcall_service.http.prepared import MAX_HEADER_BYTES
from warpcall_service.http.problems import Headers
from warpcall_service.oip.reader import ReadCall
from warpcall_service.oip.response import Places
from warpcall_service.oip.shared_memory import Region, SharedMemory
from warpcall_service.oip.statistics import Statistics


@dataclass(frozen=True, slots=True)
class _Shared:
    """A tensor in shared memory, and where it lies in a slot."""

    span: Span
    begin: int
    end: int


@dataclass(frozen=True, slots=True)
class _SharedTensors:
    """The tensors of one call in shared memory; implements `ClientMemory`."""

    regions: dict[str, Region]
    inputs: Sequence[_Shared]
    outputs: Sequence[_Shared]

    def read(self, slot: memoryview) -> None:
        """As `ClientMemory.read`."""
        for tensor in self.inputs:
            target = slot[tensor.begin : tensor.end]
            for _ in self.regions[tensor.span.region].read(tensor.span.offset, target):
                pass  # at most SLICE_BYTES are read, at once

    def write(self, slot: memoryview) -> None:
        """As `ClientMemory.write`."""
        for tensor in self.outputs:
            data = slot[tensor.begin : tensor.end]
            for _ in self.regions[tensor.span.region].write(tensor.span.offset, data):
                pass  # as above


class Repeats:
    """Decides which inference requests may be repeated in the short way."""

    def __init__(self, shared: SharedMemory, statistics: Statistics) -> None:
        self._shared = shared
        self._statistics = statistics

    def format_of(
        self, exchange: Exchange, call: ReadCall, headers: Headers, document: bytes
    ) -> CallFormat | None:
        """How requests like this one, and their responses, are written; None if they must be parsed.

        Args:
            headers: of the response to this one.
            document: its JSON, in front of its binary outputs.
        """
        request, plan = call.response.request, call.upload.plan
        if not 0 < call.json_nbytes <= MAX_HEADER_BYTES or request.timeout_s is not None:
            return None
        pieces, input_nbytes = call.layout.pieces, sum(end - at for at, end in call.layout.pieces)
        if pieces and pieces != ((0, input_nbytes),):
            return None  # there are gaps between the inputs
        inputs, outputs, binary = [], [], []
        for given in request.inputs:
            tensor = call.layout.tensors[given.info.name]
            if given.shared is not None:
                inputs.append(_Shared(given.shared, tensor.begin, tensor.end))
            elif not given.binary:
                return None
        at = output_begin(plan)
        for info in plan.outputs:
            wanted = call.response.wanted(info.name)
            if wanted is None:
                continue
            if wanted.shared is not None:
                outputs.append(_Shared(wanted.shared, at + info.begin, at + info.end))
            elif wanted.binary:
                binary.append(info)
            else:
                return None
        if any(sum(s.end - s.begin for s in side) > SLICE_BYTES for side in (inputs, outputs)):
            return None  # other requests run while so much is copied
        request_id, behind_id = None, b""
        if request.id is not None:
            # Lone surrogates, which JSON can write, have no UTF-8. `PreparedRequests.add` refuses this and
            # every other `id` that JSON escapes.
            request_id, behind_id = request.id.encode(errors="replace"), b'"}'
            document = document[: -len(request_id) - len(behind_id)]
        places = Places.of(binary)
        return CallFormat(
            headers=headers,
            head=document,
            behind_id=behind_id,
            input_nbytes=input_nbytes,
            outputs=(places.begin, places.end),
            moves=places.moves,
            json_nbytes=call.json_nbytes,
            request_id=request_id,
            find_memory=self._finder(exchange.caller.name, shared_spans(request), inputs, outputs),
            count=self._statistics.record,
        )

    def _finder(
        self,
        owner: str,
        spans: Sequence[Span],
        inputs: Sequence[_Shared],
        outputs: Sequence[_Shared],
    ) -> Callable[[], ClientMemory] | None:
        """Finds the regions of a call anew, since its user may register others under the same names."""
        if not spans:
            return None
        return lambda: _SharedTensors(self._shared.regions_of(owner, spans), inputs, outputs)
