"""Progress bars in a Jupyter notebook, drawn by IPython's own display.

rich draws its bars in a notebook with ipywidgets, which many installations lack. IPython replaces an
output that it has drawn in every front end, with nothing else installed.
"""

from __future__ import annotations

import threading
import time
from importlib import import_module
from typing import Any

from rich.progress import Progress

REDRAWN_EVERY_S = 0.2

# Outputs that show nothing now, with their cells. Many transfers of one cell share one output, so
# that the cell does not end with a blank line for each.
_empty: list[tuple[object, Any]] = []
_lock = threading.Lock()


def _cell() -> object:
    """The number of the cell that runs."""
    number: object = import_module("IPython").get_ipython().execution_count
    return number


class NotebookProgress(Progress):
    """A display of progress that is an output of a cell. At its end the output is empty.

    It has no thread that draws it: each call that changes it draws it, if the last time is long
    enough ago.
    """

    _handle: Any = None
    _drawn = 0.0

    def start(self) -> None:
        """Begin to show the bars."""
        show = import_module("IPython.display").display
        with _lock:  # the threads of a cell may start bars of several clients
            _empty[:] = [one for one in _empty if one[0] == _cell()]
            self._handle = _empty.pop()[1] if _empty else show(self, display_id=True)

    def stop(self) -> None:
        """Remove the bars from the output."""
        if self._handle is not None:
            self._handle.update({"text/plain": "", "text/html": ""}, raw=True)
            _empty.append((_cell(), self._handle))
            self._handle = None

    def refresh(self) -> None:
        """Draw the bars as they are now."""
        if self._handle is not None:
            self._drawn = time.monotonic()
            self._handle.update(self)

    def advance(self, *args: Any, **options: Any) -> None:
        """As `Progress.advance`."""
        super().advance(*args, **options)
        self._refresh_now_and_then()

    def update(self, *args: Any, **options: Any) -> None:
        """As `Progress.update`."""
        super().update(*args, **options)
        self._refresh_now_and_then()

    def _refresh_now_and_then(self) -> None:
        if time.monotonic() - self._drawn > REDRAWN_EVERY_S:
            self.refresh()
