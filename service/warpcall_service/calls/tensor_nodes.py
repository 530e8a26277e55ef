"""Which server has a stored tensor: the ids of tensors name it if several servers share a database.

Such an id is the one that the caller chose, a dot, and the id of the server: `photo.0123456789abcdef`.
A single server on SQLite adds nothing to the ids.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

from warpcall.errors import InvalidInput, NodeGone, OnOtherNode
from warpcall_service.nodes.membership import Membership
from warpcall_service.text import brief

WITH_NODE = re.compile(r"(.+)\.([0-9a-f]{16})")
MAX_LENGTH = 64 - 17  # of an id to which a dot and the id of a server are added


class TensorNodes:
    """Adds this server's id to the ids of its tensors, and finds the servers of others."""

    def __init__(self, membership: Membership) -> None:
        self._membership = membership

    def with_node(self, id_: str) -> str:
        """The id of a tensor of this server, as callers see it."""
        return f"{id_}.{self._membership.id}" if self._membership.is_shared else id_

    def check_new(self, id_: str) -> None:
        """Raise InvalidInput if an id is too long for the id of a server to be added."""
        if self._membership.is_shared and len(id_) > MAX_LENGTH:
            raise InvalidInput(
                f"the id of a tensor must have at most {MAX_LENGTH} characters where several "
                f"servers share a database, got {len(id_)}",
                field="id",
            )

    async def await_nodes(self, ids: Iterable[str]) -> None:
        """Wait until this server knows the servers in these ids, or knows that there are none."""
        if self._membership.is_shared:
            found = map(WITH_NODE.fullmatch, ids)
            await self._membership.await_others([match[2] for match in found if match])

    def without_node(self, id_: str, field: str) -> str:
        """The id that a tensor has on this server. `await_nodes` comes first.

        Args:
            field: names the part of the request that has the id.

        Raises:
            OnOtherNode: another server has the tensor; the problem has its address.
            NodeGone: that server is gone, and the tensor with it.
        """
        found = WITH_NODE.fullmatch(id_) if self._membership.is_shared else None
        if found is None:
            return id_
        if found[2] == self._membership.id:
            return found[1]
        node = self._membership.other(found[2])
        if node is None:  # a caller may choose an id that looks like one with a server
            return id_
        where = f"the tensor {brief(id_)} is on the server {node.id} on {node.host}"
        if node.gone_since is not None:
            raise NodeGone(
                f"{where}, which is {node.state} since {node.gone_since}; its tensors are lost "
                "unless it returns",
                field=field,
            )
        raise OnOtherNode(f"{where}, at {node.url}", field=field, url=node.url)
