"""Which devices a job may run on: by the model of the GPU, and by the server that has it."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from warpcall_service.extension import DeviceLane, Nodes

WORD = re.compile(r"[a-z0-9]+")


@dataclass(frozen=True, slots=True)
class Device:
    """A device that can take a job.

    Attributes:
        node: id of its server.
        host: host name of its machine.
        model: of the GPU, or of the CPU; empty while it is unknown.
        environment: class of the machine and its software; empty while it is unknown.
    """

    node: str
    host: str
    model: str
    environment: str = ""

    def fits(self, gpu: str | None, node: str | None) -> bool:
        """Whether a job that asks for this model and this server may run here.

        Args:
            gpu: words of the model in their order, such as "H200" or "h100 pcie"; None means any.
            node: id of a server, or the host name of its machine; None means any.
        """
        if node is not None and node not in (self.node, self.host):
            return False
        return gpu is None or _has_words(self.model, gpu)


class Devices(NamedTuple):
    """The devices that jobs can run on now.

    Attributes:
        number: how many lanes take jobs, of all servers that share the queue.
        alive: the devices of servers that run.
    """

    number: int
    alive: Sequence[Device]

    def fit(self, gpu: str | None, node: str | None) -> bool:
        """Whether there is a device for a job that asks for this model and this server."""
        asks = gpu is not None or node is not None
        return not asks or any(device.fits(gpu, node) for device in self.alive)


def all_devices(nodes: Nodes, *, alive: bool = False) -> list[Device]:
    """The devices of all servers, those included that have left: they may return.

    Args:
        alive: only those of servers that run.
    """
    return [
        Device(node.id, node.host, lane.model or "", lane.environment or "")
        for node in nodes.nodes().nodes
        if not alive or node.state == "alive"
        for lane in node.lanes
    ]


def own_device(nodes: Nodes, lane: DeviceLane) -> Device:
    """A device of this server."""
    host = next(node.host for node in nodes.nodes().nodes if node.id == nodes.id)
    model = lane.hello.get("fingerprint", {}).get("device") or ""
    return Device(nodes.id, host, model, lane.hello.get("environment", ""))


def words_of(model: str) -> tuple[str, ...]:
    """The words by which a model is found."""
    return tuple(WORD.findall(model.lower()))


def _has_words(model: str, wanted: str) -> bool:
    """Whether the words of `wanted` follow each other in a model: "H100" is none of "H1000"."""
    words, sought = words_of(model), words_of(wanted)
    starts = range(len(words) - len(sought) + 1)
    return any(words[start : start + len(sought)] == sought for start in starts)
