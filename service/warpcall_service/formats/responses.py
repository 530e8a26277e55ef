"""The formats of responses: safetensors, .npy and JSON."""

from __future__ import annotations

import functools
import json
from collections.abc import Mapping
from typing import Any, Protocol

from warpcall import wire
from warpcall.errors import TooLarge, UnsupportedMedia
from warpcall_service.formats import json_values, npy
from warpcall_service.formats.json_writer import JsonWriter, ResponseBody
from warpcall_service.formats.media_types import JSON, Media
from warpcall_service.lanes.plan import Plan

MAX_LISTS = 1 << 20  # of one JSON response; a tensor of shape (n, 1, 1, 1) has 3 n + 1

StoredTensors = Mapping[str, Mapping[str, Any]]  # descriptions by output
NO_TENSORS: StoredTensors = {}


class Format(Protocol):
    """A format of responses."""

    media_type: bytes

    def check(self, plan: Plan) -> None:
        """Raise a Problem if this format cannot write the outputs of a plan, before it runs."""

    async def write(
        self,
        plan: Plan,
        outputs: memoryview,
        writer: JsonWriter,
        stored: StoredTensors = NO_TENSORS,
    ) -> ResponseBody:
        """The body of the response.

        Args:
            outputs: the output region.
            stored: outputs that became stored tensors; the response describes them.
        """


class SafetensorsFormat:
    """All outputs. The output region already has the layout of safetensors data."""

    media_type = wire.MEDIA_TYPE.encode()

    def __init__(self) -> None:
        self._head = functools.lru_cache(1024)(wire.encode_header)

    def check(self, plan: Plan) -> None:
        """Safetensors can hold every plan's outputs."""

    async def write(
        self,
        plan: Plan,
        outputs: memoryview,
        writer: JsonWriter,
        stored: StoredTensors = NO_TENSORS,
    ) -> ResponseBody:
        if stored:
            metadata = {wire.STORED_KEY: json.dumps(stored)}
            return ResponseBody(wire.encode_header(plan.outputs, metadata), outputs)
        return ResponseBody(self._head(plan.outputs), outputs)


class NpyFormat:
    """A single output of a dtype that .npy has a name for."""

    media_type = npy.MEDIA_TYPE.encode()

    def check(self, plan: Plan) -> None:
        if len(plan.outputs) != 1:
            names = ", ".join(output.name for output in plan.outputs)
            raise UnsupportedMedia(
                f"{npy.MEDIA_TYPE} holds one tensor and {plan.op} gives {names}; ask for "
                f"{wire.MEDIA_TYPE}",
                field="accept",
            )
        npy.encode_header(plan.outputs[0].dtype, plan.outputs[0].shape)

    async def write(
        self,
        plan: Plan,
        outputs: memoryview,
        writer: JsonWriter,
        stored: StoredTensors = NO_TENSORS,
    ) -> ResponseBody:
        return ResponseBody(
            npy.encode_header(plan.outputs[0].dtype, plan.outputs[0].shape), outputs
        )


class JsonFormat:
    """Small outputs as JSON values.

    Args:
        limit: on the bytes of all outputs.
    """

    media_type = JSON.encode()

    def __init__(self, limit: int) -> None:
        self._limit = limit

    def check(self, plan: Plan) -> None:
        if plan.output_nbytes > self._limit:
            raise TooLarge(
                f"a JSON response holds at most {self._limit} bytes of tensors, {plan.op} gives "
                f"{plan.output_nbytes}; ask for {wire.MEDIA_TYPE}",
                field="accept",
            )
        count = sum(map(json_values.list_count, plan.outputs))
        if count > MAX_LISTS:
            raise TooLarge(
                f"a JSON response holds at most {MAX_LISTS} lists, {plan.op} gives tensors of "
                f"shapes that make {count}; ask for {wire.MEDIA_TYPE}",
                field="accept",
            )

    async def write(
        self,
        plan: Plan,
        outputs: memoryview,
        writer: JsonWriter,
        stored: StoredTensors = NO_TENSORS,
    ) -> ResponseBody:
        tensors = {
            info.name: {"dtype": info.dtype, "shape": info.shape, "data": None}
            for info in plan.outputs
        }
        document: dict[str, Any] = {"outputs": tensors}
        if stored:
            document["stored"] = stored
        if writer.dtypes:
            document["dtypes"] = writer.dtypes
        return await writer.write(document, plan.outputs, outputs)


def formats(max_json_bytes: int) -> Mapping[Media, Format]:
    """All formats, by the names that `media_types.accepted` returns."""
    return {
        "safetensors": SafetensorsFormat(),
        "npy": NpyFormat(),
        "json": JsonFormat(max_json_bytes),
    }
