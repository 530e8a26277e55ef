"""The code behind a callable: the function that it wraps, and the file of that function."""

from __future__ import annotations

import functools
import hashlib
import inspect
from collections.abc import Callable
from pathlib import Path
from typing import Any


def unwrapped(function: Callable[..., Any]) -> Any:
    """The function in a `functools.partial` or under decorators that use `functools.wraps`."""
    while True:
        inner = inspect.unwrap(function)
        if isinstance(inner, functools.partial):
            inner = inner.func
        if inner is function:
            return inner
        function = inner


def source_sha256(function: Callable[..., Any]) -> str:
    """SHA-256 of the file that defines a function; empty if no file does, as for those in C."""
    try:
        file = inspect.getsourcefile(unwrapped(function))
        return "" if file is None else hashlib.sha256(Path(file).read_bytes()).hexdigest()
    except (TypeError, OSError):
        return ""
