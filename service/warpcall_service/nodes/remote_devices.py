"""The devices of the other servers, gathered from their heartbeats.

A heartbeat has only the last two steps of each device. A server that reads all heartbeats keeps them
for an hour, so it knows of another server's devices what they did since both run.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any

from warpcall.devices import Device
from warpcall_service.formats.payloads import checked
from warpcall_service.lanes.activity import STEPS

SENT_STEPS = 2  # the one that has not ended, and the one before it: a heartbeat may come late


class RemoteDevices:
    """The devices of the other servers with what is known of their last hour."""

    def __init__(self) -> None:
        self._devices: dict[str, list[dict[str, Any]]] = {}
        # By server and device: steps by their number on that server.
        self._steps: dict[tuple[str, str], dict[int, dict[str, Any]]] = {}

    def note(self, node: str, host: str, written: object) -> None:
        """Take in what a heartbeat says of a server's devices."""
        if not isinstance(written, list):  # of an older server
            self._devices.pop(node, None)
            return
        self._devices[node] = [{**one["fields"], "node": node, "host": host} for one in written]
        for one in written:
            kept = self._steps.setdefault((node, one["fields"]["name"]), {})
            for number, step in one["steps"]:
                if kept and number < max(kept) - STEPS:  # its machine was started again
                    kept.clear()
                kept[number] = step
            for old in [number for number in kept if number <= max(kept) - STEPS]:
                del kept[old]

    def forget_others(self, nodes: Collection[str]) -> None:
        """Forget the servers that are not among these."""
        for node in self._devices.keys() - {*nodes}:
            del self._devices[node]
        for key in [key for key in self._steps if key[0] not in nodes]:
            del self._steps[key]

    def of(self, node: str) -> list[Device]:
        """The devices of a server, which is running."""
        found = []
        for fields in self._devices.get(node, ()):
            steps = self._steps.get((node, fields["name"]), {})
            found.append(
                checked(Device, {**fields, "steps": [steps[number] for number in sorted(steps)]})
            )
        return found


def written(devices: Sequence[tuple[Device, Sequence[int]]]) -> list[dict[str, Any]]:
    """What a heartbeat says of this server's devices.

    Args:
        devices: each with the numbers of its steps, which only grow while its machine runs.
    """
    found = []
    for device, numbers in devices:
        fields: Mapping[str, Any] = device.to_dict()
        steps = [*zip(numbers, fields["steps"], strict=True)][-SENT_STEPS:]
        rest = {
            name: value for name, value in fields.items() if name not in ("steps", "node", "host")
        }
        found.append({"fields": rest, "steps": steps})
    return found
