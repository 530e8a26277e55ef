"""Lets torch run operators on the device "meta" without an import of its compiler.

Many operators, such as `mean`, `exp` and `where`, have their form for "meta" in Python. At its first call
such a form imports torch._dynamo, to tell torch.compile not to trace it. The import takes 1.3 s of CPU and
900 modules, in each process that checks or measures a problem, and few of them compile anything.
"""

from __future__ import annotations

import contextlib
import importlib
import sys
from collections.abc import Callable, Iterator
from types import ModuleType
from typing import Any

NAME = "torch._dynamo"


@contextlib.contextmanager
def without_compiler() -> Iterator[None]:
    """Do not import torch._dynamo for torch's own forms for "meta", unless it is imported already.

    Code inside that uses torch._dynamo itself gets the real module.
    """
    if NAME in sys.modules:
        yield
        return
    stand_in = _StandIn(NAME)
    sys.modules[NAME] = stand_in
    try:
        yield
    finally:
        if sys.modules.get(NAME) is stand_in:
            del sys.modules[NAME]


class _StandIn(ModuleType):
    """Has what torch's forms for "meta" use of torch._dynamo. Any other name imports the real module."""

    @staticmethod
    def disable(
        function: Callable[..., Any], recursive: bool = True, *, wrapping: bool = True
    ) -> Callable[..., Any]:
        """As `torch._dynamo.disable`, which torch keeps for the function, once there is a compiler."""
        disabled: Callable[..., Any] | None = None

        def run(*args: Any, **kwargs: Any) -> Any:
            nonlocal disabled
            if disabled is None:
                dynamo = sys.modules.get(NAME)
                if dynamo is None or isinstance(dynamo, _StandIn):
                    return function(*args, **kwargs)
                disabled = dynamo.disable(function, recursive, wrapping=wrapping)
            return disabled(*args, **kwargs)

        vars(run)["_torchdynamo_disable"] = True  # what the real one sets: it is not traced
        return run

    def __getattr__(self, name: str) -> Any:
        if sys.modules.get(NAME) is self:
            del sys.modules[NAME]
        return getattr(importlib.import_module(NAME), name)
