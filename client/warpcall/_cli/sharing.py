"""The commands `private`, `public`, `share` and `open`: who may read a job, and its page."""

from __future__ import annotations

import re
import webbrowser
from collections.abc import Iterable
from dataclasses import asdict
from typing import Annotated

import typer

from warpcall import Client, WarpcallError
from warpcall._cli.files import UsageError
from warpcall._cli.jobs import JobId
from warpcall._cli.output import Json, Url, console, print_json, table_of, write_lines
from warpcall._cli.tables import ago
from warpcall._config import UNIX, split_urls
from warpcall.jobs import Share

UNITS_S = {"m": 60, "h": 3600, "d": 86_400, "y": 365 * 86_400}
LONGEST_S = 10 * UNITS_S["y"]

app = typer.Typer()


@app.command()
def private(id: JobId, as_json: Json = False, url: Url = None) -> None:
    """Let only you and administrators read a job."""
    _set_private(id, True, "only its user and administrators", as_json, url)


@app.command()
def public(id: JobId, as_json: Json = False, url: Url = None) -> None:
    """Let all users of the server read a job."""
    _set_private(id, False, "all users of the server", as_json, url)


@app.command()
def share(
    id: Annotated[str | None, typer.Argument(metavar="[ID]", help="Id of a job of yours.")] = None,
    compare: Annotated[
        str | None, typer.Option(metavar="ID", help="Show the comparison with this job of yours.")
    ] = None,
    expires: Annotated[
        str | None,
        typer.Option(
            metavar="TIME",
            help="Time until the link expires: 30m, 12h, 7d or 1y. Default: it does not.",
        ),
    ] = None,
    listing: Annotated[bool, typer.Option("--list", help="List your links.")] = False,
    revoke: Annotated[
        str | None, typer.Option(metavar="LINK", help="Revoke a link, by its id from --list.")
    ] = None,
    as_json: Json = False,
    url: Url = None,
) -> None:
    """Make a link to a job, for people without a key.

    They read the job or, with --compare, the comparison of two. The link is shown once. Whoever has it can read the job, its results and its request, until you
    revoke the link or make the job private.

    \b
    warpcall share ID --expires 7d
    warpcall share --list
    warpcall share --revoke LINK
    """
    if [id is not None, listing, revoke is not None].count(True) != 1:
        raise UsageError("give the id of a job, --list or --revoke LINK")
    if id is None and (compare or expires):
        raise UsageError("--compare and --expires are for the id of a job")
    expires_s = None if expires is None else seconds_of("--expires", expires)
    with Client(url) as gpu:
        if id is not None:
            made = gpu.jobs.get(id).share(other=compare, expires_s=expires_s)
            print_json(asdict(made)) if as_json else write_lines(made.url)
        elif revoke is not None:
            gpu.jobs.revoke_share(revoke)
            print_json({"revoked": revoke}) if as_json else write_lines(f"{revoke} is revoked")
        else:
            _print_shares(gpu.jobs.shares(), as_json)


def _print_shares(found: Iterable[Share], as_json: bool) -> None:
    shares = list(found)
    if as_json:
        print_json([asdict(one) for one in shares])
    elif shares:
        rows = [
            (
                one.id,
                one.job if one.other is None else f"{one.job} and {one.other}",
                f"{ago(one.created_at)} ago",
                one.expires_at or "never",
            )
            for one in shares
        ]
        console().print(table_of(("link", "shows", "made", "expires"), rows))
    else:
        write_lines("no links")


def seconds_of(option: str, text: str) -> float:
    """The seconds of a time such as 7d."""
    found = re.fullmatch(r"([1-9]\d{0,8})([mhdy])", text)
    seconds = int(found[1]) * UNITS_S[found[2]] if found else 0
    if not 0 < seconds <= LONGEST_S:
        raise UsageError(
            f"{option} must be a number with m, h, d or y, at most 10y, got {text!r:.60}"
        )
    return float(seconds)


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
    """Print the address of a job's page, and open a browser.

    A browser that has not logged in is asked for a key first.
    """
    with Client(url) as gpu:
        server = split_urls(gpu.url)[0]
        if server.startswith(UNIX):
            raise UsageError(f"a browser needs an address with http:// or https://, got {server}")
        if id is not None:
            gpu.jobs.get(id)  # raises an error that is clearer than a page without a job
        address = f"{server}/" if id is None else f"{server}/jobs/{id}"
    write_lines(address)
    if not only_print and not webbrowser.open(address):
        raise WarpcallError("there is no browser that can be opened here; --print asks for none")


def _set_private(id_: str, wanted: bool, readers: str, as_json: bool, url: str | None) -> None:
    with Client(url) as gpu:
        job = gpu.jobs.get(id_).set_private(wanted)
    if as_json:
        print_json(asdict(job.info))
    else:
        write_lines(f"{job.id} can be read by {readers}")
