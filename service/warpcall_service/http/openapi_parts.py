"""Parts of the OpenAPI description that several groups of routes share."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Annotated, Any

from pydantic import AfterValidator, BaseModel, ConfigDict, Field

from warpcall import errors, wire

Schema = dict[str, Any]
REFERENCES = "#/components/schemas/{model}"  # where models are in the description


class Model(BaseModel):
    """The base of the models of requests and responses: values are not converted to other types."""

    model_config = ConfigDict(strict=True)


def _without_nul(text: str) -> str:
    if "\0" in text:
        raise ValueError("must not contain the character NUL (U+0000)")
    return text


# PostgreSQL cannot store the character NUL in a text.
Text = Annotated[str, AfterValidator(_without_nul)]


class Problem(Model):
    """An error response, as RFC 9457 describes it."""

    type: str = Field(description=f"`{errors.TYPE_PREFIX}` and the code of the problem")
    title: str
    status: int
    detail: str = Field(description="what is wrong, what is allowed, and what came")
    field: str = Field(
        default_factory=str, description="the tensor, parameter, header or query item at fault"
    )
    request_id: str = Field(default_factory=str)


BINARY: Schema = {"type": "string", "format": "binary"}
SECONDS: Schema = {"type": "number", "exclusiveMinimum": 0}
CALL_PROBLEMS = (
    errors.OnOtherNode,
    errors.NotFound,
    errors.NodeGone,
    errors.InvalidInput,
    errors.TooLarge,
    errors.UnsupportedMedia,
    errors.Busy,
    errors.KernelFailed,
    errors.Unavailable,
    errors.TimedOut,
)


def ref(model: type[BaseModel]) -> Schema:
    """A reference to a model that `api/openapi.py` adds to the components."""
    return {"$ref": f"#/components/schemas/{model.__name__}"}


def parameter(name: str, description: str, place: str = "header", **schema: Any) -> Schema:
    """A header, or a part of the path, that an operation takes."""
    named = {"name": name, "in": place, "required": place == "path"}
    return {**named, "description": description, "schema": schema or {"type": "string"}}


TIMEOUT = parameter(wire.TIMEOUT_HEADER, "seconds after which the call is `timed-out`", **SECONDS)
REQUEST_ID = parameter(
    "X-Request-Id",
    "the name of the request in the response and in the server's log; generated if absent",
    type="string",
    pattern="^[A-Za-z0-9._-]{1,64}$",
)


def problem_responses(
    kinds: Iterable[type[errors.Problem]],
    model: type[BaseModel] = Problem,
    media_type: str = errors.MEDIA_TYPE,
) -> dict[int | str, Schema]:
    """The responses of such problems, as an operation's `responses`."""
    content = {media_type: {"schema": ref(model)}}
    return {
        str(kind.status): {"description": f"{kind.title} ({kind.code})", "content": content}
        for kind in kinds
    }
