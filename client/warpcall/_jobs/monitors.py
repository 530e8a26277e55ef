"""Monitors in the SDK: measurements that the server repeats. Add, list, read, pause, remove them."""

from __future__ import annotations

from typing import Unpack
from urllib.parse import urlencode

from warpcall._blocking import blocking
from warpcall._core import ClientPart, Core
from warpcall._extras.tables import Listed
from warpcall._jobs.client import CREATED, given, requested
from warpcall._jobs.job import checked_id
from warpcall._jobs.parse import parse
from warpcall.jobs.request import JobOptions, JobRequest
from warpcall.monitors import Monitor, MonitorDetails, MonitorList, NewMonitor

PATH = "/v1/monitors"
# Columns of the list in a notebook.
LISTED = (
    "id",
    "user",
    "title",
    "every_s",
    "state",
    "detail",
    "runs",
    "steps",
    "next_at",
    "last_job",
)


class AsyncMonitors(ClientPart):
    """`Monitors` for `AsyncClient`; its methods are awaited."""

    async def add(
        self,
        op: str | JobRequest,
        *,
        every_s: int,
        least: float | None = None,
        notify: str | None = None,
        **options: Unpack[JobOptions],
    ) -> NewMonitor:
        """Repeat a job, for the first time at once. Its jobs run after all others.

        Args:
            op: name of the op or of a problem, or a whole request.
            every_s: seconds between two runs. The server sets a lower limit.
            least: the smallest step to report, as a share of the time before it. None means 0.03.
            notify: URL that the server calls for steps, and when runs begin to fail or work again.
                The operator of the server lists the hosts that it may call. The answer has the
                `secret` with which these calls are signed, which cannot be shown again.
            options: as for `Jobs.submit`, but not `priority`, `fresh`, `profile`, `profile_options` or `sanitize`.

        Raises:
            InvalidInput: the job cannot be measured, or not so often; `field` names the reason.
            TooLarge: the user has too many monitors.
        """
        wanted = given({"every_s": every_s, "least": least, "notify": notify})
        body = {"job": requested(op, options).to_dict(), **wanted}
        payload = await self._core.request_json("POST", PATH, body, accepted=CREATED)
        return parse(NewMonitor, payload, "a monitor")

    async def list(self, *, user: str | None = None) -> list[Monitor]:
        """Monitors that the user may read, the latest first.

        Args:
            user: whose monitors to list; "all" for those of all users, None for the user's own.
        """
        payload = await self._core.get_json(f"{PATH}?{urlencode(given({'user': user}))}")
        found = parse(MonitorList, payload, "a list of monitors").monitors
        return Listed(found, LISTED)

    async def show(self, id: str) -> MonitorDetails:
        """The monitor of this id, with its times and the steps in them.

        Raises:
            NotFound: there is no such monitor, or it is private to another user.
        """
        payload = await self._core.get_json(f"{PATH}/{checked_id(id)}")
        return parse(MonitorDetails, payload, "a monitor")

    async def pause(self, id: str) -> MonitorDetails:
        """Let a monitor submit no more jobs until it is resumed."""
        return await _set_paused(self._core, id, True)

    async def resume(self, id: str) -> MonitorDetails:
        """Let a monitor that was paused go on. It measures at once."""
        return await _set_paused(self._core, id, False)

    async def remove(self, id: str) -> None:
        """Remove a monitor. Its jobs stay, but for one that has not ended, which is cancelled.

        Raises:
            NotFound: there is no such monitor, or it is private to another user.
        """
        await self._core.delete_at(f"{PATH}/{checked_id(id)}")


class Monitors(ClientPart):
    """Measurements that the server repeats, in whose times it finds steps.

    added = gpu.monitors.add(
        "permute", every_s=21_600,
        sweep={"shapes": [[4096, 4096]], "dtypes": ["bf16"], "params": {"dims": [[1, 0]]}},
    )
    for step in gpu.monitors.show(added.id).found:
        print(step.case, step.implementation, step.ratio, step.changed)
    """

    add = blocking(AsyncMonitors.add)
    list = blocking(AsyncMonitors.list)
    show = blocking(AsyncMonitors.show)
    pause = blocking(AsyncMonitors.pause)
    resume = blocking(AsyncMonitors.resume)
    remove = blocking(AsyncMonitors.remove)


async def _set_paused(core: Core, id_: str, paused: bool) -> MonitorDetails:
    payload = await core.request_json("PATCH", f"{PATH}/{checked_id(id_)}", {"paused": paused})
    return parse(MonitorDetails, payload, "a monitor")
