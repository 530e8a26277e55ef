"""What the APIs of implementations and of problems accept.

Their answers are the types of `warpcall.implementations` and of `warpcall.problems`.
"""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import ConfigDict, Field, StringConstraints

from warpcall_bench.runs.messages import Language
from warpcall_bench.uploads.database import CURSOR, VERSION
from warpcall_bench.uploads.new_versions import FUNCTION, NAME
from warpcall_bench.uploads.tables import PATH_LENGTH
from warpcall_bench.uploads.trees import SHA256
from warpcall_service.http.openapi_parts import Model, Text
from warpcall_service.store.schema import CODE_LENGTH

MOST_FILES = 1000  # whatever the setting `upload_max_files` says
Function = Annotated[str, StringConstraints(pattern=f"^{FUNCTION}$")]
Name = Annotated[str, StringConstraints(pattern=f"^{NAME}$")]
Version = Annotated[str, StringConstraints(pattern=f"^{VERSION}$")]
# Of an op of the library, or of a problem: then it begins with its user's name.
OpName = Annotated[Text, StringConstraints(min_length=1, max_length=CODE_LENGTH)]
ListedName = Annotated[Text, StringConstraints(min_length=1, max_length=CODE_LENGTH)]
Cursor = Annotated[str, StringConstraints(pattern=f"^{CURSOR.pattern}$")]


class SourceFiles(Model):
    """The other files of a source: `files` has the SHA-256 of each by its path, and `entry` is the path
    of the source among them, such as "kernels/fast.py"."""

    entry: Annotated[str, StringConstraints(max_length=PATH_LENGTH)] | None = None
    files: Annotated[dict[Text, Text], Field(max_length=MOST_FILES)] | None = None


class MissingFilesRequest(Model):
    """The SHA-256 of each file that an upload is to have."""

    model_config = ConfigDict(extra="forbid")

    sha256: Annotated[
        list[Annotated[str, StringConstraints(pattern=f"^{SHA256}$")]],
        Field(max_length=MOST_FILES, fail_fast=True),
    ]


class UploadRequest(SourceFiles):
    """Source with an implementation of an op.

    `op` is one of the library's, or the name of a problem without a version. `source` is a whole
    module. Its `function`, by default the one with the op's name and `_` for `-`, takes the op's inputs and parameters by name. `name` is the function's by default. If
    `private` is true, only the user and administrators may read and time this version; by default
    it is as private as the version before it.

    Of a `verified` upload only the compiled kernels are timed, and none of the source runs beside
    the clock. Its `launches` declare what a call launches, in at most 16 KiB of JSON; without them a
    call of the function is recorded. The `language` "cuda" is CUDA C++. It needs `verified` and
    `launches`, and `function` then names the implementation only.

    An upload of several files has `files`, the SHA-256 of each other file by its path, and `entry`, the path
    of the source among them. Send the files before, with PUT /v1/files/{sha256}.
    """

    model_config = ConfigDict(extra="forbid")

    op: OpName
    source: Annotated[Text, StringConstraints(min_length=1)]
    function: Function | None = None
    name: Name | None = None
    private: bool | None = None
    verified: bool = False
    language: Language = "python"
    launches: dict[str, Any] | None = None


class ProblemUpload(Model):
    """Python source that declares a problem.

    `source` is a whole module, in which `PROBLEM` is a `warpcall_kernels.Problem`. `name` is by
    default that of the reference, with `-` for `_`. `private` is as in UploadRequest.
    """

    model_config = ConfigDict(extra="forbid")

    source: Annotated[Text, StringConstraints(min_length=1)]
    name: Name | None = None
    private: bool | None = None
