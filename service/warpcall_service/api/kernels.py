"""The list of kernels: every op that the server has, with its inputs, parameters and limits."""

from __future__ import annotations

from typing import Any
from urllib.parse import quote

from fastapi import Request, Response
from fastapi.responses import JSONResponse, RedirectResponse
from pydantic import Field

from warpcall import wire
from warpcall.errors import NotFound
from warpcall_service.http.openapi_parts import Model, problem_responses
from warpcall_service.http.router import Router
from warpcall_service.lanes.engine import LocalEngine


class InputModel(Model):
    """An input tensor of an op. `dtypes` are names of safetensors, such as F32."""

    name: str
    dtypes: list[str]
    shape: str
    doc: str
    optional: bool


class OutputModel(Model):
    """An output tensor of an op.

    `when` says on which condition the op has this output; it is empty if it always has it. A
    `dtype` of null means the dtype of the inputs, or the one that they promote to.
    """

    name: str
    dtype: str | None
    shape: str
    doc: str
    when: str


class ParamModel(Model):
    """A parameter of an op. `schema` is its JSON Schema."""

    name: str
    kind: str
    doc: str
    default: bool | int | float | list[int] | None
    required: bool
    json_schema: dict[str, Any] = Field(alias="schema")


class SizeModel(Model):
    """A size of the inputs that a benchmark chooses.

    It is a number of at least `minimum`, or one of `choices` if there are any.
    """

    name: str
    doc: str
    default: int | str
    minimum: int
    choices: list[str]


class KernelModel(Model):
    """An op, as its file declares it. `source_sha256` is the hash of that file."""

    name: str
    summary: str
    description: str
    equivalent: str
    limits: str
    inputs: list[InputModel]
    outputs: list[OutputModel]
    params: list[ParamModel]
    sizes: list[SizeModel]
    source_sha256: str


class KernelList(Model):
    """All ops of this server."""

    kernels: list[KernelModel]


def kernels(engine: LocalEngine) -> Router:
    """The routes that list the ops."""
    router = Router(prefix="/v1/kernels", tags=["kernels"])
    declarations = {op["name"]: op for op in engine.catalog}

    @router.get("", response_model=KernelList)
    async def list_kernels() -> Response:
        """All ops: inputs, outputs, parameters, limits, and an equivalent torch expression."""
        return JSONResponse({"kernels": engine.catalog})

    @router.get("/{name}", response_model=KernelModel, responses=problem_responses([NotFound]))
    async def get_kernel(name: str) -> Response:
        """One op: inputs, outputs, parameters, limits, and an equivalent torch expression."""
        found = declarations.get(wire.op_name(name))
        if found is None:
            raise NotFound(wire.no_such_op(name, declarations), field="name")
        return JSONResponse(found)

    return router


def ops() -> Router:
    """Redirects from /v1/ops, which people try first, to the routes of the same ops."""
    router = Router(prefix="/v1/ops", include_in_schema=False)

    @router.api_route("", methods=["GET", "POST"])
    @router.api_route("/{name}", methods=["GET", "POST"])
    async def go_to_kernels(request: Request, name: str = "") -> Response:
        # A relative address is right below any path prefix of a proxy.
        target = f"../kernels/{quote(name, safe='')}" if name else "kernels"
        query = request.url.query
        return RedirectResponse(f"{target}?{query}" if query else target, 308)

    return router
