"""Requests of the protocol over gRPC, with the plain package: bytes in and bytes out."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Iterator, Sequence
from typing import Any

import grpc
import numpy as np
import numpy.typing as npt
import pytest

from tests.app.harness import App
from warpcall_service.extension import load_settings
from warpcall_service.oip.grpc import inference_pb2 as pb
from warpcall_service.oip.grpc import raw_fields
from warpcall_service.oip.grpc.messages import RAW_INPUTS, RAW_OUTPUTS
from warpcall_service.oip.grpc.methods import SERVICE
from warpcall_service.oip.grpc.server import serving

TIMEOUT_S = 60.0


@contextlib.contextmanager
def grpc_port(app: Any, loop: asyncio.AbstractEventLoop, **settings: Any) -> Iterator[int]:
    """Serve gRPC for an ASGI application that runs in `loop`; yields the port."""
    loaded = load_settings(**{"devices": "cpu", **settings, "grpc_port": 0})
    manager = serving(loaded, app, shared=False)
    started = asyncio.run_coroutine_threadsafe(manager.__aenter__(), loop)
    url, _ = started.result(TIMEOUT_S)
    try:
        yield int(url.rpartition(":")[2])
    finally:
        ended = asyncio.run_coroutine_threadsafe(manager.__aexit__(None, None, None), loop)
        ended.result(TIMEOUT_S)


class GrpcClient:
    """A client of one server.

    Args:
        metadata: of every request.
    """

    def __init__(self, channel: grpc.Channel, metadata: Sequence[tuple[str, str]] = ()) -> None:
        self.channel = channel
        self.metadata = list(metadata)

    def ask(self, method: str, message: bytes | Any = b"", **options: Any) -> bytes:
        """The bytes of an answer; raises grpc.RpcError for an error."""
        answer, _ = self.with_call(method, message, **options)
        return answer

    def with_call(self, method: str, message: bytes | Any, **options: Any) -> tuple[bytes, Any]:
        """As `ask`, and the call, which has the metadata after the answer."""
        data = message if isinstance(message, bytes) else message.SerializeToString()
        options = {"timeout": TIMEOUT_S, "metadata": self.metadata, **options}
        call = self.channel.unary_unary(f"/{SERVICE}/{method}")
        found: tuple[bytes, Any] = call.with_call(data, **options)
        return found

    def error(self, method: str, message: bytes | Any = b"", **options: Any) -> tuple[str, str]:
        """The code and the text of an error."""
        with pytest.raises(grpc.RpcError) as raised:
            self.ask(method, message, **options)
        assert "Traceback" not in raised.value.details()
        return raised.value.code().name, raised.value.details()


@contextlib.contextmanager
def connected(port: int, *metadata: tuple[str, str]) -> Iterator[GrpcClient]:
    """A client of a server on this machine."""
    options = [("grpc.max_receive_message_length", -1), ("grpc.max_send_message_length", -1)]
    with grpc.insecure_channel(f"127.0.0.1:{port}", options) as channel:
        yield GrpcClient(channel, metadata)


@contextlib.contextmanager
def client_of(app: App, *metadata: tuple[str, str], **settings: Any) -> Iterator[GrpcClient]:
    """A client of gRPC for the application."""
    with grpc_port(app.asgi, app.loop, **settings) as port, connected(port, *metadata) as client:
        yield client


def infer_request(
    x: npt.NDArray[Any], datatype: str = "FP32", dims: str = "1,0", **members: Any
) -> Any:
    """A call of permute without its values."""
    tensor = pb.ModelInferRequest.InferInputTensor(name="x", datatype=datatype, shape=x.shape)
    members = {"model_name": "permute", "inputs": [tensor], **members}
    request = pb.ModelInferRequest(**members)
    if dims:
        request.parameters["dims"].string_param = dims
    return request


def with_raw(request: Any, *raw: bytes) -> bytes:
    """A request with the bytes of its tensors."""
    pieces = [part for one in raw for part in raw_fields.field(RAW_INPUTS, [one])]
    return b"".join((request.SerializeToString(), *pieces))


def answered(data: bytes) -> tuple[Any, list[bytes]]:
    """A ModelInferResponse, and the bytes of its outputs."""
    rest, raw = raw_fields.take_out(memoryview(data), RAW_OUTPUTS)
    return pb.ModelInferResponse.FromString(rest), [bytes(one) for one in raw]


def call_of(x: npt.NDArray[np.float32], **members: Any) -> bytes:
    """A whole call of permute."""
    return with_raw(infer_request(x, **members), x.tobytes())
