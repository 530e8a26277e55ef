"""Races in the SDK: upload sources, submit the job in which they race, and say who won."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Unpack

from warpcall._core import Core
from warpcall._jobs.client import AsyncJobs, requested
from warpcall._jobs.grid import configured
from warpcall._jobs.implementations import AsyncImplementations
from warpcall._jobs.job import AsyncJob
from warpcall._jobs.names import NAME, without_version
from warpcall._jobs.source import Code, source_of
from warpcall.errors import InvalidInput
from warpcall.implementations import UploadedImplementation
from warpcall.jobs.request import JobOptions, JobRequest
from warpcall.races import FEWEST, MOST, Race, judge

TUNED = ".tuning"  # ends the name under which the configurations of a file are versions
LONGEST_NAME = 48

Said = Callable[[str], None]


@dataclass(frozen=True)
class Entrant:
    """A source that is to race.

    Attributes:
        code: path, text or function.
        label: how messages and `Race.refused` name it.
        name: under which it is uploaded; None for the default.
        function: in the source; None for the default.
        verified: whether only its kernels shall be timed.
        configuration: the constants with which it was made of a file.
    """

    code: Code
    label: str
    name: str | None = None
    function: str | None = None
    verified: bool = False
    configuration: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Submitted:
    """The job of a race.

    Attributes:
        configurations: the constants of those implementations that were made of a file, by name.
        refused: why other sources are not in it, by label.
        uploaded: the sources that are in it, each with its upload and its name in the job.
    """

    job: AsyncJob
    configurations: Mapping[str, Mapping[str, Any]]
    refused: Mapping[str, str]
    uploaded: Sequence[tuple[Entrant, UploadedImplementation, str]]


def entrants_of(
    codes: Sequence[Code],
    over: Mapping[str, Sequence[Any]] | None,
    function: str | None = None,
    op: str = "",
    *,
    verified: bool = False,
) -> list[Entrant]:
    """The sources that race: those that are given, or the configurations of one of them.

    Raises:
        InvalidInput: `over` does not fit the source, or there is not one source for it.
        OSError: a file cannot be read.
    """
    if over is None:
        return [Entrant(one, _label(one), function=function, verified=verified) for one in codes]
    if len(codes) != 1:
        raise InvalidInput(f"over is for one source, got {len(codes)}", field="over")
    source = source_of(codes[0], function=function, op=op)
    if source.language == "cuda":
        raise InvalidInput(
            f"over is for Python, {source.label} is CUDA C++: declare `configurations` in its comment",
            field="over",
        )
    made = configured(source.text, over, source.label, MOST)
    stem = source.name or source.function or "candidate"
    name = f"{stem[: LONGEST_NAME - len(TUNED)]}{TUNED}"
    if not NAME.fullmatch(name):
        name = f"candidate{TUNED}"
    return [
        Entrant(
            replace(source, text=one.source),
            shown(one.configuration),
            name,
            verified=verified,
            configuration=one.configuration,
        )
        for one in made
    ]


async def race(
    core: Core,
    op: str | JobRequest,
    entrants: Sequence[Entrant],
    tell: Said = lambda text: None,
    **options: Unpack[JobOptions],
) -> Submitted:
    """Upload sources, and submit the job in which they race.

    The server checks one source of a user at a time, so they are uploaded one after the other. One
    that it refuses does not race.

    Args:
        tell: called with a line about each source that was uploaded or refused.

    Raises:
        InvalidInput: less than 2 or more than 64 implementations are left.
    """
    request = requested(op, options)
    others = [*(request.implementations or ())]
    if len(entrants) + len(others) > MOST:
        raise InvalidInput(
            f"a race may have {MOST} implementations, got {len(entrants) + len(others)}",
            field="implementations",
        )
    uploads = AsyncImplementations(core)
    sent: list[tuple[Entrant, UploadedImplementation]] = []
    refused: dict[str, str] = {}
    for one in entrants:
        try:
            found = await uploads.add(
                without_version(request.op),
                one.code,
                function=one.function,
                name=one.name,
                private=request.private,
                verified=one.verified,
            )
        except InvalidInput as error:
            if error.field not in ("source", "function", "launches"):
                raise
            refused[one.label] = error.detail
            tell(f"{one.label} is refused: {error.detail}")
        else:
            sent.append((one, found))
            how = "uploaded now" if found.created else "uploaded before"
            tell(f"{one.label} is {found.name}@{found.version}, {how}")
    names = _job_names([found for _, found in sent])
    uploaded = [(one, found, name) for (one, found), name in zip(sent, names, strict=True)]
    configurations = {name: one.configuration for one, _, name in uploaded if one.configuration}
    names = [*dict.fromkeys([*names, *others])]
    if len(names) < FEWEST:
        why = "; ".join(f"{label}: {text}" for label, text in refused.items())
        raise InvalidInput(
            f"a race needs {FEWEST} different implementations, got {len(names)}"
            + (f" ({why})" if why else ""),
            field="implementations",
        )
    job = await AsyncJobs(core).submit(replace(request, implementations=names, race=True))
    return Submitted(job, configurations, refused, uploaded)


async def outcome(submitted: Submitted, timeout_s: float | None = None) -> Race:
    """Wait for a race and return what came of it; errors as of `Job.wait`."""
    job = submitted.job
    return judge(
        await job.wait(timeout_s),
        job.op,
        job.implementations,
        configurations=submitted.configurations,
        refused=submitted.refused,
    )


def shown(configuration: Mapping[str, Any]) -> str:
    """A configuration as a line of text, such as "BLOCK = 64, num_warps = 4"."""
    return ", ".join(f"{name} = {value!r}" for name, value in configuration.items())


def _label(code: Code) -> str:
    if isinstance(code, os.PathLike) or (isinstance(code, str) and "\n" not in code):
        return Path(code).name
    return getattr(code, "__name__", "source")


def _job_names(uploaded: Sequence[UploadedImplementation]) -> list[str]:
    """Names by which a job times exactly these versions, each once."""
    same = Counter(one.name for one in uploaded)
    return [one.name if same[one.name] == 1 else f"{one.name}@{one.version}" for one in uploaded]
