"""The commands `private` and `public`: who may read a job."""

from __future__ import annotations

from dataclasses import asdict

import typer

from warpcall import Client
from warpcall._cli.jobs import JobId
from warpcall._cli.output import Json, Url, print_json, write_lines

app = typer.Typer()


@app.command()
def private(id: JobId, as_json: Json = False, url: Url = None) -> None:
    """Let only you and administrators read a job."""
    _set_private(id, True, "only its user and administrators", as_json, url)


@app.command()
def public(id: JobId, as_json: Json = False, url: Url = None) -> None:
    """Let all users of the server read a job."""
    _set_private(id, False, "all users of the server", as_json, url)


def _set_private(id_: str, wanted: bool, readers: str, as_json: bool, url: str | None) -> None:
    with Client(url) as gpu:
        job = gpu.jobs.get(id_).set_private(wanted)
    if as_json:
        print_json(asdict(job.info))
    else:
        write_lines(f"{job.id} can be read by {readers}")
