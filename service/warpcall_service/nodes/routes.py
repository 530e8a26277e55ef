"""The HTTP route of nodes."""

from __future__ import annotations

from fastapi import Response

from warpcall import wire
from warpcall.nodes import NodeList
from warpcall_service.formats.payloads import answered
from warpcall_service.http.router import Router
from warpcall_service.nodes.membership import Membership


def nodes(membership: Membership) -> Router:
    """The route that lists the servers which share a database."""
    router = Router(prefix=wire.NODES_PATH, tags=["nodes"])

    @router.get("", response_model=NodeList)
    async def list_nodes() -> Response:
        """List the servers that share a database, with their addresses, states and devices.

        A server without a heartbeat for 5 s is gone. One that has left is listed for a day.
        """
        return answered(membership.nodes())

    return router
