"""Groups in the SDK: the same job on several models of a GPU."""

from __future__ import annotations

import re
import time
from typing import Any

from warpcall import wire
from warpcall._blocking import blocking, run_now
from warpcall._core import Core
from warpcall._jobs.handles import page_of, take_fields
from warpcall._jobs.job import deadline_of
from warpcall._jobs.parse import parse
from warpcall._jobs.progress import GroupBars
from warpcall._text import clean
from warpcall.errors import InvalidInput, TimedOut, TransportError
from warpcall.groups import GroupInfo, GroupResults

PATH = wire.GROUPS_PATH
ID = re.compile(r"g[A-Za-z0-9_-]{1,63}")  # an id of this form cannot lead to another path
POLL_S = 1.0  # between two looks at the parts


class GroupHandle(GroupInfo):
    """A group on a server, with the fields of `warpcall.groups.GroupInfo`.

    The fields are as in the server's latest answer. `refresh`, `cancel` and `wait` update them.

    Attributes:
        info: the latest answer itself. It does not change later.
    """

    def __init__(self, core: Core, info: GroupInfo) -> None:
        self._core = core
        self._update(info)

    __eq__ = object.__eq__
    __hash__ = object.__hash__

    def __repr__(self) -> str:
        parts = ", ".join(
            f"{part.gpu} {'private' if part.job is None else part.job.state}" for part in self.parts
        )
        return clean(f"{type(self).__name__}({self.id!r}, {parts} on {self._core.config.url})")

    @property
    def ended(self) -> bool:
        """Whether all parts had ended when the server answered last, or waited for a device that no
        server that runs has."""
        return all(part.is_over for part in self.parts)

    @property
    def page_url(self) -> str | None:
        """Address of the group's page; None for a server on a Unix socket."""
        return page_of(self._core, f"/groups/{self.id}")

    def _update(self, info: GroupInfo) -> None:
        if not ID.fullmatch(info.id):
            raise TransportError(f"the id of a group must match {ID.pattern}, got {info.id!r:.60}")
        take_fields(self, GroupInfo, info)
        self.info = info

    async def _refresh(self) -> None:
        self._update(group_from(await self._core.get_json(group_path(self.id))))

    async def _cancel(self) -> None:
        path = group_path(self.id, "/cancel")
        self._update(group_from(await self._core.request_json("POST", path)))


class AsyncJobGroup(GroupHandle):
    """`JobGroup` for `AsyncClient`; its methods are awaited."""

    async def refresh(self) -> AsyncJobGroup:
        """As `JobGroup.refresh`, awaited."""
        await self._refresh()
        return self

    async def cancel(self) -> AsyncJobGroup:
        """As `JobGroup.cancel`, awaited."""
        await self._cancel()
        return self

    async def wait(self, timeout_s: float | None = None) -> GroupResults:
        """Wait until each part has ended, and return what they measured.

        A part that waits for a device that no server that runs has is not waited for. It stays in the
        queue, its `waits_for_device` is true, and its times are None. No error is raised for a part that
        failed: the `state` and the `detail` of its job say so.

        Raises:
            TimedOut: some part had not ended after `timeout_s` seconds. All parts continue.
        """
        deadline = deadline_of(timeout_s)
        bars = GroupBars(self._core.shows_progress)
        try:
            while True:
                await self._refresh()
                bars.show(self.parts)
                if self.ended:
                    break
                left_s = POLL_S if deadline is None else deadline - time.monotonic()
                if left_s <= 0:
                    raise TimedOut(f"the group {self.id} had not ended in time; its parts go on")
                await self._core.transport.sleep(min(POLL_S, left_s))
        finally:
            bars.close()
        return await group_results(self._core, self.id)

    async def results(self) -> GroupResults:
        """What the parts have measured so far."""
        return await group_results(self._core, self.id)


class JobGroup(GroupHandle):
    """The same job on several models of a GPU, as `Client.jobs.submit_group` returns it."""

    def refresh(self) -> JobGroup:
        """Ask the server for the present state of the parts, and return this group."""
        run_now(self._refresh())
        return self

    def cancel(self) -> JobGroup:
        """End all parts, and return this group. What they have measured is kept.

        Raises:
            Forbidden: the group belongs to another user, and the caller is no administrator.
        """
        run_now(self._cancel())
        return self

    wait = blocking(AsyncJobGroup.wait)
    results = blocking(AsyncJobGroup.results)


def group_from(payload: Any) -> GroupInfo:
    """A server's answer to a request for one group.

    Raises:
        TransportError: it is not a group.
    """
    return parse(GroupInfo, payload, "a group")


async def group_results(core: Core, id_: str) -> GroupResults:
    """What the group of this id has measured so far."""
    return parse(GroupResults, await core.get_json(group_path(id_, "/results")), "results")


def is_group(id_: str) -> bool:
    """Whether an id is one of a group: ids of jobs are hexadecimal."""
    return ID.fullmatch(id_) is not None


def group_path(id_: str, rest: str = "") -> str:
    """The URL path of a group, followed by `rest`.

    Raises:
        InvalidInput: the id does not have the form of one.
    """
    if not isinstance(id_, str) or not is_group(id_):
        raise InvalidInput(
            f"the id of a group must be g and letters, digits, - and _, at most 64, got {id_!r:.60}",
            field="id",
        )
    return f"{PATH}/{id_}{rest}"
