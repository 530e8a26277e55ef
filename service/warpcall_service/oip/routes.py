"""The routes of the Open Inference Protocol: the server, its models, their state, inference."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from fastapi import APIRouter, Request, Response
from fastapi.responses import JSONResponse

from warpcall.errors import InvalidInput, NotFound
from warpcall_service.formats.params import from_json
from warpcall_service.http.direct_routes import DirectRoutes
from warpcall_service.http.openapi_parts import Model
from warpcall_service.http.route_io import body_of
from warpcall_service.lanes.engine import LocalEngine
from warpcall_service.oip.infer import Inference
from warpcall_service.oip.models import VERSION, Models
from warpcall_service.oip.openapi import error_responses, infer_parts
from warpcall_service.oip.statistics import Statistics
from warpcall_service.settings import Settings
from warpcall_service.text import brief

MAX_BYTES = 64 << 10  # of a request's JSON
EXTENSIONS = ("binary_tensor_data", "model_configuration", "parameters", "statistics")


class ServerMetadata(Model):
    """The server, and the extensions of the protocol that it implements."""

    name: str
    version: str
    extensions: list[str]


class TensorMetadata(Model):
    """A tensor of a model. A size of -1 means any size; `parameters` lists all its datatypes."""

    name: str
    datatype: str
    shape: list[int]
    parameters: dict[str, str]


class ModelMetadata(Model):
    """An op as a model."""

    name: str
    versions: list[str]
    platform: str
    inputs: list[TensorMetadata]
    outputs: list[TensorMetadata]
    parameters: dict[str, str]


class ModelState(Model):
    """A model and its state, READY or UNAVAILABLE; `reason` says why it is unavailable."""

    name: str
    version: str
    state: str
    reason: str


class Live(Model):
    """That the server answers."""

    live: bool


class Ready(Model):
    """Whether models can run now."""

    ready: bool


def routes(
    settings: Settings,
    engine: LocalEngine,
    models: Models,
    statistics: Statistics,
    version: str,
    inference: Inference,
    direct: DirectRoutes,
    stopping: Callable[[], bool],
) -> APIRouter:
    """The routes of the protocol, without those about shared memory."""
    router = APIRouter(prefix="/v2", tags=["open inference protocol"])
    not_found = error_responses([NotFound])
    shared = ("system_shared_memory",) if settings.user_max_shared_bytes else ()
    server = {
        "name": "warpcall",
        "version": version,
        "extensions": [*EXTENSIONS, *shared],
    }

    for path, names in (
        ("/models/{name}/infer", ("name",)),
        ("/models/{name}/versions/{version}/infer", ("name", "version")),
    ):
        direct.add(router, "POST", path, inference.run, **infer_parts(*names))

    def ready() -> bool:
        return engine.ready and not stopping()

    @router.get("", response_model=ServerMetadata)
    async def server_metadata() -> Response:
        """Name, version and extensions of this server."""
        return JSONResponse(server)

    @router.get("/health/live", response_model=Live)
    async def live() -> Response:
        """200 while the server runs."""
        return JSONResponse({"live": True})

    @router.get(
        "/health/ready",
        response_model=Ready,
        responses={503: {"model": Ready, "description": "No model can run now"}},
    )
    async def server_ready() -> Response:
        """200 while models can run, 503 while they cannot; /readyz says why."""
        return JSONResponse({"ready": ready()}, 200 if ready() else 503)

    @router.get("/models/stats")  # before a model of any name
    async def all_stats() -> dict[str, Any]:
        """Counts and durations of the inference requests of each model."""
        return {"model_stats": [statistics.of(name) for name in models.ops]}

    @router.get("/models/{name}", response_model=ModelMetadata, responses=not_found)
    @router.get(
        "/models/{name}/versions/{version}", response_model=ModelMetadata, responses=not_found
    )
    async def model_metadata(name: str, version: str | None = None) -> Response:
        """Inputs and outputs of a model."""
        return JSONResponse(models.metadata(models.op(name, version)))

    @router.get("/models/{name}/config", responses=not_found)
    @router.get("/models/{name}/versions/{version}/config", responses=not_found)
    async def model_config(name: str, version: str | None = None) -> dict[str, Any]:
        """Configuration of a model, with the parameters of the op."""
        return models.config(models.op(name, version))

    @router.get(
        "/models/{name}/ready",
        response_model=Ready,
        responses={**not_found, 503: {"model": Ready, "description": "It cannot run now"}},
    )
    @router.get(
        "/models/{name}/versions/{version}/ready",
        response_model=Ready,
        responses={**not_found, 503: {"model": Ready, "description": "It cannot run now"}},
    )
    async def model_ready(name: str, version: str | None = None) -> Response:
        """200 while the model can run, 503 while it cannot."""
        models.op(name, version)
        return JSONResponse({"ready": ready()}, 200 if ready() else 503)

    @router.get("/models/{name}/stats", responses=not_found)
    @router.get("/models/{name}/versions/{version}/stats", responses=not_found)
    async def model_stats(name: str, version: str | None = None) -> dict[str, Any]:
        """Counts and durations of the inference requests of a model."""
        op = models.op(name, version)
        return {"model_stats": [statistics.of(op["name"])]}

    @router.post(
        "/repository/index",
        response_model=list[ModelState],
        responses=error_responses([InvalidInput]),
    )
    async def repository_index(request: Request) -> Response:
        """List all models; with `{"ready": true}` only those that can run now."""
        asked = await json_of(request)
        only_ready = asked.get("ready", False)
        if not isinstance(only_ready, bool):
            raise InvalidInput(f"ready must be true or false, got {brief(only_ready)}")
        state = "READY" if ready() else "UNAVAILABLE"
        reason = "" if ready() else "no lane is ready"
        listed = [
            {"name": name, "version": VERSION, "state": state, "reason": reason}
            for name in models.ops
            if ready() or not only_ready
        ]
        return JSONResponse(listed)

    return router


async def json_of(request: Request) -> dict[str, Any]:
    """The JSON object in a request's body, whatever its Content-Type; empty if there is no body.

    Raises:
        Problem: anything else, or a body that does not come.
    """
    text = await body_of(request, MAX_BYTES, "the body")
    return from_json(text, "the request") if text.strip() else {}
