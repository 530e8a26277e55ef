"""Implementations in the SDK: upload your own code for benchmark jobs, list, read and remove it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any
from urllib.parse import quote, urlencode

from warpcall import wire
from warpcall._blocking import blocking
from warpcall._core import ClientPart
from warpcall._jobs.client import CREATED, given
from warpcall._jobs.names import path_of
from warpcall._jobs.parse import parse
from warpcall._jobs.source import Code, send_source, source_of
from warpcall._jobs.verified import verified_members
from warpcall.implementations import (
    Environment,
    ImplementationDetails,
    ImplementationList,
    Language,
    UploadedImplementation,
)

PATH = wire.IMPLEMENTATIONS_PATH
EXAMPLE = "ann/my_permute"


class AsyncImplementations(ClientPart):
    """`Implementations` for `AsyncClient`; its methods are awaited."""

    async def add(
        self,
        op: str,
        code: Code,
        *,
        function: str | None = None,
        name: str | None = None,
        private: bool | None = None,
        verified: bool = False,
        language: Language | None = None,
        launches: Mapping[str, Any] | None = None,
    ) -> UploadedImplementation:
        """Upload an implementation of an op, as the latest version of its name.

        Source that was uploaded before is not stored again, and becomes the latest version.

        The server imports the source as a module, in a sandbox, and calls the function with the
        inputs and parameters of the op as keyword arguments. Keep what only your own machine
        should do under `if __name__ == "__main__":`.

        Args:
            op: name of the op that it computes, "user/name" of a problem.
            code: path of a file in Python or CUDA C++ (.cu); or of a folder or a tarball with several
                files; or the source itself, a text of several lines; or a function that is defined at the top level of a file, which is uploaded
                whole, as it is on the disk now. Of a function in a notebook what it uses of its cell
                is uploaded, with the imports of other cells.
            function: name of the function in the source. None means the op's name, with `_` for
                `-`, or the function that was given. In a folder or a tarball it may be
                "module.function"; without a module it is in the package itself, in the module with the
                op's name, or in the only one.
            name: 1 to 48 letters, digits, `_`, `.` and `-`. Jobs call it "user/name". None means
                the name of the file without its ending, if no `function` is named and it can be a
                name, and otherwise the name of the function.
            private: whether only you and administrators may read and time it. None means as the
                latest version of the name; the first one is not private.
            verified: whether only its compiled kernels shall be timed, launched by the server's own
                code: docs/verified-kernels.md. CUDA C++ always is verified.
            language: "python" or "cuda"; None means that of the file.
            launches: declaration of what a call launches. None means what the decorator
                `warpcall.launches` or a comment in CUDA C++ declares, or else what a call of the
                function launches.

        Raises:
            InvalidInput: the source cannot be read, imported or compiled, or has no such function;
                the message names the line. Or CUDA C++ declares no launches.
            TooLarge: the source, or its files together, exceed a limit.
            Forbidden: the server takes no uploads, or your key's role does not allow them.
            OSError: the file cannot be read.
        """
        source = source_of(code, function=function, op=op)
        body = {
            "op": op,
            **await send_source(self._core, source),
            "name": name or (source.name if function is None else None),
            "private": private,
            **verified_members(source, verified, language, launches),
        }
        payload = await self._core.request_json("POST", PATH, given(body), accepted=CREATED)
        return parse(UploadedImplementation, payload, "an uploaded implementation")

    async def list(
        self,
        *,
        op: str | None = None,
        user: str | None = None,
        before: str | None = None,
        limit: int | None = None,
    ) -> ImplementationList:
        """The server's implementations, and the latest version of each upload that you may read.

        Args:
            op, user: list only those of this op or user; None means any.
            before: `next` of the previous page.
            limit: on the number of uploads; None means the server's default.
        """
        wanted = given({"op": op, "user": user, "before": before, "limit": limit})
        payload = await self._core.get_json(f"{PATH}?{urlencode(wanted)}")
        return parse(ImplementationList, payload, "a list of implementations")

    async def get(self, name: str, version: str | None = None) -> ImplementationDetails:
        """An uploaded implementation with its source and its versions.

        Args:
            name: "user/name", or "user/name@version".
            version: at least 8 hex digits of it. None means the latest version.

        Raises:
            NotFound: there is none, or it is private to another user.
        """
        payload = await self._core.get_json(path_of(PATH, name, version, EXAMPLE))
        return parse(ImplementationDetails, payload, "an implementation")

    async def read_file(self, name: str, path: str, version: str | None = None) -> bytes:
        """The content of one file of an upload of several files.

        Args:
            name: "user/name", or "user/name@version".
            path: as `get` lists it.
            version: at least 8 hex digits of it. None means the latest version.

        Raises:
            NotFound: there is none, or it is private to another user.
        """
        where, _, query = path_of(PATH, name, version, EXAMPLE).partition("?")
        return await self._core.get_bytes(
            f"{where}/files/{quote(path)}" + (f"?{query}" if query else "")
        )

    async def remove(self, name: str, version: str | None = None) -> None:
        """Delete an uploaded implementation of yours. What jobs have measured is kept.

        Args:
            name: "user/name" or "user/name@version".
            version: at least 8 hex digits of the version to delete. None means all versions.

        Raises:
            NotFound: there is none, or it is private to another user.
            Forbidden: it belongs to another user.
        """
        await self._core.delete_at(path_of(PATH, name, version, EXAMPLE))

    async def environment(self) -> Environment:
        """What uploaded source may use: versions, tools, packages, and limits."""
        payload = await self._core.get_json(f"{PATH}/environment")
        return parse(Environment, payload, "an environment")


class Implementations(ClientPart):
    """What benchmark jobs can time: the server's own implementations, and code that users upload.

    mine = gpu.implementations.add("permute", "my_permute.py")
    job = gpu.jobs.submit("permute", implementations=["warpcall", mine.name], cases=[...])
    """

    add = blocking(AsyncImplementations.add)
    list = blocking(AsyncImplementations.list)
    get = blocking(AsyncImplementations.get)
    read_file = blocking(AsyncImplementations.read_file)
    remove = blocking(AsyncImplementations.remove)
    environment = blocking(AsyncImplementations.environment)
