"""A progress bar on the terminal, for bodies whose transfer one notices."""

from __future__ import annotations

import sys
import threading
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.progress import Progress, TaskID

SHOWN_FROM_BYTES = 32 << 20  # a third of a second at 100 MB/s


class Meter:
    """Hears how many bytes have moved; this one keeps it to itself."""

    def sent(self, nbytes: int) -> None:
        """`nbytes` more have gone out."""

    def expect(self, nbytes: int) -> None:
        """The answer has `nbytes`."""

    def received(self, nbytes: int) -> None:
        """`nbytes` more have come in."""

    def close(self) -> None:
        """The exchange is over, well or not."""


class Display:
    """The bars of one client: at most one live display, whatever its threads do.

    Args:
        wanted: True or False, or None for: if stderr is a terminal.
    """

    def __init__(self, wanted: bool | None) -> None:
        stderr = sys.stderr  # None in a process without one
        self.wanted = stderr is not None and stderr.isatty() if wanted is None else wanted
        self._lock = threading.Lock()
        self._progress: Progress | None = None
        self._open = 0

    def meter(self, name: str, nbytes: int) -> Meter:
        """A meter for a call that sends `nbytes`; its answer may be the large part."""
        return _BarMeter(self, name, nbytes) if self.wanted else Meter()

    def start(self, label: str, nbytes: int) -> TaskID:
        """Show a bar."""
        from rich.console import Console
        from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn
        from rich.progress import TransferSpeedColumn as Speed

        with self._lock:
            if self._progress is None:
                columns = (TextColumn("{task.description}"), BarColumn(), DownloadColumn(), Speed())
                console = Console(stderr=True)
                self._progress = Progress(*columns, console=console, transient=True)
                self._progress.start()
            self._open += 1
            return self._progress.add_task(label, total=nbytes)

    def advance(self, bar: TaskID, nbytes: int) -> None:
        """Move a bar on."""
        if self._progress is not None:
            self._progress.advance(bar, nbytes)

    def stop(self, bar: TaskID) -> None:
        """Remove a bar, and the display with the last one."""
        with self._lock:
            if self._progress is None:
                return
            self._progress.remove_task(bar)
            self._open -= 1
            if not self._open:
                self._progress.stop()
                self._progress = None


class _BarMeter(Meter):
    """One bar up, then one down, each only if its bytes are worth showing."""

    def __init__(self, display: Display, name: str, nbytes: int) -> None:
        self._display = display
        self._name = name
        self._bar: TaskID | None = None
        self._begin(f"{name} up", nbytes)

    def sent(self, nbytes: int) -> None:
        self.received(nbytes)

    def expect(self, nbytes: int) -> None:
        self.close()
        self._begin(f"{self._name} down", nbytes)

    def received(self, nbytes: int) -> None:
        if self._bar is not None:
            self._display.advance(self._bar, nbytes)

    def close(self) -> None:
        if self._bar is not None:
            self._display.stop(self._bar)
            self._bar = None

    def _begin(self, label: str, nbytes: int) -> None:
        if nbytes > SHOWN_FROM_BYTES:
            self._bar = self._display.start(label, nbytes)
