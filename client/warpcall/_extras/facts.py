"""What a server tells about itself: its ops, devices, nodes, health, and who calls."""

from __future__ import annotations

import functools
import re
from abc import ABC, abstractmethod
from typing import Any

from warpcall import wire
from warpcall._config import Config
from warpcall._extras.tables import Listed
from warpcall._jobs.parse import parse
from warpcall.devices import Device, DeviceList
from warpcall.errors import InvalidInput, TransportError
from warpcall.health import Health
from warpcall.nodes import NodeList
from warpcall.ops import OpInfo, OpList
from warpcall.users import Me, UserQuotas

# Columns of the list of devices in a notebook.
LISTED = ("name", "label", "state", "reason", "queued", "in_flight", "restarts")
READY_OR_NOT = (200, 503)
DECLARED = {"name", "inputs", "outputs", "params"}  # members that each declaration of an op has
OP_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]*")  # names that no proxy takes for another path


class Facts(ABC):
    """Requests for what a server tells about itself.

    Attributes:
        config: the server's address.
    """

    config: Config

    @abstractmethod
    async def get_json(self, path: str, accepted: tuple[int, ...] = (200,)) -> Any:
        """Get the JSON document at a path."""

    async def ops(self) -> OpList:
        """All ops of the server."""
        return OpList(parse(OpInfo, one, "its ops") for one in await self.kernels())

    async def op(self, name: str) -> OpInfo:
        """One op of the server."""
        return parse(OpInfo, await self.kernel(name), "an op")

    async def kernels(self) -> list[dict[str, Any]]:
        """The declarations of all ops."""
        found = await self.get_json(wire.KERNELS_PATH)
        listed = found.get("kernels") if isinstance(found, dict) else None
        if not isinstance(listed, list) or not all(map(_is_declaration, listed)):
            raise TransportError(f"{self.config.url} is not a Warpcall server: it lists no ops")
        return listed

    async def kernel(self, name: str) -> dict[str, Any]:
        """The declaration of one op."""
        found = await self._object(kernel_path(name))
        if not _is_declaration(found):
            raise TransportError(f"{self.config.url} is not a Warpcall server: it declares no op")
        return found

    async def nodes(self) -> NodeList:
        """The servers that share a database with this one."""
        return parse(NodeList, await self.get_json(wire.NODES_PATH), "nodes")

    async def health(self) -> Health:
        """The report of /readyz, whether the server is ready or not."""
        return parse(Health, await self._object("/readyz", READY_OR_NOT), "its health")

    async def devices(self) -> list[Device]:
        """The server's devices with their last hour."""
        found = parse(DeviceList, await self.get_json("/v1/devices"), "its devices").devices
        return Listed(found, LISTED)

    async def me(self) -> Me:
        """The user who calls, as /v1/me answers."""
        return parse(Me, await self._object("/v1/me"), "the user")

    async def quotas(self) -> UserQuotas:
        """The limits of the user who calls, as /v1/me/quotas answers."""
        return parse(UserQuotas, await self._object("/v1/me/quotas"), "the limits")

    async def _object(self, path: str, accepted: tuple[int, ...] = (200,)) -> dict[str, Any]:
        found = await self.get_json(path, accepted)
        if not isinstance(found, dict):
            raise TransportError(f"{self.config.url} is not a Warpcall server: see its {path}")
        return found


def _is_declaration(found: object) -> bool:
    return isinstance(found, dict) and found.keys() >= DECLARED


@functools.lru_cache(256)
def kernel_path(name: str) -> str:
    """The path of an op. Raise InvalidInput if no op can have the name."""
    if not OP_NAME.fullmatch(name):
        raise InvalidInput(
            f"the name of an op must be like masked-softmax, got {name!r}", field="name"
        )
    return f"{wire.KERNELS_PATH}/{wire.op_name(name)}"
