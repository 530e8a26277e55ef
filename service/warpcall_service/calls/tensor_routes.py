"""The routes of calls, programs and stored tensors."""

from __future__ import annotations

import functools
from collections.abc import Coroutine, Iterable, Mapping
from typing import Any

from fastapi import Response
from fastapi.responses import JSONResponse

from warpcall import wire
from warpcall.errors import NodeGone, NotFound, OnOtherNode
from warpcall_service.calls.openapi import get_parts, op_parts, program_parts, put_parts
from warpcall_service.calls.run import CallRunner
from warpcall_service.calls.tensor_calls import STORED_TENSOR_HEADERS, TensorCalls
from warpcall_service.calls.tensor_registry import TensorRegistry
from warpcall_service.http.caller import CurrentCaller
from warpcall_service.http.direct_routes import DirectRoutes
from warpcall_service.http.exchange import Exchange
from warpcall_service.http.openapi_parts import Model, problem_responses
from warpcall_service.http.router import Router
from warpcall_service.http.watchdog import ClientWatchdog


class TensorModel(Model):
    """A stored tensor. It is deleted at `expires`, which each use of the tensor moves forward."""

    id: str
    dtype: str
    shape: list[int]
    nbytes: int
    device: str
    expires: str


class TensorLimits(Model):
    """What one user may store."""

    bytes: int
    count: int


class TensorList(Model):
    """The caller's stored tensors, their bytes together, and the limits for one user."""

    tensors: list[TensorModel]
    nbytes: int
    limits: TensorLimits


class Deleted(Model):
    """How many tensors were deleted."""

    deleted: int


def calls(
    ops: Iterable[Mapping[str, Any]],
    plain: CallRunner,
    tensor_calls: TensorCalls,
    direct: DirectRoutes,
) -> Router:
    """The calls of each op, and programs of several ops."""
    router = Router()

    def run(exchange: Exchange, watchdog: ClientWatchdog, name: str) -> Coroutine[Any, Any, None]:
        stored = not STORED_TENSOR_HEADERS.isdisjoint(exchange.headers)
        return (tensor_calls if stored else plain).run_op(exchange, watchdog, name)

    for op in ops:
        run_op = functools.partial(run, name=op["name"])
        direct.add(
            router, "POST", f"/v1/kernels/{op['name']}", run_op, tags=["calls"], **op_parts(op)
        )
    # Says which ops there are, if no op has the name in the path.
    direct.add(router, "POST", "/v1/kernels/{name}", run, include_in_schema=False)
    direct.add(
        router,
        "POST",
        wire.PROGRAMS_PATH,
        tensor_calls.run_program,
        tags=["programs"],
        **program_parts(),
    )
    return router


def tensors(registry: TensorRegistry, tensor_calls: TensorCalls, direct: DirectRoutes) -> Router:
    """The caller's stored tensors; nobody sees those of another user."""
    router = Router(prefix=wire.TENSORS_PATH, tags=["tensors"])

    direct.add(router, "PUT", "", tensor_calls.put_tensors, **put_parts(one=False))
    direct.add(router, "PUT", "/{id:path}", tensor_calls.put_tensors, **put_parts(one=True))
    direct.add(router, "GET", "/{id:path}", tensor_calls.get_tensor, **get_parts())

    @router.get("", response_model=TensorList)
    async def list_tensors(caller: CurrentCaller) -> Response:
        """List your stored tensors, oldest first."""
        found = [tensor.to_json() for tensor in registry.all_of(caller.name)]
        nbytes = sum(tensor["nbytes"] for tensor in found)
        limits = registry.limits_of(caller.name)
        return JSONResponse({"tensors": found, "nbytes": nbytes, "limits": limits})

    @router.delete("", response_model=Deleted)
    async def delete_tensors(caller: CurrentCaller) -> Response:
        """Delete all your stored tensors."""
        return JSONResponse({"deleted": registry.delete_all(caller.name)})

    @router.delete(
        "/{id:path}",
        response_model=Deleted,
        responses=problem_responses([OnOtherNode, NotFound, NodeGone]),
    )
    async def delete_tensor(id: str, caller: CurrentCaller) -> Response:
        """Delete one; a call that uses it ends well."""
        await registry.nodes.await_nodes([id])
        registry.delete(caller.name, id)
        return JSONResponse({"deleted": 1})

    return router
