"""The routes about stored tensors that move none of their bytes: list them, delete them."""

from __future__ import annotations

from fastapi import APIRouter, Response
from fastapi.responses import JSONResponse
from pydantic import BaseModel, ConfigDict

from warpcall import wire
from warpcall.errors import NotFound
from warpcall_service.calls.tensor_registry import TensorRegistry
from warpcall_service.http.caller import CurrentCaller
from warpcall_service.http.openapi_parts import problem_responses
from warpcall_service.settings import Settings


class _Model(BaseModel):
    model_config = ConfigDict(strict=True)


class TensorModel(_Model):
    """A tensor that stays on a device; gone after `expires` unless it is used before."""

    id: str
    dtype: str
    shape: list[int]
    nbytes: int
    device: str
    expires: str


class TensorLimits(_Model):
    """What one user may keep."""

    bytes: int
    count: int


class TensorList(_Model):
    """The caller's tensors."""

    tensors: list[TensorModel]
    nbytes: int
    limits: TensorLimits


class Deleted(_Model):
    """How many tensors were deleted."""

    deleted: int


def tensors(settings: Settings, registry: TensorRegistry) -> APIRouter:
    """The caller's tensors; nobody sees another's."""
    router = APIRouter(prefix=wire.TENSORS_PATH, tags=["tensors"])
    limits = {"bytes": int(settings.tensor_user_bytes), "count": settings.tensor_user_count}

    @router.get("", response_model=TensorList)
    async def list_tensors(caller: CurrentCaller) -> Response:
        """What you keep on the devices, in order of coming."""
        found = [tensor.to_json() for tensor in registry.all_of(caller.name)]
        nbytes = sum(tensor["nbytes"] for tensor in found)
        return JSONResponse({"tensors": found, "nbytes": nbytes, "limits": limits})

    @router.delete("", response_model=Deleted)
    async def delete_tensors(caller: CurrentCaller) -> Response:
        """Delete all that you keep."""
        return JSONResponse({"deleted": registry.delete_all(caller.name)})

    @router.delete("/{id}", response_model=Deleted, responses=problem_responses([NotFound]))
    async def delete_tensor(id: str, caller: CurrentCaller) -> Response:
        """Delete one; a call that uses it ends well."""
        registry.delete(caller.name, id)
        return JSONResponse({"deleted": 1})

    return router
