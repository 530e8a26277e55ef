"""Finds the function `setup` of an uploaded source. It imports no torch."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from types import ModuleType
from typing import Any

SETUP = "setup"  # the name of the function
STATE = "state"  # the argument of the timed function that gets what `setup` returned

Function = Callable[..., Any]


def setup_of(module: ModuleType, function: Function) -> Function | None:
    """The setup of a function, if its module has one and the function takes `state`."""
    setup = vars(module).get(SETUP)
    return setup if callable(setup) and state_of(function) is not None else None


def needs_setup(function: Function) -> bool:
    """Whether a function cannot be called without a state."""
    state = state_of(function)
    return state is not None and state.default is state.empty


def state_of(function: Function) -> inspect.Parameter | None:
    """The argument `state` of a function, if it can be given by name."""
    try:
        found = inspect.signature(function).parameters.get(STATE)
    except (TypeError, ValueError):  # such as of a function in C, which has none
        return None
    by_name = found is not None and found.kind in (found.POSITIONAL_OR_KEYWORD, found.KEYWORD_ONLY)
    return found if by_name else None


def refused_setup(name: str) -> str:
    """Why a verified implementation cannot have a setup."""
    return (
        f"{name} takes {STATE}: a verified implementation cannot have a {SETUP}, because none of its "
        "code for the host runs where calls are timed"
    )
