"""Monitors in the SDK: measurements that the server repeats. Add, list, read, pause, remove them."""

from __future__ import annotations

from typing import Any, Unpack
from urllib.parse import urlencode

from warpcall._blocking import run_now
from warpcall._core import Core
from warpcall._jobs.client import CREATED, given, requested
from warpcall._jobs.job import checked_id
from warpcall._jobs.parse import parse
from warpcall.jobs.request import JobOptions, JobRequest
from warpcall.monitors import Monitor, MonitorDetails, MonitorList, NewMonitor

PATH = "/v1/monitors"


class _MonitorsBase:
    """The requests of `Monitors` and of `AsyncMonitors`."""

    def __init__(self, core: Core) -> None:
        self._core = core

    async def _add(self, request: JobRequest, options: dict[str, Any]) -> NewMonitor:
        body = {"job": request.to_dict(), **given(options)}
        payload = await self._core.request_json("POST", PATH, body, accepted=CREATED)
        return parse(NewMonitor, payload, "a monitor")

    async def _list(self, user: str | None) -> list[Monitor]:
        payload = await self._core.get_json(f"{PATH}?{urlencode(given({'user': user}))}")
        return parse(MonitorList, payload, "a list of monitors").monitors

    async def _show(self, id_: str) -> MonitorDetails:
        payload = await self._core.get_json(f"{PATH}/{checked_id(id_)}")
        return parse(MonitorDetails, payload, "a monitor")

    async def _set_paused(self, id_: str, paused: bool) -> MonitorDetails:
        body = {"paused": paused}
        payload = await self._core.request_json("PATCH", f"{PATH}/{checked_id(id_)}", body)
        return parse(MonitorDetails, payload, "a monitor")

    async def _remove(self, id_: str) -> None:
        await self._core.delete_at(f"{PATH}/{checked_id(id_)}")


class Monitors(_MonitorsBase):
    """Measurements that the server repeats, in whose times it finds steps.

    added = gpu.monitors.add(
        "permute", every_s=21_600,
        sweep={"shapes": [[4096, 4096]], "dtypes": ["bf16"], "params": {"dims": [[1, 0]]}},
    )
    for step in gpu.monitors.show(added.id).found:
        print(step.case, step.implementation, step.ratio, step.changed)
    """

    def add(
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
            options: as for `Jobs.submit`, but not `priority`, `fresh` or `profile`.

        Raises:
            InvalidInput: the job cannot be measured, or not so often; `field` names the reason.
            TooLarge: the user has too many monitors.
        """
        wanted = {"every_s": every_s, "least": least, "notify": notify}
        return run_now(self._add(requested(op, options), wanted))

    def list(self, *, user: str | None = None) -> list[Monitor]:
        """Monitors that the user may read, the latest first.

        Args:
            user: whose monitors to list; "all" for those of all users, None for the user's own.
        """
        return run_now(self._list(user))

    def show(self, id: str) -> MonitorDetails:
        """The monitor of this id, with its times and the steps in them.

        Raises:
            NotFound: there is no such monitor, or it is private to another user.
        """
        return run_now(self._show(id))

    def pause(self, id: str) -> MonitorDetails:
        """Let a monitor submit no more jobs until it is resumed."""
        return run_now(self._set_paused(id, True))

    def resume(self, id: str) -> MonitorDetails:
        """Let a monitor that was paused go on. It measures at once."""
        return run_now(self._set_paused(id, False))

    def remove(self, id: str) -> None:
        """Remove a monitor. Its jobs stay, but for one that has not ended, which is cancelled.

        Raises:
            NotFound: there is no such monitor, or it is private to another user.
        """
        run_now(self._remove(id))


class AsyncMonitors(_MonitorsBase):
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
        """As `Monitors.add`, awaited."""
        wanted = {"every_s": every_s, "least": least, "notify": notify}
        return await self._add(requested(op, options), wanted)

    async def list(self, *, user: str | None = None) -> list[Monitor]:
        """As `Monitors.list`, awaited."""
        return await self._list(user)

    async def show(self, id: str) -> MonitorDetails:
        """As `Monitors.show`, awaited."""
        return await self._show(id)

    async def pause(self, id: str) -> MonitorDetails:
        """As `Monitors.pause`, awaited."""
        return await self._set_paused(id, True)

    async def resume(self, id: str) -> MonitorDetails:
        """As `Monitors.resume`, awaited."""
        return await self._set_paused(id, False)

    async def remove(self, id: str) -> None:
        """As `Monitors.remove`, awaited."""
        await self._remove(id)
