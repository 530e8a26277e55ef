"""The OpenAPI description of the Open Inference Protocol: inference requests, and errors."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Annotated, Any

from pydantic import Field

from warpcall import errors
from warpcall_service.http.openapi_parts import (
    BINARY,
    CALL_PROBLEMS,
    Model,
    Schema,
    parameter,
    problem_responses,
    ref,
)

Parameters = Annotated[dict[str, str | float | bool], Field(default_factory=dict)]
_LENGTH = "Inference-Header-Content-Length"
_LENGTH_TEXT = "bytes of the JSON, if the bytes of tensors follow it"
_JSON = "application/json"
_DESCRIPTION = (
    "Tensors come as JSON, as bytes after the JSON, or in shared memory. For bytes after the JSON "
    f"the header `{_LENGTH}` has the length of the JSON, and each such input has the parameter "
    "`binary_data_size`. The op's parameters are members of `parameters`; a list of integers is a "
    'string such as "1,0", or an input of the datatype INT64.'
)


class InferenceError(Model):
    """An error response of this protocol."""

    error: str = Field(description="what is wrong, what is allowed, and what came")


class InferenceInput(Model):
    """An input of a model."""

    name: str
    shape: list[Annotated[int, Field(ge=0)]]
    datatype: str
    parameters: Parameters
    data: list[Any] = Field(default_factory=list, description="the values, if they come as JSON")


class RequestedOutput(Model):
    """An output that the response is to have."""

    name: str
    parameters: Parameters


class InferenceRequest(Model):
    """The JSON of an inference request."""

    id: str = Field(default_factory=str, description="comes back in the response")
    parameters: Parameters
    inputs: list[InferenceInput]
    outputs: list[RequestedOutput] = Field(default_factory=list, description="empty: all outputs")


class InferenceResponse(Model):
    """The JSON of the response."""

    model_name: str
    model_version: str
    id: str = Field(default_factory=str)
    outputs: list[dict[str, Any]]


def error_responses(kinds: Iterable[type[errors.Problem]]) -> dict[int | str, Schema]:
    """The responses of such problems in this protocol, as an operation's `responses`."""
    return problem_responses(kinds, InferenceError, _JSON)


def infer_parts(*in_path: str) -> dict[str, Any]:
    """What declares a route of inference to FastAPI; `in_path` are the parameters of its path."""
    length = parameter(_LENGTH, _LENGTH_TEXT, type="integer", minimum=0)
    names = [parameter(name, f"the {name} of the model", "path") for name in in_path]
    success = {
        "description": "The outputs",
        "headers": {_LENGTH: {"schema": {"type": "integer"}, "description": _LENGTH_TEXT}},
        "content": _content(ref(InferenceResponse)),
    }
    body = {"required": True, "content": _content(ref(InferenceRequest))}
    kinds = [errors.Forbidden, *CALL_PROBLEMS]
    return {
        "operation_id": "infer_version" if "version" in in_path else "infer",
        "summary": "Run a model",
        "description": _DESCRIPTION,
        "responses": {"200": success, **error_responses(kinds)},
        "openapi_extra": {"parameters": [length, *names], "requestBody": body},
    }


def _content(json: Schema) -> Schema:
    return {_JSON: {"schema": json}, "application/octet-stream": {"schema": BINARY}}
