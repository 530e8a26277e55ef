"""The options of `warpcall bench` that say what Nsight Compute profiles."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any

import typer

from warpcall._cli.files import UsageError

Kernels = Annotated[
    str | None,
    typer.Option(
        "--profile-kernels",
        metavar="REGEX",
        help="With --profile ncu: only kernels in whose name this regular expression is found.",
    ),
]
Launch = Annotated[
    int | None,
    typer.Option(
        "--profile-launch",
        metavar="N",
        help="With --profile ncu: only the N-th launch, from 1, of the kernels that are profiled. "
        "Default: the first 16.",
    ),
]
Sections = Annotated[
    str | None,
    typer.Option(
        "--profile-sections",
        metavar="NAMES",
        help="With --profile ncu: these sections in place of the usual ones, such as "
        "SourceCounters,MemoryWorkloadAnalysis_Tables.",
    ),
]
Metrics = Annotated[
    str | None,
    typer.Option(
        "--profile-metrics",
        metavar="NAMES",
        help="With --profile ncu: these metrics, such as dram__bytes_read.sum,sm__warps_active.sum, "
        "and no sections but those of --profile-sections.",
    ),
]


def profile_options_of(
    profile: str | None,
    kernels: str | None,
    launch: int | None,
    sections: str | None,
    metrics: str | None,
) -> Mapping[str, Any] | None:
    """The `profile_options` of a job; None if none of the options was given.

    Raises:
        UsageError: the job is not profiled by Nsight Compute.
    """
    given: dict[str, Any] = {"kernels": kernels, "launch": launch}
    given["sections"] = None if sections is None else sections.split(",")
    given["metrics"] = None if metrics is None else metrics.split(",")
    given = {name: value for name, value in given.items() if value is not None}
    if given and profile != "ncu":
        raise UsageError(f"{flag_of_option(next(iter(given)))} needs --profile ncu")
    return given or None


def flag_of_option(name: str) -> str:
    """The option for a member of `profile_options`."""
    return f"--profile-{name}"
