"""The command warpcall-server."""

from __future__ import annotations

import logging
from typing import Annotated, Any

import typer

from warpcall_service.server import ServerError, serve
from warpcall_service.settings import Settings, SettingsError

app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)


@app.command()
def run(
    host: Annotated[str | None, typer.Option(help="Address to listen on.")] = None,
    port: Annotated[int | None, typer.Option(help="Port to listen on; 0 takes a free one.")] = None,
    devices: Annotated[
        str | None, typer.Option(help="auto, cpu, or a list such as cuda:0,cuda:1.")
    ] = None,
    insecure: Annotated[
        bool, typer.Option(help="Listen on an address that others reach, without API keys.")
    ] = False,
    quiet: Annotated[bool, typer.Option(help="No line for each request.")] = False,
) -> None:
    """Serve GPU kernels over HTTP.

    Every setting is a variable WARPCALL_<NAME>, as docs/deploy.md lists them; an option here wins
    over its variable.
    """
    given: dict[str, Any] = {"host": host, "port": port, "devices": devices}
    if insecure:
        given["insecure"] = True
    logging.basicConfig(format="%(asctime)s %(name)s %(levelname)s %(message)s", level="INFO")
    logging.getLogger("uvicorn").setLevel(logging.WARNING)
    _access_log(quiet)
    try:
        serve(Settings.load(**{name: value for name, value in given.items() if value is not None}))
    except (SettingsError, ServerError) as error:
        typer.echo(f"warpcall-server: {error}", err=True)
        raise typer.Exit(2) from None


def _access_log(quiet: bool) -> None:
    """A line of JSON for each request, without the prefix of other messages."""
    access = logging.getLogger("warpcall.access")
    access.propagate = False
    if quiet:
        access.setLevel(logging.WARNING)
    else:
        handler = logging.StreamHandler()
        handler.setFormatter(logging.Formatter("%(message)s"))
        access.addHandler(handler)


def main() -> None:
    """Run the command."""
    app(prog_name="warpcall-server")


if __name__ == "__main__":
    main()
