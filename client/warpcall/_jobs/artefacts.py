"""Artefacts of a job in the SDK: list, download and delete the files that belong to it."""

from __future__ import annotations

import asyncio
import hashlib
import os
import re
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar
from urllib.parse import quote

from warpcall._blocking import blocking
from warpcall._core import Core
from warpcall._extras.files import replacing
from warpcall._extras.tables import Listed
from warpcall._jobs.handles import take_fields
from warpcall._jobs.parse import parse
from warpcall._nodes.targets import HOME
from warpcall.artefacts import Artefact, ArtefactList
from warpcall.errors import TransportError

# Columns of the list in a notebook.
LISTED = ("name", "kind", "position", "implementation", "nbytes", "expires_at", "error")
NODE = re.compile(r"[0-9a-f]{16}")
Target = str | os.PathLike[str]


class _ArtefactHandle(Artefact):
    """An artefact on a server.

    Args:
        path: URL path of the list that it is in.
    """

    def __init__(self, core: Core, path: str, info: Artefact) -> None:
        take_fields(self, Artefact, info)
        self.__dict__["info"] = info
        self.__dict__["_core"] = core
        self.__dict__["_path"] = f"{path}/{quote(info.name, safe='')}"

    __eq__ = object.__eq__
    __hash__ = object.__hash__

    if TYPE_CHECKING:
        info: Artefact
        _core: Core
        _path: str


class AsyncJobArtefact(_ArtefactHandle):
    """`JobArtefact` for `AsyncClient`; its methods are awaited."""

    async def read(self) -> bytes:
        """The bytes of the file.

        Raises:
            NotFound: there is no file, as `error` says, or it has expired.
            NodeGone: the server that has it is gone.
        """
        route = self.node if NODE.fullmatch(self.node) else HOME
        content = await self._core.get_bytes(self._path, route)
        if hashlib.sha256(content).hexdigest() != self.sha256:
            raise TransportError(
                f"the file {self.name} must have the SHA-256 {self.sha256}, and what came has another"
            )
        return content

    async def download(self, path: Target) -> Path:
        """As `JobArtefact.download`, awaited."""
        return await asyncio.to_thread(_save, path, await self.read())

    async def delete(self) -> None:
        """Delete it on the server.

        Raises:
            Forbidden: the job belongs to another user, and the caller is no administrator.
        """
        await self._core.delete_at(self._path)


class JobArtefact(_ArtefactHandle):
    """A file that belongs to a job, with the fields of `warpcall.artefacts.Artefact`.

    Attributes:
        info: these fields alone.
    """

    read = blocking(AsyncJobArtefact.read)

    def download(self, path: Target) -> Path:
        """Save the file at `path`, and return the path. It raises as `read`, and OSError.

        An existing file is replaced once the new one is complete.
        """
        return _save(path, self.read())

    delete = blocking(AsyncJobArtefact.delete)


ArtefactT = TypeVar("ArtefactT", bound=_ArtefactHandle)


async def artefacts_at(core: Core, path: str, kind: type[ArtefactT]) -> list[ArtefactT]:
    """The artefacts of the list at a URL path."""
    found = parse(ArtefactList, await core.get_json(path), "a list of artefacts")
    return Listed((kind(core, path, info) for info in found.artefacts), LISTED)


def _save(path: Target, content: bytes) -> Path:
    final = Path(path)
    with replacing(final) as file:
        file.write(content)
    return final
