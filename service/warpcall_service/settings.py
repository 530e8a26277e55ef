"""Reads the settings of the serving core from WARPCALL_* variables, and says what is wrong."""

from __future__ import annotations

import difflib
import os
from typing import Any, Self

from warpcall_service.server_settings import PREFIX, ServerSettings

CLIENT_VARIABLES = frozenset(
    {"WARPCALL_URL", "WARPCALL_API_KEY"}
)  # settings of the SDK, which the server ignores


class SettingsError(ValueError):
    """Settings that are not valid. The message is for the operator."""


class Settings(ServerSettings):
    """The settings of a server without an extension, whose class has further ones.

    Sizes may be written as "2GiB" or "512MB".
    """

    @classmethod
    def load(cls, **overrides: Any) -> Self:
        """Read the settings from the environment; `overrides` take precedence.

        Raises:
            SettingsError: a variable is misspelt, or a value is out of range.
        """
        known = {PREFIX + name.upper() for name in cls.model_fields}
        for variable in os.environ:
            if variable.upper().startswith(PREFIX) and variable.upper() not in (
                known | CLIENT_VARIABLES
            ):
                near = difflib.get_close_matches(variable.upper(), sorted(known), 1, 0.0)
                raise SettingsError(f"{variable} is no setting; is it {near[0]} that is meant?")
        try:
            return cls(**overrides)
        except ValueError as error:
            raise SettingsError(_first_line(error)) from None


def _first_line(error: ValueError) -> str:
    """The faults that pydantic found, one on each line, each beginning with its variable."""
    from pydantic import ValidationError

    if not isinstance(error, ValidationError):
        return str(error)
    lines = []
    for fault in error.errors():
        name = "".join(f"{PREFIX}{str(part).upper()}: " for part in fault["loc"])
        got = f", got {fault['input']!r}" if fault["loc"] else ""
        lines.append(f"{name}{fault['msg'].removeprefix('Value error, ')}{got}")
    return "\n".join(lines)
