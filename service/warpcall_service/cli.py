"""The command `warpcall-server`: starts the server, or runs a command of the administrator."""

from __future__ import annotations

import sys
from collections.abc import Callable
from datetime import datetime
from typing import Annotated, Any, TextIO

from warpcall_service.processes.imports import quick_imports

with quick_imports():
    import typer
    from typer.core import TyperGroup

    from warpcall import __version__
    from warpcall_service import logs
    from warpcall_service.extension import load, load_settings
    from warpcall_service.http.listen import ServerError
    from warpcall_service.server import serve
    from warpcall_service.settings import Settings, SettingsError


class Commands(TyperGroup):
    """The commands of the administrator, which are imported when one is wanted.

    A server starts sooner without them, and a command without those that are imported after it: users
    are listed in 0.57 instead of 0.93 s of CPU.
    """

    def list_commands(self, ctx: Any) -> list[str]:
        """Names of the commands, in the order of the help."""
        for add in ADD_COMMANDS:
            self._add(add)
        return super().list_commands(ctx)

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        """The command with this name."""
        for add in ADD_COMMANDS:
            if cmd_name not in self.commands:
                self._add(add)
        return super().get_command(ctx, cmd_name)

    def _add(self, add: Callable[[typer.Typer], None]) -> None:
        commands = typer.Typer(rich_markup_mode=None)
        with quick_imports():
            add(commands)
        group: Any = typer.main.get_command(commands)
        self.commands.update(group.commands)


def _add_users_and_keys(commands: typer.Typer) -> None:
    from warpcall_service.auth import admin_cli

    admin_cli.add_commands(commands)


def _add_checks_and_backups(commands: typer.Typer) -> None:
    from warpcall_service.backup.commands import backup, restore
    from warpcall_service.doctor.command import doctor
    from warpcall_service.doctor.status import status
    from warpcall_service.worker import warmup

    commands.command("doctor")(doctor)
    commands.command("status")(status)
    commands.command("backup")(backup)
    commands.command("restore")(restore)
    commands.command("warm")(warmup.warm)


def _add_those_of_the_platform(commands: typer.Typer) -> None:
    if (found := load()) is not None:
        found.add_commands(commands)


ADD_COMMANDS = (_add_users_and_keys, _add_checks_and_backups, _add_those_of_the_platform)

app = typer.Typer(
    cls=Commands,
    context_settings={"help_option_names": ["-h", "--help"]},
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)


def _print_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"warpcall-server {__version__}")
        raise typer.Exit


@app.callback(invoke_without_command=True)
def run(
    context: typer.Context,
    host: Annotated[
        str | None, typer.Option(help="Address to listen on; by default 127.0.0.1.")
    ] = None,
    port: Annotated[
        int | None,
        typer.Option(
            help="Port to listen on, by default 8000; with 0 the system chooses a free one."
        ),
    ] = None,
    grpc_port: Annotated[
        int | None,
        typer.Option(help="Port for the Open Inference Protocol over gRPC; by default none."),
    ] = None,
    devices: Annotated[
        str | None,
        typer.Option(
            help="auto (default: all CUDA devices, or the CPU), cpu, or a list like cuda:0,cuda:1."
        ),
    ] = None,
    servers: Annotated[
        str | None,
        typer.Option(
            help="Servers to start behind the port: per-gpu for one on each GPU, or a number; by "
            "default 1."
        ),
    ] = None,
    insecure: Annotated[
        bool,
        typer.Option(
            "--insecure",
            help="Listen on an address that other machines reach although there are no API keys.",
        ),
    ] = False,
    calls_only: Annotated[
        bool,
        typer.Option(
            "--calls-only",
            help="Serve calls only: no benchmark jobs, no uploads and no pages.",
        ),
    ] = False,
    quiet: Annotated[
        bool, typer.Option("--quiet", help="Do not log a line for each request.")
    ] = False,
    json_log: Annotated[
        bool,
        typer.Option(
            "--json-log",
            help="Log JSON on a terminal too. The log is always JSON if stderr is no terminal.",
        ),
    ] = False,
    until: Annotated[
        str | None,
        typer.Option(
            metavar="TIME",
            help="Stop in good order before this time, such as 2026-01-31T18:00, or in seconds "
            "since 1970. Jobs that would take longer are left to other servers.",
        ),
    ] = None,
    version: Annotated[
        bool,
        typer.Option(
            "--version",
            help="Print the version and exit.",
            callback=_print_version,
            is_eager=True,  # before the settings are read
        ),
    ] = False,
) -> None:
    """Serve GPU kernels over HTTP. With a command: administer users, keys and the database.

    docs/settings.md lists all settings. Each is also an environment variable, WARPCALL_<NAME>; an
    option given here takes precedence over its variable.
    """
    given: dict[str, Any] = {"host": host, "port": port, "devices": devices, "servers": servers}
    given["grpc_port"] = grpc_port
    if until is not None:
        given["until"] = _seconds_since_1970(until)
    if insecure:
        given["insecure"] = True
    if calls_only:
        given["calls_only"] = True
    given = {name: value for name, value in given.items() if value is not None}
    if context.invoked_subcommand is not None:
        if given or quiet or json_log:
            raise typer.BadParameter(
                f"options of the server are not for the command {context.invoked_subcommand}"
            )
        return
    json_lines = json_log or not _on_terminal(sys.stderr)
    logs.set_up(quiet=quiet, json_lines=json_lines)
    try:
        settings = load_settings(**given)
        if settings.servers == "1" or not _supervise(settings, given, quiet, json_lines):
            serve(settings)
    except (SettingsError, ServerError) as error:
        logs.write(f"warpcall-server: {error}")
        if isinstance(error, ServerError) and settings.diagnose:
            _diagnose(settings)
        raise typer.Exit(2) from None


def _diagnose(settings: Settings) -> None:
    """Say what else is wrong, as a container that cannot start is gone when one could look."""
    from warpcall_service.doctor.command import report

    report(settings, logs.write)


def _supervise(settings: Settings, given: dict[str, Any], quiet: bool, json_lines: bool) -> bool:
    """Start several servers if there is work for more than one; return whether there is."""
    from warpcall_service.supervisor.plan import plan_servers
    from warpcall_service.supervisor.supervisor import supervise

    planned = plan_servers(settings, given)
    if len(planned) > 1:
        supervise(settings, planned, quiet=quiet, json_lines=json_lines)
    return len(planned) > 1


def _seconds_since_1970(text: str) -> float:
    """A time in the form of RFC 3339, without an offset in the local time, or as a number."""
    try:
        return float(text) if text.isdecimal() else datetime.fromisoformat(text).timestamp()
    except (ValueError, OverflowError):
        raise typer.BadParameter(
            "--until must be a time such as 2026-01-31T18:00 or 2026-01-31T18:00:00+01:00, or "
            f"seconds since 1970, got {text[:60]!r}"
        ) from None


def _on_terminal(stream: TextIO | None) -> bool:
    return stream is not None and stream.isatty()


def main() -> None:
    """Run the command of the process's arguments."""
    app(prog_name="warpcall-server")


if __name__ == "__main__":
    main()
