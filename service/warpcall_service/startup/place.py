"""What a server below a supervisor has beside its settings."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Place:
    """The place of one server among those of its supervisor.

    Attributes:
        name: of the server among those of its supervisor.
        public_port: on which it listens together with the others, once it is ready; None if they
            share no port.
        ready_fd: a descriptor that gets the server's own URL when it serves.
    """

    name: str
    public_port: int | None
    ready_fd: int
