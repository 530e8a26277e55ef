"""The administrator's command `quotas`: limits of users and roles."""

from __future__ import annotations

from typing import Annotated

import typer

from warpcall_service.auth import stored_quotas, users
from warpcall_service.auth.commands import Json, changing, print_line, print_rows, reading
from warpcall_service.extension import load_settings
from warpcall_service.quotas import Quotas, Subject

app = typer.Typer(help="List, set and remove limits of users and roles.", no_args_is_help=True)

QuotaName = Annotated[
    str, typer.Argument(metavar="QUOTA", help="Name of the quota, such as user_max_jobs.")
]
OfUser = Annotated[str | None, typer.Option("--user", metavar="USER", help="A user's name.")]
OfRole = Annotated[
    str | None, typer.Option("--role", metavar="ROLE", help="All users with this role.")
]


@app.command("list")
def list_quotas(user: OfUser = None, as_json: Json = False) -> None:
    """List the limits that users and roles were given; with --user all limits of this user.

    Limits that come from settings are those of this environment.
    """
    with reading() as session:
        known = Quotas(load_settings())
        if user is None:
            found = stored_quotas.listed(session, known).quotas
            rows = [
                {"of": f"{one.kind} {one.subject}", "quota": one.name, "limit": one.limit}
                for one in found
            ]
        else:
            users.find_user(session, user)
            stored_quotas.apply(session, known)
            rows = [
                {"quota": one.name, "limit": one.limit, "from": one.source}
                for one in known.of_user(user, {})
            ]
    columns = ("of", "quota", "limit") if user is None else ("quota", "limit", "from")
    print_rows(rows, columns, as_json)


@app.command("set")
def set_quota(
    quota: QuotaName,
    limit: Annotated[str, typer.Argument(metavar="LIMIT", help="A number; bytes such as 2GiB.")],
    user: OfUser = None,
    role: OfRole = None,
) -> None:
    """Give a limit to a user or a role. All servers on the database apply it within a second."""
    subject = _subject(user, role)
    with changing() as session:
        known = Quotas(load_settings())
        found = stored_quotas.set_limit(session, known, subject, quota, limit)
    print_line(f"the {subject} has the quota {quota} of {found.limit}, not {found.setting}")


@app.command("remove")
def remove_quota(quota: QuotaName, user: OfUser = None, role: OfRole = None) -> None:
    """Take a limit from a user or a role: that of the role, or the setting, applies again."""
    subject = _subject(user, role)
    with changing() as session:
        stored_quotas.remove(session, Quotas(load_settings()), subject, quota)
    print_line(f"removed the quota {quota} of the {subject}")


def _subject(user: str | None, role: str | None) -> Subject:
    if user is not None and role is None:
        return Subject("user", user)
    if role is not None and user is None:
        return Subject("role", role)
    raise typer.BadParameter("give either --user or --role")
