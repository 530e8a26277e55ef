"""The methods of the service: which request of HTTP each one is, and what its response becomes."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any
from urllib.parse import quote

from google.protobuf.message import Message

from warpcall_service.oip.grpc import inference_pb2 as pb
from warpcall_service.oip.grpc import messages
from warpcall_service.oip.grpc.messages import HttpRequest, from_json, infer_request, parse
from warpcall_service.oip.grpc.raw_fields import Bytes

SERVICE = "inference.GRPCInferenceService"

Answer = Callable[[Mapping[bytes, bytes], bytearray], Sequence[Bytes]]


@dataclass(frozen=True, slots=True)
class Method:
    """One method.

    Attributes:
        request: makes the request of HTTP from the bytes of the message; None if the message has
            nothing in it and need not be read, and `path` is what is asked for.
        answer: makes the message, in pieces, from the headers and the body of the response.
        statuses: of HTTP whose body is an answer; every other one is an error.
    """

    answer: Answer
    request: Callable[[bytes], HttpRequest] | None = None
    path: str = ""
    statuses: tuple[int, ...] = (200,)


def _json(kind: type[Message], member: str = "") -> Answer:
    """The response's JSON as a message of this kind, or as one member of it."""

    def answer(_: Mapping[bytes, bytes], body: bytearray) -> Sequence[Bytes]:
        found = json.loads(body)
        return [from_json(kind, {member: found} if member else found)]

    return answer


def _of_model(what: str) -> Callable[[bytes], HttpRequest]:
    def request(data: bytes) -> HttpRequest:
        asked = parse(pb.ModelRequest, data)
        return HttpRequest("GET", messages.model_path(asked.name, asked.version, what))

    return request


def _statistics(data: bytes) -> HttpRequest:
    asked = parse(pb.ModelRequest, data)
    if not asked.name:
        return HttpRequest("GET", "/v2/models/stats")
    return HttpRequest("GET", messages.model_path(asked.name, asked.version, "/stats"))


def _index(data: bytes) -> HttpRequest:
    asked = parse(pb.RepositoryIndexRequest, data)
    body = json.dumps({"ready": asked.ready}).encode()
    return HttpRequest("POST", "/v2/repository/index", {}, [body])


def _region_path(name: str, what: str) -> str:
    return f"/v2/systemsharedmemory/region/{quote(name, safe='')}/{what}"


def _region_status(data: bytes) -> HttpRequest:
    name = parse(pb.RegionRequest, data).name
    return HttpRequest(
        "GET", _region_path(name, "status") if name else "/v2/systemsharedmemory/status"
    )


def _register(data: bytes) -> HttpRequest:
    asked = parse(pb.Region, data)
    region = {"key": asked.key, "offset": asked.offset, "byte_size": asked.byte_size}
    body = json.dumps(region).encode()
    return HttpRequest("POST", _region_path(asked.name, "register"), {}, [body])


def _unregister(data: bytes) -> HttpRequest:
    name = parse(pb.RegionRequest, data).name
    path = _region_path(name, "unregister") if name else "/v2/systemsharedmemory/unregister"
    return HttpRequest("POST", path)


def _regions(_: Mapping[bytes, bytes], body: bytearray) -> Sequence[Bytes]:
    regions: list[dict[str, Any]] = json.loads(body)
    named = {region["name"]: region for region in regions}
    return [from_json(pb.SystemSharedMemoryStatusResponse, {"regions": named})]


_NOTHING = _json(pb.Nothing)

METHODS: Mapping[str, Method] = {
    "ServerLive": Method(_json(pb.Live), path="/v2/health/live"),
    "ServerReady": Method(_json(pb.Ready), path="/v2/health/ready", statuses=(200, 503)),
    "ServerMetadata": Method(_json(pb.ServerMetadataResponse), path="/v2"),
    "ModelReady": Method(_json(pb.Ready), _of_model("/ready"), statuses=(200, 503)),
    "ModelMetadata": Method(_json(pb.ModelMetadataResponse), _of_model("")),
    "ModelConfig": Method(_json(pb.ModelConfigResponse, "config"), _of_model("/config")),
    "ModelStatistics": Method(_json(pb.ModelStatisticsResponse), _statistics),
    "RepositoryIndex": Method(_json(pb.RepositoryIndexResponse, "models"), _index),
    "SystemSharedMemoryStatus": Method(_regions, _region_status),
    "SystemSharedMemoryRegister": Method(_NOTHING, _register),
    "SystemSharedMemoryUnregister": Method(_NOTHING, _unregister),
    "ModelInfer": Method(messages.infer_response, infer_request),
}
STREAM = "ModelStreamInfer"
