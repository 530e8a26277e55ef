"""The types of the implementations API: what jobs can time, uploaded source, and the environment
that uploaded source runs in.

The SDK returns these types, and the server builds its answers and its OpenAPI from them: this
module is the only list of their fields. Times of day are texts as in RFC 3339, UTC. Every other
quantity has its unit in its name.

A client ignores fields that it does not know, so a newer server may send more than a class has
here.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Literal

from warpcall._extras.tables import table_of_objects
from warpcall.jobs import Payload

ImplementationKind = Literal["shipped", "operator", "uploaded", "verified"]
"""Where an implementation comes from: the server's own library, a module that the operator
installed, or source that a user uploaded; of "verified" source only the compiled kernels are timed."""

Language = Literal["python", "cuda"]
"""The language of uploaded source; "cuda" is CUDA C++."""

UploadsMode = Literal["off", "sandboxed", "trusted"]
"""Whether users may upload source, and whether it runs in a sandbox."""


@dataclass(frozen=True, kw_only=True)
class Implementation(Payload):
    """Something that a job can time, by its name."""

    name: str
    """Name as a job has it among its `implementations`; "user/name" for uploaded source."""
    kind: ImplementationKind
    """Where it comes from."""
    op: str | None
    """Name of the op that it computes; null if it can be timed with any op."""
    doc: str
    """What it is, for readers: for uploaded source the first line of the function's docstring."""
    user: str | None
    """Name of the user who uploaded it; null unless it is uploaded."""
    version: str | None
    """First 12 hex digits of `sha256`; null unless it is uploaded."""
    sha256: str | None
    """SHA-256 of op, function, source and other files, in hex; null unless it is uploaded."""
    function: str | None
    """Name of the function in the source that is timed; null unless it is uploaded."""
    private: bool | None
    """Whether only its user and administrators may read and time it; null unless it is uploaded."""
    nbytes: int | None
    """Size of all its files in bytes; null unless it is uploaded."""
    created_at: str | None
    """When this version was uploaded; null unless it is uploaded."""
    verified: bool = False
    """Whether its kernels are compiled without a GPU and launched by the server's own code, so that
    no other code of its author runs while it is timed."""
    language: Language | None = None
    """Language of the source; null unless it is uploaded."""


@dataclass(frozen=True, kw_only=True)
class UploadedImplementation(Implementation):
    """The implementation that answers an upload; its other fields are those of Implementation."""

    created: bool
    """Whether this upload stored a new version; false if the same source was there already."""


@dataclass(frozen=True, kw_only=True)
class ImplementationVersion(Payload):
    """One version of an uploaded implementation."""

    version: str
    """First 12 hex digits of `sha256`."""
    sha256: str
    """SHA-256 of op, function, source and other files, in hex."""
    created_at: str
    """When the version was uploaded."""
    nbytes: int
    """Size of all its files in bytes."""


DeviceKind = Literal["gpu", "cpu"]

WRONG_IN_ODD_CASES = "wrong in odd cases"
"""Tag of rows of an uploaded version that was wrong in some odd case of its op, or crashed or hung
there. Its results in the case of the row are right and its time is valid, so it keeps its verdict.
Boards do not rank it."""


@dataclass(frozen=True, kw_only=True)
class OddCases(Payload):
    """What was found when a version was checked in the odd cases of its op on a kind of device.

    The server does so before it times a version for the first time, for at most some seconds.
    """

    device: DeviceKind
    """The kind of device. On "cpu" only some small cases are checked."""
    right: int
    """Number of cases with a right result."""
    wrong: int
    """Number of cases with a wrong result."""
    failed: int
    """Number of cases in which a call crashed, hung, or made the device fail."""
    raised: int
    """Number of cases in which the function raised an exception. It returned no result there, so
    these cases are not counted as wrong."""
    not_checked: int
    """Number of cases for which there was no time, or which need a GPU and there was none."""
    first_case: str | None
    """Key of the first case that was wrong or failed; null if there is none."""
    first_reason: str | None
    """What was wrong in that case, for readers; null if there is none."""

    @property
    def is_wrong(self) -> bool:
        """Whether the version was wrong or failed in some case."""
        return self.wrong + self.failed > 0

    @property
    def text(self) -> str:
        """The outcome in words that follow the name of the implementation."""
        checked = self.right + self.wrong + self.failed + self.raised
        what = f"of {checked} odd case{'s' * (checked != 1)}"
        found = [f"is wrong in {self.wrong}"] if self.wrong else []
        found += [f"crashes or hangs in {self.failed}"] if self.failed else []
        if not self.is_wrong:
            found.append(f"is right in {self.right}")
        if self.raised:
            found.append(f"raises an exception in {self.raised}")
        last = found.pop()
        text = f"{', '.join(found)} and {last} {what}" if found else f"{last} {what}"
        if self.not_checked:
            text += f" ({self.not_checked} more were not checked)"
        if self.first_case is not None:
            text += f", first: {self.first_case}: {self.first_reason}"
        return text


@dataclass(frozen=True, kw_only=True)
class UploadedFile(Payload):
    """A file of an upload of several files."""

    path: str
    """Its path among the files."""
    sha256: str
    """SHA-256 of its content, in hex."""
    nbytes: int
    """Its size in bytes."""


@dataclass(frozen=True, kw_only=True)
class MissingFiles(Payload):
    """Which files a user has to send before an upload can have them."""

    missing: list[str]
    """SHA-256 of each, in hex."""


@dataclass(frozen=True, kw_only=True)
class ImplementationDetails(Implementation):
    """One version of an uploaded implementation with its source; see Implementation for its other
    fields."""

    source: str
    """The source as it was uploaded; of several files the one with the function."""
    entry: str | None = None
    """Path of the source among the files of the upload; null if it is a single file."""
    files: list[UploadedFile] = field(default_factory=list)
    """The other files of the upload, by path; empty if it is a single file."""
    versions: list[ImplementationVersion]
    """All versions of this name, the latest first."""
    odd_cases: list[OddCases] = field(default_factory=list)
    """What checks of this version in the op's odd cases found, one for each kind of device; empty
    before a job has timed it."""
    launches: dict[str, Any] | None = None
    """Declaration of the launches that was uploaded beside the source; null if there was none."""


@dataclass(frozen=True, kw_only=True)
class ModuleError(Payload):
    """A module of the operator that could not be imported."""

    module: str
    """Name of the module."""
    error: str
    """Why it could not be imported, for readers."""


@dataclass(frozen=True, kw_only=True)
class ImplementationList(Payload):
    """A page of implementations: shipped ones, the operator's, and the uploaded ones that the
    caller may read, the latest version of each."""

    implementations: list[Implementation]
    """The implementations of this page."""
    errors: list[ModuleError]
    """Modules of the operator that could not be imported; a job cannot time what is in them."""
    next: str | None
    """Value of `before` that gives the following page; null on the last page."""

    def _repr_html_(self) -> str | None:
        return table_of_objects(
            ("name", "kind", "op", "doc", "version", "created_at"), self.implementations
        )


@dataclass(frozen=True, kw_only=True)
class UploadLimits(Payload):
    """Limits on uploaded source and on the processes that run it."""

    source_bytes: int
    """Most bytes of UTF-8 that one source may have."""
    files: int = 1
    """Most files of one upload; 1 from older servers, which take single files only."""
    tree_bytes: int = 0
    """Most bytes that all files of one upload may have together; 0 from older servers."""
    check_s: float
    """Most seconds that importing a source may take when it is uploaded."""
    tmp_bytes: int
    """Most bytes that a process may write to its temporary files."""
    processes: int
    """Most processes and threads of one job."""
    memory_bytes: int
    """Most host memory that the processes of one job may use, in bytes."""


@dataclass(frozen=True, kw_only=True)
class Environment(Payload):
    """What uploaded source may use on this server."""

    python: str
    """Version of Python."""
    torch: str
    """Version of torch."""
    triton: str | None
    """Version of Triton; null if it is not installed."""
    cuda: str | None
    """Version of CUDA that torch was built with; null if it was built without CUDA."""
    device: str
    """Name of the device that jobs run on, such as "NVIDIA H200"; "cpu" without a GPU."""
    gpu: str = ""
    """Architecture of that device, such as "sm_90"; empty without a GPU, and from older servers."""
    uploads: UploadsMode
    """Whether users may upload source, and whether it runs in a sandbox."""
    trouble: str
    """Why the sandbox cannot start, and what the operator must change; empty if it can."""
    tools: dict[str, str | None]
    """Path or version of each tool that source may call, such as "nvcc"; null if there is none."""
    packages: list[tuple[str, str]]
    """Name and version of each installed Python package, by name."""
    limits: UploadLimits
    """Limits on uploaded source and on the processes that run it."""
