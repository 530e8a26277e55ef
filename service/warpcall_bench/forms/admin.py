"""The page of administrators, and the forms on it: users, keys, sessions, quotas."""

from __future__ import annotations

import contextlib
import functools
import logging
from collections import OrderedDict
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Annotated, Literal, TypeVar

from fastapi import APIRouter, Path, Request, Response
from sqlalchemy.orm import Session

from warpcall.errors import Forbidden, InvalidInput, NotFound, Problem
from warpcall_bench.forms import admin_data
from warpcall_bench.forms.admin_data import DAY_S, DAYS
from warpcall_bench.jobs.service import JobService
from warpcall_bench.pages.view import View, new_token, page, render
from warpcall_service.auth import sessions, stored_quotas, users
from warpcall_service.extension import Accounts
from warpcall_service.formats.form import Form, go_to, read_form
from warpcall_service.http.caller import CurrentCaller
from warpcall_service.http.route_io import path_of
from warpcall_service.identity import KINDS, LOCAL, ROLES, Caller, Role
from warpcall_service.quotas import Subject
from warpcall_service.text import brief

T = TypeVar("T")

MAX_FORM_BYTES = 8 << 10
MAX_TOKENS = 1024  # of forms that made a key, remembered so that a reload makes no second one
LIFETIMES = {"7 days": 7, "30 days": 30, "90 days": 90, "1 year": 365, "never": None}  # in days
DEFAULT_LIFETIME = "90 days"

Id = Annotated[str, Path(max_length=64)]
By = Literal["", "day"]  # whether the page has the table of all days, which is long
log = logging.getLogger("warpcall.auth")


@dataclass(frozen=True, slots=True)
class NewKey:
    """What the form of a new key asks for."""

    user: str
    role: Role
    lifetime_s: int | None

    @classmethod
    def of(cls, form: Form) -> NewKey:
        """What a form says.

        Raises:
            InvalidInput: the role or the time is not one of those in the form.
        """
        wanted = [role for role in ROLES if role == form.text("role")]
        if not wanted:
            raise InvalidInput(
                f"the role must be {', '.join(ROLES)}, got {brief(form.text('role'))}", field="role"
            )
        lifetime = form.text("lifetime")
        if lifetime not in LIFETIMES:
            raise InvalidInput(
                f"the time must be {', '.join(LIFETIMES)}, got {brief(lifetime)}", field="lifetime"
            )
        days = LIFETIMES[lifetime]
        return cls(form.text("user"), wanted[0], None if days is None else days * DAY_S)


class SentForms:
    """The tokens of the forms that were sent last, in this process. Nothing else is kept of them.

    Args:
        most: of the tokens. The oldest one is forgotten for a further one.
    """

    def __init__(self, most: int = MAX_TOKENS) -> None:
        self._most = most
        self._tokens: OrderedDict[str, None] = OrderedDict()

    def __contains__(self, token: str) -> bool:
        return token in self._tokens

    def add(self, token: str) -> None:
        """Remember a token."""
        self._tokens[token] = None
        if len(self._tokens) > self._most:
            self._tokens.popitem(last=False)

    def remove(self, token: str) -> None:
        """Forget a token, if it is remembered."""
        self._tokens.pop(token, None)


class Administration:
    """What the routes of this file do."""

    def __init__(self, account_sync: Accounts, jobs: JobService) -> None:
        self._account_sync = account_sync
        self._jobs = jobs
        self._quotas = account_sync.quotas
        self._sent = SentForms()

    async def render(
        self,
        request: Request,
        caller: Caller,
        form: Form | None = None,
        errors: Mapping[str, str] | None = None,
        status: int = 200,
        by_day: bool = False,
    ) -> Response:
        """The whole page; with `by_day`, also the table of what each user has used on each day."""
        shown = await self._jobs.read(caller, admin_data.read, self._quotas)
        text = render(
            "admin.html",
            replace(View.of(request), path="/admin"),  # also in an answer to a form
            admin=shown,
            quota_names=[*self._quotas.defaults],
            form=form or Form(),
            errors=errors or {},
            roles=ROLES,
            lifetimes=[*LIFETIMES],
            default_lifetime=DEFAULT_LIFETIME,
            days=DAYS,
            by_day=by_day,
            may_change=caller is not LOCAL,
            token=new_token(),
        )
        return page(request, text, status)

    async def change(self, caller: Caller, what: str, function: Callable[[Session], T]) -> T:
        """Change users, keys, sessions or quotas, and log who did.

        Raises:
            Forbidden: the server has no keys, so nobody knows who the caller is.
        """
        if caller is LOCAL:
            raise Forbidden(
                "a server without keys knows no administrators; make the first user and key with "
                "warpcall-server users add and warpcall-server keys create"
            )
        result = await self._account_sync.change(function)
        log.info("%s: %s", caller.name, what)
        return result

    async def add_user(self, caller: Caller, name: str) -> None:
        """Add a user."""

        def add(session: Session) -> None:
            users.add_user(session, name)

        await self.change(caller, f"added the user {brief(name)}", add)

    async def disable_user(self, caller: Caller, name: str, disabled: bool) -> None:
        """Disable a user, or enable one again.

        Raises:
            InvalidInput: it is the caller.
        """
        if disabled and name == caller.name:
            raise InvalidInput("you cannot disable yourself; another administrator can")
        done = "disabled" if disabled else "enabled"
        await self.change(
            caller,
            f"{done} the user {brief(name)}",
            functools.partial(users.disable_user, name=name, disabled=disabled),
        )

    async def create_key(self, caller: Caller, wanted: NewKey, token: str) -> str:
        """Create a key and return it; nobody can read it again.

        Raises:
            InvalidInput: the same form made a key before, or the user is disabled.
            NotFound: there is no such user.
        """
        if not token or token in self._sent:
            raise InvalidInput(
                "this form was sent before, and made a key then; it is in the list, without what "
                "is secret. Send the form below for another one"
            )

        def create(session: Session) -> tuple[str, str]:
            key, text = users.create_key(session, wanted.user, wanted.role, wanted.lifetime_s)
            return key.id, text

        self._sent.add(token)
        try:
            what = f"created a key of {brief(wanted.user)} with the role {wanted.role}"
            return (await self.change(caller, what, create))[1]
        except Problem:
            self._sent.remove(token)
            raise

    async def revoke_key(self, caller: Caller, key_id: str) -> None:
        """Revoke a key.

        Raises:
            InvalidInput: it is the key that the caller uses.
            NotFound: there is no such key.
        """
        if key_id == caller.key_id:
            raise InvalidInput(
                "this is the key that you have logged in with; log in with another one to revoke it"
            )

        def revoke(session: Session) -> None:
            users.revoke_key(session, key_id)

        await self.change(caller, f"revoked the key {brief(key_id)}", revoke)

    async def end_session(self, caller: Caller, session_id: str) -> None:
        """End a session of a browser, if it has not ended."""
        await self.change(
            caller,
            f"ended the session {brief(session_id)}",
            functools.partial(sessions.end_if_open, session_id=session_id),
        )

    async def set_quota(self, caller: Caller, form: Form) -> None:
        """Give a limit to the user or the role that a form names.

        Raises:
            InvalidInput: a field names nothing that there is, or the limit is none that it may have.
            NotFound: there is no such user.
        """
        kind, _, name = form.text("of").partition(" ")
        quota, given = form.text("quota"), form.text("limit")
        if kind not in KINDS or not name:
            raise InvalidInput(
                f"it must be a user or a role, such as role call, got {brief(form.text('of'))}",
                field="of",
            )
        subject = Subject("user" if kind == "user" else "role", name)

        def set_limit(session: Session) -> None:
            stored_quotas.set_limit(session, self._quotas, subject, quota, given)

        what = f"set the quota {brief(quota)} of the {brief(str(subject))} to {brief(given)}"
        await self.change(caller, what, set_limit)

    async def remove_quota(self, caller: Caller, subject: Subject, quota: str) -> None:
        """Take a limit from a user or a role, unless it has none."""

        def remove(session: Session) -> None:
            with contextlib.suppress(NotFound):  # somebody else was faster
                stored_quotas.remove(session, self._quotas, subject, quota)

        what = f"removed the quota {brief(quota)} of the {brief(str(subject))}"
        await self.change(caller, what, remove)


def routes(account_sync: Accounts, jobs: JobService) -> APIRouter:
    """The page, and what its forms post to. For all but administrators there is nothing here."""
    router = APIRouter(include_in_schema=False)
    administration = Administration(account_sync, jobs)

    @router.get("/admin")
    async def show(request: Request, caller: CurrentCaller, by: By = "") -> Response:
        require_admin(request, caller)
        return await administration.render(request, caller, by_day=bool(by))

    @router.post("/admin/users")
    async def add_user(request: Request, caller: CurrentCaller) -> Response:
        require_admin(request, caller)
        form = await read_form(request, MAX_FORM_BYTES)
        try:
            await administration.add_user(caller, form.text("name"))
        except (InvalidInput, Forbidden) as problem:
            return await refused(request, caller, form, problem, ("name",))
        return go_to("../admin#users")

    @router.post("/admin/users/{name}/{state}")
    async def set_state(request: Request, caller: CurrentCaller, name: Id, state: Id) -> Response:
        require_admin(request, caller)
        if state not in ("disable", "enable"):
            raise _nothing_at(request)
        try:
            await administration.disable_user(caller, name, state == "disable")
        except (InvalidInput, Forbidden) as problem:
            return await refused(request, caller, Form(), problem, ())
        return go_to("../../../admin#users")

    @router.post("/admin/keys")
    async def create_key(request: Request, caller: CurrentCaller) -> Response:
        require_admin(request, caller)
        form = await read_form(request, MAX_FORM_BYTES)
        try:
            wanted = NewKey.of(form)
            key = await administration.create_key(caller, wanted, form.token)
        except (InvalidInput, NotFound, Forbidden) as problem:
            return await refused(request, caller, form, problem, ("user", "role", "lifetime"))
        text = render("admin_key.html", View.of(request), key=key, wanted=wanted)
        return page(request, text)

    @router.post("/admin/keys/{id}/revoke")
    async def revoke_key(request: Request, caller: CurrentCaller, id: Id) -> Response:
        require_admin(request, caller)
        try:
            await administration.revoke_key(caller, id)
        except (InvalidInput, Forbidden) as problem:
            return await refused(request, caller, Form(), problem, ())
        return go_to("../../../admin#keys")

    @router.post("/admin/sessions/{id}/end")
    async def end_session(request: Request, caller: CurrentCaller, id: Id) -> Response:
        require_admin(request, caller)
        try:
            await administration.end_session(caller, id)
        except Forbidden as problem:
            return await refused(request, caller, Form(), problem, ())
        return go_to("../../../admin#sessions")

    @router.post("/admin/quotas")
    async def set_quota(request: Request, caller: CurrentCaller) -> Response:
        require_admin(request, caller)
        form = await read_form(request, MAX_FORM_BYTES)
        try:
            await administration.set_quota(caller, form)
        except (InvalidInput, NotFound, Forbidden) as problem:
            if problem.field in ("user", "role"):
                problem.field = "of"
            return await refused(request, caller, form, problem, ("quota", "of", "limit"))
        return go_to("../admin#quotas")

    @router.post("/admin/quotas/{kind}/{name}/{quota}/remove")
    async def remove_quota(
        request: Request, caller: CurrentCaller, kind: Id, name: Id, quota: Id
    ) -> Response:
        require_admin(request, caller)
        if kind not in KINDS:
            raise _nothing_at(request)
        subject = Subject("user" if kind == "user" else "role", name)
        try:
            await administration.remove_quota(caller, subject, quota)
        except (InvalidInput, Forbidden) as problem:
            return await refused(request, caller, Form(), problem, ())
        return go_to("../../../../../admin#quotas")

    async def refused(
        request: Request, caller: Caller, form: Form, problem: Problem, fields: tuple[str, ...]
    ) -> Response:
        """The page with a problem at its field, or above everything."""
        name = problem.field if problem.field in fields else ""
        errors = {name: problem.detail}
        return await administration.render(request, caller, form, errors, problem.status)

    return router


def require_admin(request: Request, caller: Caller) -> None:
    """Answer all but administrators as if there were no such page.

    Raises:
        NotFound: the caller is no administrator.
    """
    if not caller.may("admin"):
        raise _nothing_at(request)


def _nothing_at(request: Request) -> NotFound:
    """The problem of a path without a route, which others cannot tell from this one."""
    return NotFound(f"there is nothing at {path_of(request.scope)[:200]!r}", field="path")
