"""Saves usage so that it counts once, even if a server does not learn that it was saved.

A connection to the database may break after a transaction was committed and before the server
learns of it. The server then has to save the same counts again. Therefore each save has a number,
and the database has the last number of each server: a save that is repeated changes nothing.
"""

from __future__ import annotations

import secrets
from dataclasses import dataclass

import sqlalchemy as sa
from sqlalchemy.orm import Session

from warpcall_service.auth import usage
from warpcall_service.auth.usage import UsageBatch, UsageCounter
from warpcall_service.store.tables import UsageSave
from warpcall_service.store.times import now_ms

KEPT_MS = 86_400_000  # how long the number of a process that has ended is kept


@dataclass(frozen=True, slots=True)
class Save:
    """Counts to be saved.

    Attributes:
        writer: random id of the server's process.
        number: of this save; it grows with each one of a writer.
    """

    writer: str
    number: int
    batch: UsageBatch


class UsageSaves:
    """Takes counts from a counter, and keeps them until they are known to be saved."""

    def __init__(self, counter: UsageCounter) -> None:
        self._counter = counter
        self._writer, self._number = secrets.token_hex(8), 0
        self._save: Save | None = None

    def take(self) -> Save | None:
        """What is to be saved next, the same until `done`; None if nothing is."""
        if self._save is None and (batch := self._counter.take()):
            self._number += 1
            self._save = Save(self._writer, self._number, batch)
        return self._save

    def done(self) -> None:
        """Forget what `take` returned, since it is saved."""
        self._save = None


def save_once(session: Session, save: Save) -> None:
    """Add counts to the rows of the database, unless that has been done."""
    updated = session.execute(
        sa.update(UsageSave)
        .where(UsageSave.writer == save.writer, UsageSave.number < save.number)
        .values(number=save.number, saved_ms=now_ms())
        .execution_options(synchronize_session=False)
    )
    if not updated.rowcount:  # type: ignore[attr-defined]  # an UPDATE's result has it
        if session.get(UsageSave, save.writer) is not None:
            return
        session.execute(sa.delete(UsageSave).where(UsageSave.saved_ms < now_ms() - KEPT_MS))
        session.add(UsageSave(writer=save.writer, number=save.number, saved_ms=now_ms()))
    usage.save(session, save.batch)
