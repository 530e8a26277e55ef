"""The command `status`: whether a server runs here, and how full it is."""

from __future__ import annotations

import json
import os
import sys
from typing import Annotated, Any

import typer

from warpcall.health import ClusterHealth, Health, ServerHealth
from warpcall_service.doctor import checks, probe
from warpcall_service.doctor.probe import read_json
from warpcall_service.extension import load_settings
from warpcall_service.settings import Settings, SettingsError
from warpcall_service.store.database import Store, StoreError

KEY = "WARPCALL_API_KEY"
STOPPED = 3  # exit status, as that of `systemctl status` of a service that does not run


def status(
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON instead of lines.")] = False,
) -> None:
    """Say whether the server of these settings runs, and how full it is.

    Of a server with keys, WARPCALL_API_KEY must be one with the role admin to see more than whether it
    runs, the disk and the database. The exit status is 3 if no server runs, and 1 if it is not ready.
    """
    try:
        settings = load_settings()
    except SettingsError as error:
        typer.echo(f"warpcall-server: {error}", err=True)
        raise typer.Exit(2) from None
    report = find(settings)
    if as_json:
        sys.stdout.write(json.dumps(report, indent=2) + "\n")
    else:
        sys.stdout.write("".join(f"{line}\n" for line in lines_of(report)))
    if not report["running"]:
        raise typer.Exit(STOPPED)
    if report["ready"]["status"] != "ready":
        raise typer.Exit(1)


def find(settings: Settings) -> dict[str, Any]:
    """Whether a server answers, what it says, and what the disk and the database say."""
    where = f"{settings.host}, port {settings.port}"
    ready = read_json(settings.host, settings.port, "/readyz")
    running = probe.is_ready_answer(ready)
    health = None
    if running:
        key = os.environ.get(KEY, "")
        answer = read_json(settings.host, settings.port, "/v1/health", key)
        health = answer if isinstance(answer, dict) and "servers" in answer else None
    disk = checks.disk_of(settings)
    return {
        "running": running,
        "at": where,
        "ready": ready if running else None,
        "health": health,
        "disk_free_bytes": disk.free if disk else None,
        "disk_bytes": disk.total if disk else None,
        **_database(settings),
    }


def lines_of(report: dict[str, Any]) -> list[str]:
    """The report for people."""
    from warpcall_service.formats.payloads import checked  # other commands need no FastAPI

    lines = [f"no server runs at {report['at']}"]
    if report["running"]:
        ready = checked(Health, report["ready"])
        lines = [f"a server runs at {report['at']}: {ready.status}"]
        lines += [f"  {reason}" for reason in ready.reasons]
        lines += [f"{one.name}: {one.state}, {one.restarts} restarts" for one in ready.lanes]
        lines.append(f"uploads: {ready.uploads}")
        lines += [f"check {one.name}: {one.state}" for one in ready.checks if one.state != "ok"]
    if report["disk_bytes"] is None:
        lines.append("disk of the data folder: it cannot be read")
    else:
        lines.append(
            f"disk of the data folder: {report['disk_free_bytes']} of {report['disk_bytes']} bytes free"
        )
    size = report["database_bytes"]
    lines.append(f"database {report['database']}" + ("" if size is None else f": {size} bytes"))
    if report["health"] is not None:
        health = checked(ClusterHealth, report["health"])
        lines += [f"jobs {state}: {number}" for state, number in health.jobs.items()]
        for node in health.nodes:
            lines.append(f"{node.host} {node.url}: {node.state}, version {node.version}")
            if node.id in health.servers:
                lines += [f"  {line}" for line in _server(health.servers[node.id])]
    elif report["running"]:
        lines.append(f"set {KEY} to a key with the role admin to see more")
    return lines


def _server(health: ServerHealth) -> list[str]:
    lines = []
    for device in health.devices:
        lines.append(
            f"{device.name}: arena {device.arena_used_bytes} of {device.arena_bytes} bytes in use"
        )
        if device.last_restart:
            lines.append(
                f"{device.name}: last restart {device.last_restart_at}: {device.last_restart}"
            )
    lines.append(f"artefacts: {health.artefact_bytes} bytes")
    stored = health.tensor_bytes.items()
    lines += [f"stored tensors of {user}: {nbytes} bytes" for user, nbytes in stored]
    lines += [f"error {one.at} {one.logger}: {one.message}" for one in health.errors]
    lines.append(f"log lines dropped: {health.log_lines_dropped}")
    return lines


def _database(settings: Settings) -> dict[str, Any]:
    url = settings.database_url
    try:
        store = Store(None if url is None else url.get_secret_value(), settings.data_dir)
    except StoreError as error:
        return {"database": error.reason, "database_bytes": None}
    try:
        if not store.exists:
            return {"database": f"{store.label} does not exist", "database_bytes": None}
        return {"database": store.label, "database_bytes": store.nbytes()}
    except StoreError as error:
        return {"database": error.reason, "database_bytes": None}
    finally:
        store.close()
