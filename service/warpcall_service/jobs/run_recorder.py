"""What a run leaves in the database, written beside it and in order; nothing of it is lost.

A database that cannot be written meanwhile stops no run: what there is to write waits, and is tried
again until it is there. The only thing that is not written is what a run says whose job another
server has taken over: each change is made in one transaction with the check that the claim holds.
"""

from __future__ import annotations

import asyncio
import json
import logging
import time
from collections.abc import Callable

from sqlalchemy.orm import Session

from warpcall.jobs import State
from warpcall_service.jobs import queue
from warpcall_service.jobs.database import JobDatabase
from warpcall_service.jobs.events import append_event
from warpcall_service.jobs.queue import Claim
from warpcall_service.runs.events import (
    CaseMeasured,
    EnvironmentKnown,
    Progress,
    RunEvent,
    StateChanged,
)
from warpcall_service.store.database import StoreError
from warpcall_service.store.tables import Job

AGAIN_S = 1.0
PROGRESS_S = 2.0  # between two rows that tell of the same phase of the same implementation

Change = Callable[[Session, Job], None]

log = logging.getLogger("warpcall.jobs")


class RunRecorder:
    """The rows of one running job.

    Args:
        on_replaced: called once, when it is found that the claim does not hold any more.

    Attributes:
        replaced: the claim does not hold, and nothing more is written.
    """

    def __init__(
        self, database: JobDatabase, claim: Claim, on_replaced: Callable[[], None]
    ) -> None:
        self.replaced = False
        self._database = database
        self._claim = claim
        self._on_replaced = on_replaced
        self._trouble = ""
        self._state: State = "preparing"
        self._phase: tuple[object, ...] = ()
        self._phase_at = 0.0
        self._changes: asyncio.Queue[tuple[Change, bool]] = asyncio.Queue()
        self._writing = asyncio.create_task(self._write())

    def on_event(self, event: RunEvent) -> None:
        """Write down an event of the run."""
        match event:
            case StateChanged(state):
                self._advance(state)
            case EnvironmentKnown():
                self.put(lambda session, job: _set_environment(job, event))
            case CaseMeasured(position, result):
                self.put(lambda session, job: queue.save_case(session, job, position, result))
            case Progress(fields):
                phase = (fields["position"], fields.get("phase"), fields.get("implementation"))
                now = time.monotonic()
                if phase != self._phase or now > self._phase_at + PROGRESS_S:
                    self._phase, self._phase_at = phase, now
                    self.put(lambda session, job: append_event(session, job, "progress", fields))

    def put(self, change: Change, *, settles: bool = False) -> None:
        """Make a change after those before it.

        Args:
            settles: it also changes what the job's user is charged, which the queue's lock guards.
        """
        self._changes.put_nowait((change, settles))

    async def close(self) -> None:
        """Wait until all is written."""
        await self._changes.join()
        await self.abandon()

    async def abandon(self) -> None:
        """Write no more."""
        self._writing.cancel()
        await asyncio.wait((self._writing,))

    def _advance(self, state: State) -> None:
        """States follow each other; each comes once in a run."""
        order: tuple[State, ...] = ("preparing", "waiting_gpu", "running", "finalizing")
        if order.index(state) > order.index(self._state):
            self._state = state
            self.put(lambda session, job: queue.advance(session, job, state))

    async def _write(self) -> None:
        while True:
            change, settles = await self._changes.get()
            if not self.replaced:
                await self._make(change, settles)
            self._changes.task_done()
            self._database.notify(self._claim.number)

    async def _make(self, change: Change, settles: bool) -> None:
        while True:
            try:
                await self._database.write(self._changed, change, settles)
            except StoreError as error:
                if error.reason != self._trouble:  # the same again is silence
                    log.error("what a job did waits to be written: %s", error.reason)
                self._trouble = error.reason
                await asyncio.sleep(AGAIN_S)
            except queue.ClaimLost:
                self.replaced = True
                self._on_replaced()
                return
            except Exception:
                log.exception("something that a job did is lost")
                return
            else:
                self._trouble = ""
                return

    def _changed(self, session: Session, change: Change, settles: bool) -> None:
        if settles:
            queue.lock(session)
        change(session, queue.lock_claimed(session, self._claim))


def _set_environment(job: Job, known: EnvironmentKnown) -> None:
    job.fingerprint = json.dumps(known.fingerprint)
    job.environment = known.environment
