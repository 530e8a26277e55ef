"""Responses to inference requests: JSON, then the bytes of the binary outputs."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from warpcall.dtypes import OIP_DATATYPES
from warpcall.errors import InvalidInput, TooLarge
from warpcall.wire import TensorInfo
from warpcall_service.formats.json_writer import JsonWriter, ResponseBody
from warpcall_service.formats.oip_request import InferRequest, RequestOutput, Span
from warpcall_service.http.problems import Headers
from warpcall_service.lanes.arena_memory import copy_in_chunks
from warpcall_service.lanes.plan import Plan
from warpcall_service.oip.models import VERSION
from warpcall_service.oip.shared_memory import Region, copy_slices
from warpcall_service.text import brief

HEADER_LENGTH = "Inference-Header-Content-Length"


@dataclass(frozen=True, slots=True)
class Places:
    """How the binary outputs of a response come to lie together in the output region.

    Attributes:
        moves: copies (to, begin, end), in order. They overwrite other outputs.
        begin, end: where the outputs lie then.
    """

    moves: tuple[tuple[int, int, int], ...]
    begin: int
    end: int

    @staticmethod
    def of(infos: Sequence[TensorInfo]) -> Places:
        """Find the places of these outputs, of which there may be none."""
        begin = end = infos[0].begin if infos else 0
        moves = []
        for info in infos:
            if info.begin != end:
                moves.append((end, info.begin, info.end))
            end += info.nbytes
        return Places(tuple(moves), begin, end)


@dataclass(frozen=True, slots=True)
class InferResponse:
    """The response that a request asks for.

    Attributes:
        regions: the shared memory regions that the request names, by name.
        max_json_bytes: limit on the bytes of outputs that go as JSON.
        max_output_bytes: limit on the bytes of outputs that go as bytes after the JSON.
    """

    request: InferRequest
    regions: Mapping[str, Region]
    max_json_bytes: int
    max_output_bytes: float

    def check(self, plan: Plan) -> None:
        """Raise a Problem if the outputs of a plan cannot go where the request asks for."""
        given = {info.name for info in plan.outputs}
        for named in self.request.outputs or ():
            if named.name not in given:
                raise InvalidInput(
                    f"{plan.op} gives {', '.join(sorted(given))} here, got {brief(named.name)}",
                    field=named.name,
                )
        json_nbytes = binary_nbytes = 0
        for info in plan.outputs:
            wanted = self.wanted(info.name)
            if wanted is None:
                continue
            if wanted.binary:
                binary_nbytes += info.nbytes
                continue
            if wanted.shared is not None:
                _check_room(info, wanted.shared)
                continue
            if info.dtype == "BF16":
                raise InvalidInput(
                    f"{info.name} is BF16, which goes as binary data or to shared memory only: ask "
                    "for binary_data, or for binary_data_output",
                    field=info.name,
                )
            json_nbytes += info.nbytes
        if binary_nbytes > self.max_output_bytes:
            raise TooLarge(
                f"a response over gRPC holds at most {self.max_output_bytes} bytes of tensors, "
                f"{plan.op} gives {binary_nbytes}: ask for them in shared memory, or over HTTP",
                field="outputs",
            )
        if json_nbytes > self.max_json_bytes:
            raise TooLarge(
                f"a response holds at most {self.max_json_bytes} bytes of tensors as JSON, "
                f"{plan.op} gives {json_nbytes}: ask for binary_data, or for binary_data_output",
                field="outputs",
            )

    async def write(
        self, plan: Plan, outputs: memoryview, writer: JsonWriter
    ) -> tuple[Headers, ResponseBody]:
        """Write the response; returns its headers and body.

        Args:
            outputs: the output region. Binary outputs are moved together in it, over others.
        """
        entries: list[dict[str, Any]] = []
        written: list[TensorInfo] = []
        binary: list[TensorInfo] = []
        for info in plan.outputs:
            wanted = self.wanted(info.name)
            if wanted is None:
                continue
            data = outputs[info.begin : info.end]
            entry: dict[str, Any] = {
                "name": info.name,
                "datatype": OIP_DATATYPES[info.dtype],
                "shape": info.shape,
            }
            if wanted.binary:
                binary.append(info)
                entry["parameters"] = {"binary_data_size": info.nbytes}
            elif wanted.shared is not None:
                region = self.regions[wanted.shared.region]
                await copy_slices(region.write(wanted.shared.offset, data))
                entry["parameters"] = {
                    "shared_memory_region": wanted.shared.region,
                    "shared_memory_offset": wanted.shared.offset,
                    "shared_memory_byte_size": info.nbytes,
                }
            else:
                shape = (math.prod(info.shape),)
                written.append(TensorInfo(info.name, info.dtype, shape, info.begin, info.end))
                entry["data"] = None
            entries.append(entry)
        response = {"model_name": plan.op, "model_version": VERSION, "outputs": entries}
        if self.request.id is not None:
            response["id"] = self.request.id  # as the last member: see `oip/repeats.py`
        document = await writer.write(response, written, outputs, compact=True)
        if not binary:
            return [(b"content-type", b"application/json")], document
        places = Places.of(binary)
        for to, begin, end in places.moves:
            outputs[to : to + end - begin] = outputs[begin:end]
        data = outputs[places.begin : places.end]
        headers = [
            (b"content-type", b"application/octet-stream"),
            (HEADER_LENGTH.lower().encode(), b"%d" % (len(document.head) + len(document.data))),
        ]
        if not document.data:
            return headers, ResponseBody(document.head, data)
        joined = await writer.allocate(len(document.data) + len(data))
        await copy_in_chunks(joined, document.data)
        await copy_in_chunks(joined[len(document.data) :], data)
        return headers, ResponseBody(b"", joined)

    def wanted(self, name: str) -> RequestOutput | None:
        """How the request asks for an output; None if it does not."""
        if self.request.outputs is None:
            return RequestOutput(name, self.request.binary, None)
        return next((wanted for wanted in self.request.outputs if wanted.name == name), None)


def _check_room(info: TensorInfo, span: Span) -> None:
    if info.nbytes > span.nbytes:
        raise InvalidInput(
            f"{info.name} has {info.nbytes} bytes, its shared_memory_byte_size is {span.nbytes}",
            field=info.name,
        )
