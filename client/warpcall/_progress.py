"""Progress bars for bodies of more than 32 MB, on a terminal or in a notebook."""

from __future__ import annotations

import sys
import threading
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.progress import Progress, ProgressColumn, TaskID

SHOWN_FROM_BYTES = 32 << 20  # takes 0.3 s at 100 MB/s; smaller bodies show no bar


class Meter:
    """Receives the number of bytes that have moved in one exchange. This class shows nothing."""

    def sent(self, nbytes: int) -> None:
        """`nbytes` more were sent."""

    def expect(self, nbytes: int) -> None:
        """The answer will have `nbytes`."""

    def received(self, nbytes: int) -> None:
        """`nbytes` more were received."""

    def close(self) -> None:
        """The exchange has ended, with or without success."""


_SHOWS_NOTHING = Meter()


def on_terminal() -> bool:
    """Whether stderr is a terminal."""
    stderr = sys.stderr  # None in a process that was started without one
    return stderr is not None and stderr.isatty()


def in_notebook() -> bool:
    """Whether this is a kernel of Jupyter, whose outputs a notebook shows."""
    ipython = sys.modules.get("IPython")
    shell = ipython.get_ipython() if ipython is not None else None
    return hasattr(shell, "kernel")


def live(*columns: ProgressColumn) -> Progress:
    """Bars with these columns, which vanish when they are stopped."""
    # Imported here: rich takes 50 ms to import, and most programs show no bar.
    if in_notebook():
        from warpcall._extras.notebooks import NotebookProgress

        return NotebookProgress(*columns)
    from rich.console import Console
    from rich.progress import Progress

    return Progress(*columns, console=Console(stderr=True), transient=True)


class Display:
    """The progress bars of one client. All its threads share one live display.

    Args:
        wanted: whether bars are shown; None means only if stderr is a terminal, or in a notebook.
    """

    def __init__(self, wanted: bool | None) -> None:
        self.wanted = on_terminal() or in_notebook() if wanted is None else wanted
        self._lock = threading.Lock()
        self._progress: Progress | None = None
        self._open = 0

    def meter(self, name: str, nbytes: int) -> Meter:
        """A meter for a call that sends `nbytes`. A large answer gets a bar of its own."""
        return _BarMeter(self, name, nbytes) if self.wanted else _SHOWS_NOTHING

    def start(self, label: str, nbytes: int) -> TaskID:
        """Show a bar for a transfer of `nbytes`."""
        from rich.progress import BarColumn, DownloadColumn, TextColumn
        from rich.progress import TransferSpeedColumn as Speed

        with self._lock:
            if self._progress is None:
                columns = (TextColumn("{task.description}"), BarColumn(), DownloadColumn(), Speed())
                self._progress = live(*columns)
                self._progress.start()
            self._open += 1
            return self._progress.add_task(label, total=nbytes)

    def advance(self, bar: TaskID, nbytes: int) -> None:
        """Advance a bar by `nbytes`."""
        if self._progress is not None:
            self._progress.advance(bar, nbytes)

    def stop(self, bar: TaskID) -> None:
        """Remove a bar, and with the last bar the display."""
        with self._lock:
            if self._progress is None:
                return
            self._progress.remove_task(bar)
            self._open -= 1
            if not self._open:
                self._progress.stop()
                self._progress = None


class _BarMeter(Meter):
    """Shows a bar for the request, then one for the answer, each only if it is large enough."""

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
