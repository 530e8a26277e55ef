"""Problems in the SDK: upload ops of your own for benchmark jobs, list, read and remove them."""

from __future__ import annotations

from urllib.parse import urlencode

from warpcall import wire
from warpcall._blocking import blocking
from warpcall._core import ClientPart
from warpcall._jobs.client import CREATED, given
from warpcall._jobs.names import path_of
from warpcall._jobs.parse import parse
from warpcall._jobs.source import Code, source_of
from warpcall.problems import ProblemDetails, ProblemList, UploadedProblem

PATH = wire.PROBLEMS_PATH
EXAMPLE = "ann/row-norm"


class AsyncProblems(ClientPart):
    """`Problems` for `AsyncClient`; its methods are awaited."""

    async def add(
        self, code: Code, *, name: str | None = None, private: bool | None = None
    ) -> UploadedProblem:
        """Upload a problem, as the latest version of its name.

        The source declares `PROBLEM = Problem(...)`, of `warpcall_kernels`. Source that was
        uploaded before is not stored again, and becomes the latest version. The server imports the
        source in a sandbox, and runs its functions on tensors without memory.

        Args:
            code: path of a Python file; or the source itself, a text of several lines; or a
                function, whose whole file is uploaded, or what `PROBLEM` uses of its cell in a
                notebook, as for `Implementations.add`.
            name: 1 to 48 letters, digits, `_`, `.` and `-`. Jobs call it "user/name". None means
                the name of the reference function, with `-` for `_`.
            private: whether only you and administrators may read and benchmark it. None means as
                the latest version of the name; the first one is not private.

        Raises:
            InvalidInput: the source cannot be read or imported, or what it declares cannot be
                used; the message names the line.
            TooLarge: the source exceeds a limit.
            Forbidden: the server takes no uploads, or your key's role does not allow them.
            OSError: the file cannot be read.
        """
        body = given({"source": source_of(code, "PROBLEM").text, "name": name, "private": private})
        payload = await self._core.request_json("POST", PATH, body, accepted=CREATED)
        return parse(UploadedProblem, payload, "an uploaded problem")

    async def list(
        self, *, user: str | None = None, before: str | None = None, limit: int | None = None
    ) -> ProblemList:
        """The latest version of each problem that you may read.

        Args:
            user: list only those of this user; None means any.
            before: `next` of the previous page.
            limit: on the number of problems; None means the server's default.
        """
        wanted = given({"user": user, "before": before, "limit": limit})
        payload = await self._core.get_json(f"{PATH}?{urlencode(wanted)}")
        return parse(ProblemList, payload, "a list of problems")

    async def get(self, name: str, version: str | None = None) -> ProblemDetails:
        """A problem with its source, its declaration and its versions.

        Args:
            name: "user/name", or "user/name@version".
            version: at least 8 hex digits of it. None means the latest version.

        Raises:
            NotFound: there is none, or it is private to another user.
        """
        payload = await self._core.get_json(path_of(PATH, name, version, EXAMPLE))
        return parse(ProblemDetails, payload, "a problem")

    async def remove(self, name: str, version: str | None = None) -> None:
        """Delete a problem of yours. What jobs have measured and its implementations are kept.

        Args:
            name: "user/name" or "user/name@version".
            version: at least 8 hex digits of the version to delete. None means all versions.

        Raises:
            NotFound: there is none, or it is private to another user.
            Forbidden: it belongs to another user.
        """
        await self._core.delete_at(path_of(PATH, name, version, EXAMPLE))


class Problems(ClientPart):
    """Ops that users declare themselves. Jobs measure them like the ops of the server.

    mine = gpu.problems.add("row_norm.py")
    job = gpu.jobs.submit(mine.name, sweep={"sizes": {"rows": [4096], "columns": [1000, 1024]}})
    """

    add = blocking(AsyncProblems.add)
    list = blocking(AsyncProblems.list)
    get = blocking(AsyncProblems.get)
    remove = blocking(AsyncProblems.remove)
