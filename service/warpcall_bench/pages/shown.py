"""The servers that share the database, as pages show them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from warpcall.nodes import Node
from warpcall_service.extension import Nodes


@dataclass(frozen=True, slots=True)
class Servers:
    """All servers, for a page.

    Attributes:
        own: id of the server that makes the page.
        shown: the servers; empty if no other one can share the database.
    """

    own: str
    shown: Sequence[Node]

    @property
    def hosts(self) -> Mapping[str, str]:
        """The name of each server for readers: its host, with its port if it shares the host."""
        seen = [node.host for node in self.shown]
        return {
            node.id: node.host
            if seen.count(node.host) == 1
            else f"{node.host}:{node.url.rstrip('/').rpartition(':')[2].partition('/')[0]}"
            for node in self.shown
        }


def servers(nodes: Nodes) -> Servers:
    """The servers as this one knows them, by host and port."""
    known = nodes.nodes()
    shown = sorted(known.nodes, key=lambda node: (node.host, node.url)) if nodes.is_shared else ()
    return Servers(known.node, shown)
