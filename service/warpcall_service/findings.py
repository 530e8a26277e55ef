"""What a check of the machine or of the installation has found, for people and programs."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

FindingState = Literal["ok", "warning", "failed"]


@dataclass(frozen=True)
class Finding:
    """The result of one check.

    Attributes:
        name: of the check, such as "disk".
        state: "failed" if the server does not start, or cannot do what its settings say; "warning"
            if it can, and an operator should look at it.
        text: what was found.
        advice: what to do; empty if there is nothing to do.
    """

    name: str
    state: FindingState
    text: str
    advice: str = ""
