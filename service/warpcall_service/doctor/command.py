"""The command `doctor`: all checks, and what the server prints of them when it cannot start."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator
from typing import Annotated, Any

import typer

from warpcall import __version__
from warpcall_service.auth import users
from warpcall_service.auth.users import Snapshot
from warpcall_service.doctor import checks
from warpcall_service.doctor.machine import check_machine, examine
from warpcall_service.doctor.probe import is_ours
from warpcall_service.extension import load, load_settings
from warpcall_service.findings import Finding
from warpcall_service.settings import Settings, SettingsError
from warpcall_service.store.database import Store, StoreError


def doctor(
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON instead of lines.")] = False,
) -> None:
    """Check this machine, the settings and the database, and say what to do.

    It changes nothing, and may run beside a server. The exit status is 0 if nothing failed, else 1.
    """
    found = []
    for finding in find():
        found.append(finding)
        if not as_json:
            sys.stdout.write(line_of(finding) + "\n")
            sys.stdout.flush()
    failed = sum(finding.state == "failed" for finding in found)
    warnings = sum(finding.state == "warning" for finding in found)
    if as_json:
        status = "failed" if failed else "warning" if warnings else "ok"
        report = {"status": status, "version": __version__, "checks": [vars(one) for one in found]}
        sys.stdout.write(json.dumps(report, indent=2) + "\n")
    else:
        sys.stdout.write(f"{len(found)} checks: {failed} failed, {warnings} with a warning\n")
    if failed:
        raise typer.Exit(1)


def line_of(finding: Finding) -> str:
    """A finding as one line."""
    advice = f"; to do: {finding.advice}" if finding.advice else ""
    return f"{finding.state:8} {finding.name:14} {finding.text}{advice}".replace("\n", " ")


def find(settings: Settings | None = None) -> Iterator[Finding]:
    """Run the checks one after the other.

    Args:
        settings: None means those of the environment, which are checked as well.
    """
    if settings is None:
        try:
            settings = load_settings()
        except SettingsError as error:
            advice = "correct the variable; docs/settings.md lists all"
            yield Finding("settings", "failed", str(error), advice)
            return
        yield Finding("settings", "ok", "all variables can be used")
    machine = examine(settings)
    yield from check_machine(settings, machine)
    yield checks.check_shared_memory(settings)
    extension = None if settings.calls_only else load()
    if extension is not None:
        yield from extension.checks(settings)
    store = _store(settings)
    yield checks.check_database(store)
    yield checks.check_clock(store)
    yield checks.check_port(settings, machine.gpus, is_ours)
    yield checks.check_disk(settings)
    yield checks.check_tls(settings)
    yield checks.check_roles(settings, _keys(store))
    if isinstance(store, Store):
        store.close()


def report(settings: Settings, write: Callable[[str], Any]) -> None:
    """Write the findings that are not well, after a server could not start."""
    write("warpcall-server doctor:")
    for finding in find(settings):
        if finding.state != "ok":
            write(line_of(finding))


def _store(settings: Settings) -> Store | StoreError:
    url = settings.database_url
    try:
        return Store(None if url is None else url.get_secret_value(), settings.data_dir)
    except StoreError as error:
        return error


def _keys(store: Store | StoreError) -> Snapshot | None:
    """The keys of the database; none of one that does not exist yet, None if it cannot be read."""
    try:
        if isinstance(store, StoreError):
            return None
        if not store.exists or store.revision() is None:
            return Snapshot()
        with store.read() as session:
            return users.snapshot(session, Snapshot())
    except StoreError:
        return None
