"""Reads the outputs of calls in another process where they lie."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from warpcall_kernels.execution import answers
from warpcall_kernels.execution.inputs import SENTINEL
from warpcall_kernels.execution.outputs import Extent, Wrong, check_extents
from warpcall_kernels.execution.process import reaching
from warpcall_kernels.execution.windows import Address, Window
from warpcall_kernels.op.declaration import Meta

SAMPLES_READ = 4  # of one block on a CPU whose outputs are read
MOST_READ = 16  # calls of one block whose outputs are read
MOST_READ_BYTES = 1 << 30  # of these outputs, but those of one call are always read

Results = list[tuple[int, tuple[Tensor, ...]]]
"""Outputs of calls, each with the place of its values in the pool."""


class RandomSamples:
    """Outputs of some samples of a block on a CPU, of which each is as likely to be chosen.

    They are read after the sample, because the process frees them before its next one. The choice is
    Algorithm R of Vitter, "Random sampling with a reservoir", 1985.

    Args:
        metas: of the outputs of one call.
    """

    def __init__(self, metas: Mapping[str, Meta]) -> None:
        self._most = max(1, min(SAMPLES_READ, MOST_READ_BYTES // _nbytes(metas)))
        self._seen = 0
        self._chosen: list[Results] = []

    def add(self, read: Callable[[], Results]) -> None:
        """Count a sample, and read its outputs if it is chosen."""
        self._seen += 1
        if len(self._chosen) < self._most:
            self._chosen.append(read())
        elif (place := secrets.randbelow(self._seen)) < self._most:
            self._chosen[place] = read()

    def take(self) -> Results:
        """The outputs of the chosen samples. The next block begins."""
        chosen, self._chosen, self._seen = self._chosen, [], 0
        return [one for results in chosen for one in results]


def choose_calls(
    calls: Sequence[tuple[int, Any]], metas: Mapping[str, Meta]
) -> list[tuple[int, list[Address]]]:
    """Choose some calls of a block at random, whose outputs are read.

    Args:
        calls: a key of each, and where its outputs lie, as the other process says.

    Raises:
        answers.Unsound: that is not what it says.
        Wrong: two of all outputs share memory.
    """
    checked = [(key, answers.addresses(places)) for key, places in calls]
    check_extents(
        [
            (name, answers.place(at), meta.nbytes)
            for _, places in checked
            for (name, meta), at in zip(metas.items(), places, strict=False)
        ]
    )
    most = max(1, min(MOST_READ, len(checked), MOST_READ_BYTES // _nbytes(metas)))
    return secrets.SystemRandom().sample(checked, most)


def read_outputs(
    window: Window,
    places: Sequence[Address],
    metas: Mapping[str, Meta],
    inputs: Sequence[Extent],
    device: torch.device,
) -> tuple[Tensor, ...]:
    """Read the outputs of a call, and on a CPU overwrite them.

    Outputs that were read are of no use to a later call then. If the memory of one is that of an
    input, mapped a second time, the input has changed.

    Args:
        places: where they lie, as the other process says.
        inputs: the memory of all inputs.

    Raises:
        Wrong: there are not as many as the op has, or one has no memory of its own.
        RemoteFailed: their memory cannot be reached.
    """
    if len(places) != len(metas):
        raise Wrong(f"there must be {len(metas)} outputs, got {len(places)}")
    named = [(name, meta, at) for (name, meta), at in zip(metas.items(), places, strict=True)]
    check_extents([(name, answers.place(at), meta.nbytes) for name, meta, at in named], inputs)
    with reaching():
        outputs = tuple(_tensor(window, meta, at, device) for _, meta, at in named)
        for _, meta, at in named if device.type == "cpu" else ():
            _overwrite(window, at, meta.nbytes)
    return outputs


def _nbytes(metas: Mapping[str, Meta]) -> int:
    return max(1, sum(meta.nbytes for meta in metas.values()))


def _overwrite(window: Window, address: Address, nbytes: int) -> None:
    window.write(address, torch.full((nbytes,), SENTINEL, dtype=torch.uint8))


def _tensor(window: Window, meta: Meta, address: Address, device: torch.device) -> Tensor:
    if not meta.nbytes:
        return torch.empty(meta.shape, dtype=meta.dtype, device=device)
    return window.read(address, meta.nbytes).view(meta.dtype).view(meta.shape)
