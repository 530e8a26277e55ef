"""What happens in a run of a job, in the order in which `Run` reports it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

RunState = Literal["waiting_gpu", "running", "finalizing"]


@dataclass(frozen=True, slots=True)
class StateChanged:
    """The run waits for the device, has it, or is about to end."""

    state: RunState


@dataclass(frozen=True, slots=True)
class EnvironmentKnown:
    """The job's process is ready: it has imported torch and opened the device.

    Attributes:
        fingerprint: facts about the machine and its software.
        environment: the class of environments to which they belong.
        sources: hash of the source that was loaded, by implementation; None if the process cannot
            be trusted with it, so that the hashes at the submission count.
    """

    fingerprint: Mapping[str, Any]
    environment: str
    sources: Mapping[str, str] | None


@dataclass(frozen=True, slots=True)
class OddCasesChecked:
    """An upload was checked in the odd cases of its op; `found` has the counts."""

    implementation: str
    found: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Progress:
    """The sampler goes on.

    Attributes:
        fields: the case's `position`, and where there are such, `phase` and `implementation`.
    """

    fields: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class CaseMeasured:
    """The case at `position` is measured; `result` is the sampler's whole result."""

    position: int
    result: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Printed:
    """What an upload printed in the case at `position`, which is reported before its result."""

    position: int
    implementation: str
    text: str


@dataclass(frozen=True, slots=True)
class ProfileMade:
    """A file of a profile of an implementation in the case at `position`, or why there is none.

    Attributes:
        file: which one, as `messages.PROFILE_FILES` names it.
        content: the file; empty if there is an error. Code of users may have written it.
        error: for readers; empty if there is a profile.
    """

    position: int
    implementation: str
    file: str
    content: bytes
    error: str


@dataclass(frozen=True, slots=True)
class OutputWritten:
    """The command of a scratch run wrote something; `at` bytes came before it.

    What is missing between the end of an event and the next `at` was left out.
    """

    at: int
    content: bytes


@dataclass(frozen=True, slots=True)
class CommandEnded:
    """The command of a scratch run ended by itself; `status` is that of shells."""

    status: int


@dataclass(frozen=True, slots=True)
class FileFetched:
    """A file that a scratch run sends back, or why it could not be sent.

    Attributes:
        path: in the folder in which the command started.
        name: of the artefact.
        content: the file; empty if there is an error.
        error: for readers; empty if there is a file.
    """

    path: str
    name: str
    content: bytes
    error: str


RunEvent = (
    StateChanged
    | EnvironmentKnown
    | OddCasesChecked
    | Progress
    | Printed
    | CaseMeasured
    | ProfileMade
    | OutputWritten
    | CommandEnded
    | FileFetched
)
