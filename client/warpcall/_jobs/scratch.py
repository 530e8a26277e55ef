"""Scratch runs in the SDK: run a command on the server's device, and get what it writes."""

from __future__ import annotations

import asyncio
import base64
import binascii
import os
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypedDict

from warpcall import wire
from warpcall._core import Core
from warpcall._jobs.artefacts import AsyncJobArtefact, artefacts_at
from warpcall._jobs.client import CREATED, given
from warpcall._jobs.events import events
from warpcall._jobs.job import ARTEFACTS, details_from, path_of
from warpcall._jobs.parse import parse
from warpcall._jobs.trees import read_tree, send_files
from warpcall._tensors import new_id
from warpcall.errors import InvalidInput, TransportError, WarpcallError
from warpcall.jobs import JobDetails, JobEvent, SubmittedJob

SUBMITTED_S = 10.0  # to cancel a run that nobody waits for any more

Folder = str | os.PathLike[str] | Mapping[str, bytes]
"""A folder or a tarball; or the content of each file by its path."""


class ScratchOptions(TypedDict, total=False):
    """How a command is run.

    Attributes:
        send: a folder or a tarball whose files are in the folder in which the command starts; or the content
            of each file by its path. By default the folder is empty.
        fetch: paths of files and folders there that are sent back when the command has ended.
        limit_s: seconds after which the command is ended, 60 by default.
        name: what lists call the run; by default the command.
        private: False lets all users read the run.
        gpu, node: as in `JobRequest`.
    """

    send: Folder | None
    fetch: Sequence[str]
    limit_s: float
    name: str | None
    private: bool
    gpu: str | None
    node: str | None


@dataclass(frozen=True, kw_only=True)
class ScratchResult:
    """How a command ended, what it wrote, and the files that it sent back."""

    job: JobDetails
    """The run. Its `state` and `detail` say how it ended."""
    exit_status: int | None
    """Exit status of the command, 128 and its number for a signal; None if the run was ended."""
    output: bytes = field(repr=False)
    """What it wrote to its standard output and standard error, as far as it was kept."""
    left_out: int
    """Number of bytes that are missing in `output`."""
    files: dict[str, bytes] = field(repr=False)
    """Content of each file that it sent back, by its path."""
    errors: dict[str, str]
    """Why other files could not be sent back, by their paths."""

    @property
    def ok(self) -> bool:
        """Whether the command ended with the exit status 0."""
        return self.exit_status == 0


class Follower:
    """Puts the events of a scratch run together.

    Args:
        on_output: called with each new piece of the output, and the number of bytes left out before it.
    """

    def __init__(self, on_output: Callable[[bytes, int], None]) -> None:
        self.output = bytearray()
        self.left_out = 0
        self.artefacts: dict[str, str] = {}  # names by the paths of files
        self.errors: dict[str, str] = {}
        self._on_output = on_output
        self._at = 0

    def on_event(self, event: JobEvent) -> None:
        """Take an event.

        Raises:
            TransportError: it has not the form of such events.
        """
        try:
            if event.kind == "output":
                self._add(
                    int(event.data["at"]), base64.b64decode(event.data["data"], validate=True)
                )
            elif event.kind == "file":
                path, error = str(event.data["path"]), str(event.data["error"])
                if error:
                    self.errors[path] = error
                else:
                    self.artefacts[path] = str(event.data["artefact"])
        except (KeyError, TypeError, ValueError, binascii.Error):
            raise TransportError("the server must send events of a scratch run") from None

    def _add(self, at: int, content: bytes) -> None:
        if at < self._at:
            return  # it came twice
        gap = at - self._at
        self.left_out += gap
        self._at = at + len(content)
        self.output += content
        self._on_output(content, gap)


async def execute(
    core: Core,
    command: Sequence[str],
    options: ScratchOptions,
    on_output: Callable[[bytes, int], None],
) -> ScratchResult:
    """As `Client.exec`. If the caller stops to wait, the run is cancelled."""
    job = await _submit(core, command, options)
    try:
        follower = await follow(core, job.id, on_output)
    except (KeyboardInterrupt, asyncio.CancelledError, GeneratorExit):
        await _cancel(core, job.id)
        raise
    return await result_of(core, job.id, follower)


async def follow(core: Core, id_: str, on_output: Callable[[bytes, int], None]) -> Follower:
    """Wait until a scratch run has ended, from its first event on."""
    follower = Follower(on_output)
    happened: AsyncGenerator[JobEvent, None] = events(
        core, path_of(id_, "/events"), 0, None, f"the scratch run {id_}"
    )
    async with aclosing(happened):
        async for event in happened:
            follower.on_event(event)
    return follower


async def result_of(core: Core, id_: str, follower: Follower) -> ScratchResult:
    """The result of a run that has ended, with its files."""
    job = details_from(await core.get_json(path_of(id_)))
    wanted = job.request.get("fetch", [])
    files = {}
    if follower.artefacts:
        found = await artefacts_at(core, path_of(id_, ARTEFACTS), AsyncJobArtefact)
        named = {one.name: one for one in found}
        for path, name in follower.artefacts.items():
            if not is_within(path, wanted):
                raise TransportError(
                    f"the server must send files that were asked for, got {path!r:.80}"
                )
            if name in named:  # else somebody has deleted it
                files[path] = await named[name].read()
    return ScratchResult(
        job=job,
        exit_status=job.exit_status,
        output=bytes(follower.output),
        left_out=follower.left_out,
        files=files,
        errors=follower.errors,
    )


def is_within(path: str, wanted: Sequence[str]) -> bool:
    """Whether a path is one of those that were asked for or below it, and leads nowhere else."""
    parts = path.split("/")
    plain = (
        all(part not in ("", ".", "..") for part in parts) and "\\" not in path and "\0" not in path
    )
    return plain and any(path == one or path.startswith(f"{one}/") for one in wanted)


async def _submit(core: Core, command: Sequence[str], options: ScratchOptions) -> SubmittedJob:
    if isinstance(command, str) or not command:
        raise InvalidInput(
            "command must be a program and its arguments, such as ['python', 'check.py'], got "
            f"{command!r:.80}",
            field="command",
        )
    sent = options.get("send")
    contents = sent if isinstance(sent, Mapping) else _read(sent)
    hashes = await send_files(core, contents) if contents else {}
    others: dict[str, Any] = {name: value for name, value in options.items() if name != "send"}
    body = {**others, "command": [*command], "files": hashes, "fetch": [*options.get("fetch", ())]}
    headers = {"Idempotency-Key": new_id()}
    payload = await core.request_json("POST", wire.SCRATCH_PATH, given(body), headers, CREATED)
    return parse(SubmittedJob, payload, "a scratch run")


def _read(folder: str | os.PathLike[str] | None) -> dict[str, bytes]:
    """The files of a folder or a tarball. A folder may be empty."""
    if folder is None:
        return {}
    path = Path(folder)
    if path.is_dir() and not any(path.iterdir()):
        return {}
    return read_tree(path)


async def _cancel(core: Core, id_: str) -> None:
    """Cancel a run, if the server can still be reached."""
    try:
        await core.request_json("POST", path_of(id_, "/cancel"))
    except WarpcallError:
        return
