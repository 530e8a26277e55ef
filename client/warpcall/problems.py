"""The types of the problems API: ops of a user's own, which jobs measure like shipped ops.

The SDK returns these types, and the server builds its answers and its OpenAPI from them: this
module is the only list of their fields. Times of day are texts as in RFC 3339, UTC. Every other
quantity has its unit in its name.

A client ignores fields that it does not know, so a newer server may send more than a class has
here.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from warpcall._extras.tables import table_of_objects
from warpcall.jobs import Payload


@dataclass(frozen=True, kw_only=True)
class ProblemInfo(Payload):
    """An op that a user declared: a reference, its inputs as a function of sizes, tolerances."""

    name: str
    """Name as a job has it as its `op`: "user/name"."""
    doc: str
    """What it computes, for readers: the first line of the docstring of its source."""
    user: str
    """Name of the user who uploaded it."""
    version: str
    """First 12 hex digits of `sha256`."""
    sha256: str
    """SHA-256 of the source, in hex."""
    private: bool
    """Whether only its user and administrators may read and benchmark it."""
    nbytes: int
    """Size of the source in bytes of UTF-8."""
    created_at: str
    """When this version was uploaded."""
    inputs: list[str]
    """Names of the inputs, in the order in which the reference has them."""
    params: list[str]
    """Names of the parameters."""
    sizes: list[str]
    """Names of the sizes from which the inputs follow."""


@dataclass(frozen=True, kw_only=True)
class UploadedProblem(ProblemInfo):
    """The problem that answers an upload; its other fields are those of ProblemInfo."""

    created: bool
    """Whether this upload stored a new version; false if the same source was there already."""


@dataclass(frozen=True, kw_only=True)
class ProblemVersion(Payload):
    """One version of a problem."""

    version: str
    """First 12 hex digits of `sha256`."""
    sha256: str
    """SHA-256 of the source, in hex."""
    created_at: str
    """When the version was uploaded."""
    nbytes: int
    """Size of the source in bytes of UTF-8."""


@dataclass(frozen=True, kw_only=True)
class ProblemDetails(ProblemInfo):
    """One version of a problem with its source; see ProblemInfo for its other fields."""

    source: str
    """The Python source as it was uploaded."""
    declaration: dict[str, Any]
    """What it takes and returns, in the form in which `GET /v1/kernels/{name}` describes an op,
    with its `sizes` and the `dtypes` that a benchmark may choose."""
    versions: list[ProblemVersion]
    """All versions of this name, the latest first."""


@dataclass(frozen=True, kw_only=True)
class ProblemList(Payload):
    """A page of the problems that the caller may read, the latest version of each."""

    problems: list[ProblemInfo]
    """The problems of this page, the one uploaded last first."""
    next: str | None
    """Value of `before` that gives the following page; null on the last page."""

    def _repr_html_(self) -> str | None:
        return table_of_objects(
            ("name", "doc", "inputs", "params", "sizes", "version", "created_at"), self.problems
        )
