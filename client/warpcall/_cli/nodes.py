"""The command `nodes`."""

from __future__ import annotations

from dataclasses import asdict

import typer

from warpcall import Client
from warpcall._cli.output import Json, Url, console, print_json, table_of, write_lines
from warpcall._cli.tables import ago
from warpcall.nodes import Node

OLD_S = 10.0  # a server reads the others every second

app = typer.Typer()


@app.command()
def nodes(as_json: Json = False, url: Url = None) -> None:
    """List the servers that share a database, with their states and devices."""
    with Client(url) as gpu:
        found = gpu.nodes()
    if as_json:
        print_json(asdict(found))
        return
    rows = [
        (node.id, node.host, _state(node), _devices(node), node.version, node.url)
        for node in found.nodes
    ]
    console().print(table_of(("node", "host", "state", "devices", "version", "url"), rows))
    if found.read_s_ago > OLD_S:
        write_lines(f"this is {found.read_s_ago:.0f} s old: the database does not answer")


def _state(node: Node) -> str:
    return node.state if node.gone_since is None else f"{node.state} {ago(node.gone_since)} ago"


def _devices(node: Node) -> str:
    """The lanes with their models, and with their states if they are not ready."""
    shown = []
    for lane in node.lanes:
        text = f"{lane.name}: {lane.model or 'no device yet'}"
        shown.append(text if lane.state == "ready" else f"{text} ({lane.state})")
    return ", ".join(shown)
