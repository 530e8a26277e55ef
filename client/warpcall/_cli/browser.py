"""The command `open`: the pages of a server, in a browser."""

from __future__ import annotations

import webbrowser
from typing import Annotated

import typer

from warpcall import Client, WarpcallError
from warpcall._cli.files import UsageError
from warpcall._cli.output import Url, write_lines
from warpcall._config import UNIX

app = typer.Typer()


@app.command("open")
def open_page(
    id: Annotated[
        str | None,
        typer.Argument(metavar="[ID]", help="Id of a job. Default: the first page of the server."),
    ] = None,
    only_print: Annotated[
        bool, typer.Option("--print", help="Print the address, and open no browser.")
    ] = False,
    url: Url = None,
) -> None:
    """Print the address of a job's page, and open it in a browser.

    A browser that has not logged in is asked for a key first.
    """
    with Client(url) as gpu:
        if gpu.url.startswith(UNIX):
            raise UsageError(f"a browser needs an address with http:// or https://, got {gpu.url}")
        if id is not None:
            gpu.jobs.get(id)  # raises an error that is clearer than a page without a job
        address = f"{gpu.url}/" if id is None else f"{gpu.url}/jobs/{id}"
    write_lines(address)
    if not only_print and not webbrowser.open(address):
        raise WarpcallError("there is no browser that can be opened here; --print asks for none")
