"""What the APIs of implementations and of problems accept.

Their answers are the types of `warpcall.implementations` and of `warpcall.problems`.
"""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import ConfigDict, StringConstraints

from warpcall_bench.runs.messages import Language
from warpcall_bench.uploads.database import CURSOR, VERSION
from warpcall_bench.uploads.new_versions import FUNCTION, NAME
from warpcall_service.http.openapi_parts import Model, Text
from warpcall_service.store.schema import CODE_LENGTH

Function = Annotated[str, StringConstraints(pattern=f"^{FUNCTION}$")]
Name = Annotated[str, StringConstraints(pattern=f"^{NAME}$")]
Version = Annotated[str, StringConstraints(pattern=f"^{VERSION}$")]
# Of an op of the library, or of a problem: then it begins with its user's name.
OpName = Annotated[Text, StringConstraints(min_length=1, max_length=CODE_LENGTH)]
ListedName = Annotated[Text, StringConstraints(min_length=1, max_length=CODE_LENGTH)]
Cursor = Annotated[str, StringConstraints(pattern=f"^{CURSOR.pattern}$")]


class UploadRequest(Model):
    """Source with an implementation of an op.

    `op` is one of the library's, or the name of a problem without a version. `source` is a whole
    module. Its `function`, by default the one with the op's name and `_` for `-`, takes the op's inputs and parameters by name. `name` is the function's by default. If
    `private` is true, only the user and administrators may read and time this version; by default
    it is as private as the version before it.

    Of a `verified` upload only the compiled kernels are timed, and none of the source runs beside
    the clock. Its `launches` declare what a call launches, in at most 16 KiB of JSON; without them a
    call of the function is recorded. The `language` "cuda" is CUDA C++. It needs `verified` and
    `launches`, and `function` then names the implementation only.
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
