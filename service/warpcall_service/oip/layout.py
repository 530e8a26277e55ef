"""The places of an inference request's inputs in the memory of a call."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import numpy as np

from warpcall.dtypes import ITEMSIZE
from warpcall.errors import InvalidInput
from warpcall.wire import TensorInfo
from warpcall_service.formats import json_values
from warpcall_service.formats.oip_request import RequestInput
from warpcall_service.formats.params import MAX_ENTRIES
from warpcall_service.lanes.free_ranges import round_up
from warpcall_service.lanes.plan import ALIGNMENT


@dataclass(frozen=True, slots=True)
class Layout:
    """The places of inputs in a slot.

    Attributes:
        tensors: the inputs by name, with their offsets.
        pieces: ranges (begin, end) that the bytes after the JSON fill, in order.
        nbytes: size of all inputs, with the padding between them.
    """

    tensors: Mapping[str, TensorInfo]
    pieces: tuple[tuple[int, int], ...]
    nbytes: int

    @staticmethod
    def of(inputs: Iterable[RequestInput]) -> Layout:
        """Put the binary inputs first, without gaps unless one would not be aligned.

        The body then fills them in few pieces.
        """
        tensors: dict[str, TensorInfo] = {}
        pieces: list[tuple[int, int]] = []
        end = 0
        for given in sorted(inputs, key=lambda given: not given.binary):
            info = given.info
            multiple = ITEMSIZE[info.dtype] if given.binary else ALIGNMENT
            begin = round_up(end, multiple)
            if given.binary:
                if pieces and begin == end:
                    pieces[-1] = pieces[-1][0], begin + info.nbytes
                else:
                    pieces.append((begin, begin + info.nbytes))
            end = begin + info.nbytes
            tensors[info.name] = TensorInfo(info.name, info.dtype, info.shape, begin, end)
        return Layout(tensors, tuple(pieces), end)

    def view(self, name: str, memory: memoryview) -> memoryview:
        """The bytes of an input in the slot's memory."""
        tensor = self.tensors[name]
        return memory[tensor.begin : tensor.end]


def check_list(given: RequestInput) -> None:
    """Raise InvalidInput unless this tensor may be a parameter that is a list of integers."""
    info = given.info
    if info.dtype != "I64" or len(info.shape) != 1 or info.shape[0] > MAX_ENTRIES:
        raise InvalidInput(
            f"{info.name} as a tensor must be INT64 with one dim of at most {MAX_ENTRIES}, "
            f"got {info.dtype} {list(info.shape)}",
            field=info.name,
        )


def list_of(given: RequestInput, data: memoryview | None) -> list[int]:
    """The integers of a tensor that is a parameter, from `data` or else from its JSON."""
    if data is None:
        array = json_values.to_array(given.data, given.info)
    else:
        array = np.frombuffer(data, np.int64)
    integers: list[int] = array.tolist()
    return integers
