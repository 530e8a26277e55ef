"""What a process holds open, to see that nothing is left behind."""

from __future__ import annotations

import contextlib
from collections import Counter
from pathlib import Path


def held(pid: int) -> Counter[str]:
    """Its open descriptors by kind, such as "socket".

    The database's are not counted: its pool opens another connection when two threads need it at
    once, and keeps one.
    """
    kinds: Counter[str] = Counter()
    for one in Path(f"/proc/{pid}/fd").iterdir():
        with contextlib.suppress(FileNotFoundError):  # closed in this moment
            name = str(one.readlink())
            if ".sqlite3" not in name:
                kinds[name.partition(":")[0]] += 1
    return kinds
