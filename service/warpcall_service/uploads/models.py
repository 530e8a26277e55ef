"""What the implementations API accepts. Its answers are the types of `warpcall.implementations`."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import ConfigDict, Field, StringConstraints

from warpcall_service.http.openapi_parts import Model, Text
from warpcall_service.uploads.database import CURSOR, NAME, VERSION

OpName = Annotated[Text, StringConstraints(min_length=1, max_length=64)]
Function = Annotated[str, StringConstraints(pattern=r"^[A-Za-z_][A-Za-z0-9_]{0,63}$")]
Name = Annotated[str, StringConstraints(pattern=f"^{NAME}$")]
Version = Annotated[str, StringConstraints(pattern=f"^{VERSION}$")]
ListedName = Annotated[Text, StringConstraints(min_length=1, max_length=160)]
Cursor = Annotated[str, StringConstraints(pattern=f"^{CURSOR.pattern}$")]


class UploadRequest(Model):
    """Python source with an implementation of an op.

    `source` is a whole module. Its `function`, by default the one with the op's name and `_` for
    `-`, takes the op's inputs and parameters by name. `name` is the function's by default. If
    `private` is true, only the user and administrators may read and time this version; by default
    it is as private as the version before it.
    """

    model_config = ConfigDict(extra="forbid")

    op: OpName
    source: Annotated[Text, StringConstraints(min_length=1)]
    function: Function | None = None
    name: Name | None = None
    private: bool | None = None


class CheckAnswer(Model):
    """The answer of the process that checks a source. It is not to be trusted."""

    model_config = ConfigDict(extra="forbid")

    doc: str | None = Field(default=None, max_length=1000)
    error: str | None = Field(default=None, max_length=1000)
    field: Literal["source", "function"] = "source"
