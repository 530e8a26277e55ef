"""The routes by which users see their limits, and administrators change those of users and roles."""

from __future__ import annotations

import functools
import logging
from collections.abc import Callable, Mapping
from typing import Annotated, Any

from fastapi import Path, Request, Response
from pydantic import Field
from sqlalchemy.orm import Session

from warpcall.errors import (
    Forbidden,
    InvalidInput,
    NotFound,
    TimedOut,
    TooLarge,
    Unavailable,
    UnsupportedMedia,
)
from warpcall.users import QuotaList, StoredQuota, UserQuotas
from warpcall_service.auth import stored_quotas, users
from warpcall_service.auth.sync import AccountSync
from warpcall_service.formats.media_types import JSON
from warpcall_service.formats.params import from_json
from warpcall_service.formats.payloads import answered
from warpcall_service.http.caller import CurrentCaller, needs
from warpcall_service.http.openapi_parts import problem_responses
from warpcall_service.http.route_io import body_of
from warpcall_service.http.router import Router
from warpcall_service.identity import LOCAL, Caller, Kind
from warpcall_service.quotas import Subject, Use
from warpcall_service.text import brief

MAX_BODY_BYTES = 1024
NO_ADMINISTRATORS = (
    "a server without keys knows no administrators; make the first user and key with "
    "warpcall-server users add and warpcall-server keys create"
)
BODY: Mapping[str, Any] = {
    "required": True,
    "content": {
        JSON: {
            "schema": {
                "type": "object",
                "required": ["limit"],
                "additionalProperties": False,
                "properties": {
                    "limit": {
                        "anyOf": [{"type": "number"}, {"type": "string"}],
                        "description": "the limit; bytes may be written as `2GiB`",
                    }
                },
            }
        }
    },
}

Name = Annotated[str, Path(max_length=64), Field(description="Name of the quota")]
OfUser = Annotated[str, Path(max_length=64)]
log = logging.getLogger("warpcall.auth")


def check_known(caller: Caller) -> None:
    """Raise Forbidden on a server without keys, where nobody knows who the caller is."""
    if caller is LOCAL:
        raise Forbidden(NO_ADMINISTRATORS)


def routes(account_sync: AccountSync, quota_use: Callable[[Session, str | None], Use]) -> Router:
    """The routes.

    Args:
        quota_use: as `extension.Parts.quota_use`.
    """
    router = Router(tags=["users"])
    known = account_sync.quotas
    reading = problem_responses([Unavailable])
    naming = problem_responses([NotFound, InvalidInput, Forbidden, Unavailable])
    admin = needs("admin")

    async def of_user(name: str, *, must_exist: bool) -> Response:
        def use(session: Session) -> Use:
            if must_exist:
                users.find_user(session, name)
            return quota_use(session, name)

        used = await account_sync.read(use)
        return answered(UserQuotas(user=name, quotas=known.of_user(name, used)))

    @router.get("/v1/me/quotas", response_model=UserQuotas, responses=reading)
    async def my_quotas(caller: CurrentCaller) -> Response:
        """Your limits, where each comes from, and what you use of them now."""
        return await of_user(caller.name, must_exist=False)

    @router.get("/v1/admin/quotas", response_model=QuotaList, responses=reading, **admin)
    async def list_quotas() -> Response:
        """The limits that users and roles were given, and those of all others."""
        return answered(
            await account_sync.read(functools.partial(stored_quotas.listed, known=known))
        )

    @router.get(
        "/v1/admin/quotas/user/{name}", response_model=UserQuotas, responses=naming, **admin
    )
    async def show_quotas(name: OfUser) -> Response:
        """The limits of a user, where each comes from, and what they use of them now."""
        return await of_user(name, must_exist=True)

    @router.put(
        "/v1/admin/quotas/{kind}/{name}/{quota}",
        response_model=StoredQuota,
        responses={**naming, **problem_responses([TooLarge, UnsupportedMedia, TimedOut])},
        dependencies=admin["dependencies"],
        openapi_extra={**admin["openapi_extra"], "requestBody": BODY},
    )
    async def set_quota(
        request: Request, caller: CurrentCaller, kind: Kind, name: OfUser, quota: Name
    ) -> Response:
        """Give a limit to a user or a role, in place of the one that they had.

        A limit of a user takes precedence over one of their role, and this over the setting. This
        server applies it at once, others on the same database within a second.
        """
        check_known(caller)
        given = await _limit_in(request)
        subject = Subject(kind, name)
        found = await account_sync.change(
            functools.partial(
                stored_quotas.set_limit, known=known, subject=subject, name=quota, given=given
            )
        )
        log.info("%s: set the quota %s of the %s to %g", caller.name, quota, subject, found.limit)
        return answered(found)

    @router.delete(
        "/v1/admin/quotas/{kind}/{name}/{quota}", status_code=204, responses=naming, **admin
    )
    async def remove_quota(
        caller: CurrentCaller, kind: Kind, name: OfUser, quota: Name
    ) -> Response:
        """Take a limit from a user or a role: that of the role, or the setting, applies again."""
        check_known(caller)
        subject = Subject(kind, name)
        await account_sync.change(
            functools.partial(stored_quotas.remove, known=known, subject=subject, name=quota)
        )
        log.info("%s: removed the quota %s of the %s", caller.name, quota, subject)
        return Response(status_code=204)

    return router


async def _limit_in(request: Request) -> object:
    """What the body gives as the limit."""
    media = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if media != JSON:
        raise UnsupportedMedia(
            f"Content-Type must be {JSON}, got {media[:60] or 'none'}", field="content-type"
        )
    members = from_json(await body_of(request, MAX_BODY_BYTES, "the limit"), "body")
    if members.keys() != {"limit"}:
        raise InvalidInput(
            f'body must have one member, "limit", got {brief(", ".join(members)) or "none"}',
            field="body",
        )
    return members["limit"]
