"""The benchmark platform as the extension of the serving core.

Workers and commands of the administrator import this module as well, so the modules of the
platform are imported where they are needed.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

from warpcall_service.extension import Core, Extension, Parts
from warpcall_service.processes.imports import quick_imports

if TYPE_CHECKING:
    import typer

    from warpcall_bench.settings import BenchSettings
    from warpcall_service.findings import Finding
    from warpcall_service.settings import Settings

CHECKS = "warpcall_bench.programs.job_check"


def settings() -> type[BenchSettings]:
    """The class of the settings."""
    from warpcall_bench.settings import BenchSettings

    return BenchSettings


def add_commands(commands: typer.Typer) -> None:
    """Add the commands of the administrator that concern jobs."""
    from warpcall_bench.jobs.drain import drain
    from warpcall_bench.retention import prune

    commands.command("drain")(drain)
    commands.command("prune")(prune)


def checks(settings: Settings) -> list[Finding]:
    """What the command `doctor` says of the sandbox and of programs that profile."""
    from warpcall_bench.artefacts.tools import check_programs
    from warpcall_bench.runs.findings import check_sandbox

    return [*check_sandbox(settings), check_programs(settings)]


def preload() -> None:
    """Import the platform and load what pages are made with."""
    with quick_imports():
        from warpcall_bench import services  # noqa: F401  # so that `running` need not wait
        from warpcall_bench.drawing.sources import load_highlighter
        from warpcall_bench.pages.view import load_templates

    load_templates()
    load_highlighter()


@asynccontextmanager
async def running(core: Core) -> AsyncIterator[Parts]:
    """Start the services of the platform, and stop them in the end."""
    from warpcall_bench.services import Services

    services = Services(core)
    services.start()
    try:
        yield services.parts()
    finally:
        await services.stop()


EXTENSION = Extension(
    settings=settings,
    open_folders=("/static/",),
    link_folders=("/share/", "/v1/shared/"),
    public_folders=("/start/", "/guide/"),
    plan_requests={
        "job": f"{CHECKS}:check_job",
        "installed": "warpcall_kernels.measuring:describe_installed",
        "compare": f"{CHECKS}:compare_jobs",
    },
    add_commands=add_commands,
    checks=checks,
    data_folders=("artefacts",),  # as `artefacts.files.FOLDER`, which needs more imports
    preload=preload,
    running=running,
)
