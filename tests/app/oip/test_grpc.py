"""The protocol over gRPC: calls, their errors, keys, limits, and clients that leave."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import sys
import threading
from collections.abc import Callable, Coroutine, Iterator
from concurrent.futures import Future
from pathlib import Path
from typing import Any, TypeVar
from unittest.mock import Mock

import grpc
import numpy as np
import pytest

from tests.app.harness import App, running_app
from tests.app.oip.conftest import SETTINGS
from tests.app.oip.grpc_client import (
    TIMEOUT_S,
    GrpcClient,
    answered,
    call_of,
    client_of,
    connected,
    grpc_port,
    infer_request,
    with_raw,
)
from tests.oip.lending import Make, path_of
from tests.service.databases import Database
from tests.waiting import until
from warpcall_service.extension import load_settings
from warpcall_service.http.listen import ServerError
from warpcall_service.oip.grpc import inference_pb2 as pb
from warpcall_service.oip.grpc import raw_fields, server
from warpcall_service.oip.grpc.messages import INFER_RESPONSE
from warpcall_service.oip.grpc.methods import METHODS, SERVICE, STREAM
from warpcall_service.oip.grpc.server import serving

X = np.arange(6, dtype=np.float32).reshape(2, 3)
T = TypeVar("T")


@pytest.fixture(scope="module")
def port(app: App) -> Iterator[int]:
    with grpc_port(app.asgi, app.loop, **SETTINGS) as chosen:
        yield chosen


@pytest.fixture(scope="module")
def client(port: int) -> Iterator[GrpcClient]:
    with connected(port) as made:
        yield made


def test_a_call_answers_with_its_id_its_output_and_its_times(client: GrpcClient) -> None:
    data, call = client.with_call("ModelInfer", call_of(X, id="7"))

    answer, raw = answered(data)
    assert (answer.model_name, answer.model_version, answer.id) == ("permute", "1", "7")
    (out,) = answer.outputs
    assert (out.name, out.datatype, [*out.shape]) == ("out", "FP32", [3, 2])
    assert raw == [X.T.tobytes()]
    trailers = dict(call.trailing_metadata())
    assert "kernel" in trailers["server-timing"]
    assert trailers["x-request-id"]


def test_large_tensors_come_and_go_whole(client: GrpcClient) -> None:
    x = np.random.default_rng(1).random((1024, 4099), np.float32)  # more than 16 MiB

    _, raw = answered(client.ask("ModelInfer", call_of(x)))

    assert raw == [x.T.tobytes()]


@pytest.mark.parametrize(
    ("datatype", "member", "dtype", "values"),
    [
        ("BOOL", "bool_contents", np.bool_, [True, False]),
        ("INT8", "int_contents", np.int8, [-128, 127]),
        ("INT16", "int_contents", np.int16, [-5, 1 << 14]),
        ("INT32", "int_contents", np.int32, [-(1 << 31), 7]),
        ("INT64", "int64_contents", np.int64, [-(1 << 63), (1 << 63) - 1]),
        ("UINT8", "uint_contents", np.uint8, [0, 255]),
        ("UINT16", "uint_contents", np.uint16, [0, 65_535]),
        ("UINT32", "uint_contents", np.uint32, [0, (1 << 32) - 1]),
        ("UINT64", "uint64_contents", np.uint64, [0, (1 << 64) - 1]),
        ("FP32", "fp32_contents", np.float32, [-0.0, float("inf")]),
        ("FP64", "fp64_contents", np.float64, [1e300, float("nan")]),
    ],
)
def test_values_may_come_one_by_one(
    client: GrpcClient, datatype: str, member: str, dtype: Any, values: list[Any]
) -> None:
    x = np.array([values], dtype)
    request = infer_request(x, datatype)
    getattr(request.inputs[0].contents, member).extend(values)

    _, raw = answered(client.ask("ModelInfer", request))

    assert raw == [x.T.tobytes()]


def test_an_empty_tensor_needs_no_values(client: GrpcClient) -> None:
    answer, raw = answered(client.ask("ModelInfer", infer_request(np.zeros((0, 3), np.float32))))

    assert [*answer.outputs[0].shape] == [3, 0]
    assert raw == [b""]


def wrong_contents(datatype: str, member: str, *values: Any) -> Any:
    request = infer_request(np.zeros((1, len(values))), datatype)
    getattr(request.inputs[0].contents, member).extend(values)
    return request


def beside_contents() -> bytes:
    return with_raw(wrong_contents("FP32", "fp32_contents", 1.0), b"1234")


def without_value() -> bytes:
    request = infer_request(X)
    request.parameters["dims"].Clear()
    return with_raw(request, X.tobytes())


def output_named(name: str) -> bytes:
    wanted = pb.ModelInferRequest.InferRequestedOutputTensor(name=name)
    return call_of(X, outputs=[wanted])


@pytest.mark.parametrize(
    ("message", "code", "said"),
    [
        (call_of(X, model_name="nope"), "NOT_FOUND", "there is no model 'nope', there are conv"),
        (call_of(X, model_version="2"), "NOT_FOUND", "has the version '1' only, got '2'"),
        (call_of(X, model_name=""), "INVALID_ARGUMENT", "the name of the model must not be empty"),
        (call_of(X, model_name="a/b"), "NOT_FOUND", ""),
        (call_of(X, dims="0,9"), "INVALID_ARGUMENT", "dims must name each of the 2 dims of x"),
        (call_of(X, dims=""), "INVALID_ARGUMENT", "dims"),
        (output_named("y"), "INVALID_ARGUMENT", "permute gives out here, got 'y'"),
        (b"\xff" * 9, "INVALID_ARGUMENT", "must be a ModelInferRequest of protobuf"),
        (b"\x0a\xff", "INVALID_ARGUMENT", "must be a ModelInferRequest of protobuf"),
        (b"\x0a\x02\xff\xff", "INVALID_ARGUMENT", "must be a ModelInferRequest of protobuf"),
        (with_raw(infer_request(X), b"12", b"34"), "INVALID_ARGUMENT", "shared memory: 1, got 2"),
        (with_raw(infer_request(X), b"1234"), "INVALID_ARGUMENT", "x"),
        (beside_contents(), "INVALID_ARGUMENT", "'x' must have no contents beside"),
        (without_value(), "INVALID_ARGUMENT", "the parameter 'dims' must have a value"),
        (
            wrong_contents("FP16", "fp32_contents", 1.0),
            "INVALID_ARGUMENT",
            "'x' must be in raw_input_contents: 'FP16' has no values in contents",
        ),
        (
            wrong_contents("FP32", "int_contents", 1),
            "INVALID_ARGUMENT",
            "FP32 values must be in fp32_contents, 'x' has int_contents",
        ),
        (
            wrong_contents("INT8", "int_contents", 300),
            "INVALID_ARGUMENT",
            "'x' must have values of INT8, one is out of its range",
        ),
        (infer_request(X), "INVALID_ARGUMENT", "x"),
    ],
    ids=itertools.count(),
)
def test_an_error_names_what_is_wrong(
    client: GrpcClient, message: Any, code: str, said: str
) -> None:
    found, text = client.error("ModelInfer", message)

    assert found == code, text
    assert said in text
    assert client.ask("ModelInfer", call_of(X)), "the next request works"


def test_the_server_and_its_models_are_described(client: GrpcClient, app: App) -> None:
    with app.client() as http:
        names = [op["name"] for op in http.post("/v2/repository/index", json={}).json()]
        version = http.get("/v2").json()["version"]
    live = pb.Live.FromString(client.ask("ServerLive"))
    ready = pb.Ready.FromString(client.ask("ServerReady"))
    server = pb.ServerMetadataResponse.FromString(client.ask("ServerMetadata"))
    index = pb.RepositoryIndexResponse.FromString(
        client.ask("RepositoryIndex", pb.RepositoryIndexRequest(ready=True))
    )
    asked = pb.ModelRequest(name="masked-softmax", version="1")
    model = pb.ModelMetadataResponse.FromString(client.ask("ModelMetadata", asked))
    config = pb.ModelConfigResponse.FromString(client.ask("ModelConfig", asked)).config
    can_run = pb.Ready.FromString(client.ask("ModelReady", asked))

    assert live.live
    assert ready.ready
    assert can_run.ready
    assert (server.name, server.version) == ("warpcall", version)
    assert "system_shared_memory" in server.extensions
    assert [one.name for one in index.models] == names
    assert {one.state for one in index.models} == {"READY"}
    assert [one.name for one in model.inputs][:2] == ["x", "mask"]
    assert {*model.inputs[0].shape} == {-1}
    assert [one.optional for one in config.input][:2] == [False, True]
    assert config.input[0].data_type == pb.TYPE_FP32


def test_statistics_count_the_calls_of_a_model(client: GrpcClient) -> None:
    def count(name: str) -> int:
        found = client.ask("ModelStatistics", pb.ModelRequest(name=name))
        stats = pb.ModelStatisticsResponse.FromString(found).model_stats
        counts = {one.name: one.inference_stats.success.count for one in stats}
        return int(counts["permute"])

    before = count("permute")
    client.ask("ModelInfer", call_of(X))

    assert count("permute") == before + 1
    assert count("") == before + 1, "without a name of all models"


@pytest.mark.parametrize("method", ["ModelReady", "ModelMetadata", "ModelConfig"])
def test_what_is_no_model_is_not_described(client: GrpcClient, method: str) -> None:
    assert client.error(method, pb.ModelRequest(name="nope"))[0] == "NOT_FOUND"
    assert client.error(method, pb.ModelRequest())[0] == "INVALID_ARGUMENT"


@pytest.mark.parametrize("method", ["ModelLoad", "CudaSharedMemoryStatus", "TraceSetting"])
def test_what_the_server_does_not_have_is_unimplemented(client: GrpcClient, method: str) -> None:
    assert client.error(method)[0] == "UNIMPLEMENTED"


def test_shared_memory_is_registered_and_used(client: GrpcClient, segment: Make) -> None:
    key = segment(64)
    client.ask("SystemSharedMemoryRegister", pb.Region(name="a", key=key, byte_size=64))
    memory = path_of(key)
    try:
        memory.write_bytes(X.tobytes().ljust(64))
        request = infer_request(X)
        wanted = request.outputs.add(name="out")
        for parameters, offset in ((request.inputs[0].parameters, 0), (wanted.parameters, 32)):
            parameters["shared_memory_region"].string_param = "a"
            parameters["shared_memory_byte_size"].int64_param = 24
            parameters["shared_memory_offset"].int64_param = offset

        answer, raw = answered(client.ask("ModelInfer", request))
        regions = pb.SystemSharedMemoryStatusResponse.FromString(
            client.ask("SystemSharedMemoryStatus")
        ).regions
        one = client.ask("SystemSharedMemoryStatus", pb.RegionRequest(name="a"))

        assert memory.read_bytes()[32:56] == X.T.tobytes()
        assert raw == [b""], "clients count the outputs that are elsewhere, too"
        assert answer.outputs[0].parameters["shared_memory_offset"].int64_param == 32
        assert regions["a"].byte_size == 64
        assert [*pb.SystemSharedMemoryStatusResponse.FromString(one).regions] == ["a"]
        proxied = [("x-forwarded-for", "192.0.2.1")]
        refused = client.error("ModelInfer", request, metadata=proxied)
        assert refused[0] == "PERMISSION_DENIED"
        client.ask("SystemSharedMemoryUnregister", pb.RegionRequest(name="a"))
        assert client.error("ModelInfer", request)[0] == "NOT_FOUND"
    finally:
        client.ask("SystemSharedMemoryUnregister")


def test_large_outputs_go_to_shared_memory_only(
    app: App, segment: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(server, "MAX_TENSOR_BYTES", 1 << 20)
    nbytes = (1 << 20) + 4
    request = infer_request(np.zeros((nbytes // 4, 1), np.float32))
    parameters = request.inputs[0].parameters
    parameters["shared_memory_region"].string_param = "a"
    parameters["shared_memory_byte_size"].int64_param = nbytes
    with client_of(app, **SETTINGS) as client:
        client.ask(
            "SystemSharedMemoryRegister",
            pb.Region(name="a", key=segment(nbytes), byte_size=nbytes),
        )
        try:
            code, text = client.error("ModelInfer", request)
            wanted = request.outputs.add(name="out").parameters
            wanted["shared_memory_region"].string_param = "a"
            wanted["shared_memory_byte_size"].int64_param = nbytes
            _, raw = answered(client.ask("ModelInfer", request))
        finally:
            client.ask("SystemSharedMemoryUnregister")

    assert code == "RESOURCE_EXHAUSTED"
    assert f"at most {1 << 20} bytes of tensors, permute gives {nbytes}" in text
    assert raw == [b""]


def test_each_request_of_a_stream_is_answered_in_its_turn(client: GrpcClient) -> None:
    calls = [call_of(X, id="1"), call_of(X, id="2", dims="0,9"), call_of(X, id="3")]
    stream = client.channel.stream_stream(f"/{SERVICE}/{STREAM}")

    answers = [*stream(iter(calls), timeout=TIMEOUT_S)]

    found = []
    for data in answers:
        rest, inner = raw_fields.take_out(memoryview(data), INFER_RESPONSE)
        error = pb.ModelStreamInferResponse.FromString(rest).error_message
        found.append((error[:4], [answered(bytes(one))[0].id for one in inner]))
    assert found == [("", ["1"]), ("dims", []), ("", ["3"])]


def test_an_answer_that_is_not_read_keeps_the_memory_of_its_call(
    app: App, client: GrpcClient, port: int
) -> None:
    """Else a client could let the server hold as many answers as it likes."""
    x = np.zeros((1 << 23, 1), np.float32)  # 32 MiB

    def used() -> int:
        return int(app.engine.status()[0].arena_used)

    until(lambda: used() == 0)
    with connected(port) as slow:  # on a new connection little is sent ahead of the client's reads
        call = slow.channel.stream_stream(f"/{SERVICE}/ModelInfer")
        answers = call(iter([call_of(x)]), timeout=TIMEOUT_S)  # read when the next one is asked for
        until(lambda: used() >= 2 * x.nbytes)
        for _ in range(20):
            client.ask("ModelInfer", call_of(X))
        while_unread = used()
        found = [answered(one)[1] for one in answers]

    assert while_unread >= 2 * x.nbytes
    assert found == [[x.T.tobytes()]]
    until(lambda: used() == 0)


def test_a_message_beyond_the_limit_is_refused(client: GrpcClient) -> None:
    message = call_of(np.zeros((1, (34 << 20) // 4), np.float32))

    code, text = client.error("ModelInfer", message)

    assert code == "RESOURCE_EXHAUSTED"
    assert "larger than max" in text


def test_a_body_of_the_very_limit_is_taken(client: GrpcClient) -> None:
    x = np.zeros((1 << 23, 1), np.float32)  # 32 MiB

    answer, _ = answered(client.ask("ModelInfer", call_of(x)))

    assert [*answer.outputs[0].shape] == [1, 1 << 23]


def test_a_compressed_message_is_refused(client: GrpcClient) -> None:
    found, _ = client.error("ModelInfer", call_of(X), compression=grpc.Compression.Gzip)

    assert found == "UNIMPLEMENTED"


def test_a_request_without_a_message_is_refused(client: GrpcClient) -> None:
    call = client.channel.stream_unary(f"/{SERVICE}/ModelInfer")

    with pytest.raises(grpc.RpcError) as raised:
        call(iter(()), timeout=TIMEOUT_S)

    assert raised.value.code() is grpc.StatusCode.INVALID_ARGUMENT
    assert "must have a message" in raised.value.details()


def test_keys_are_those_of_http(sqlite: Database) -> None:
    key = sqlite.key("ann")
    settings = {**SETTINGS, "data_dir": Path(sqlite.settings["WARPCALL_DATA_DIR"])}
    with running_app(**settings) as app, client_of(app, **settings) as client:
        assert client.ask("ServerLive")
        assert client.ask("ServerReady")
        for metadata in ([], [("authorization", "Bearer wc_no")]):
            for method in {*METHODS} - {"ServerLive", "ServerReady"}:
                assert client.error(method, metadata=metadata)[0] == "UNAUTHENTICATED"
        client.metadata = [("authorization", f"Bearer {key}")]
        assert client.ask("ModelInfer", call_of(X))


class WaitingApp:
    """An application that notes what it is asked, and answers when it may.

    Attributes:
        asked: headers of the requests.
        read: whether a message was read.
        gone: set when a client has left.
    """

    def __init__(self) -> None:
        self.loop = asyncio.new_event_loop()
        self.asked: list[dict[bytes, bytes]] = []
        self.read = threading.Event()
        self.gone = threading.Event()
        self.may_answer = asyncio.Event()
        self.reads = True
        self._thread = threading.Thread(target=self.loop.run_forever, daemon=True)
        self._thread.start()

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        self.asked.append(dict(scope["headers"]))
        scope["extensions"]["warpcall"].on_gone(self.gone.set)
        if self.reads:
            await scope["extensions"]["warpcall_head"](Mock(), Mock())
            self.read.set()
        await self.may_answer.wait()
        body = b'{"error": "no"}'
        headers = [(b"content-length", b"%d" % len(body))]
        await send({"type": "http.response.start", "status": 401, "headers": headers})
        await send({"type": "http.response.body", "body": body})

    def close(self) -> None:
        self.loop.call_soon_threadsafe(self.loop.stop)
        self._thread.join(TIMEOUT_S)
        self.loop.close()

    def start(self, coroutine: Coroutine[Any, Any, T]) -> Future[T]:
        """Run a coroutine in the loop of the application."""
        return asyncio.run_coroutine_threadsafe(coroutine, self.loop)

    def answer(self) -> None:
        self.loop.call_soon_threadsafe(self.may_answer.set)


@pytest.fixture
def waiting() -> Iterator[WaitingApp]:
    made = WaitingApp()
    yield made
    made.close()


def test_a_stream_has_as_many_requests_as_messages(waiting: WaitingApp) -> None:
    waiting.answer()
    with grpc_port(waiting, waiting.loop) as port, connected(port) as client:
        stream = client.channel.stream_stream(f"/{SERVICE}/{STREAM}")
        answers = [*stream(iter(3 * [call_of(X)]), timeout=TIMEOUT_S)]

    errors = [pb.ModelStreamInferResponse.FromString(one).error_message for one in answers]
    assert errors == ["no", "no", "no"]
    assert len(waiting.asked) == 3


def test_a_request_ends_with_its_client(waiting: WaitingApp) -> None:
    with grpc_port(waiting, waiting.loop) as port, connected(port) as client:
        call = client.channel.unary_unary(f"/{SERVICE}/ModelInfer").future(call_of(X))
        assert waiting.read.wait(TIMEOUT_S)

        call.cancel()

        assert waiting.gone.wait(TIMEOUT_S)
        waiting.answer()


def test_no_message_is_read_of_one_who_is_refused(waiting: WaitingApp) -> None:
    waiting.reads = False
    waiting.answer()
    sent = 0

    def pieces() -> Iterator[bytes]:
        nonlocal sent
        for _ in range(1000):
            sent += 1
            yield b"1" * (1 << 20)

    with grpc_port(waiting, waiting.loop) as port, connected(port) as client:
        call = client.channel.stream_unary(f"/{SERVICE}/ModelInfer")
        with pytest.raises(grpc.RpcError) as raised:
            call(pieces(), timeout=TIMEOUT_S)

    assert raised.value.code() is grpc.StatusCode.UNAUTHENTICATED
    assert sent < 100, "the rest of what it has is not even taken from the network"


@pytest.mark.parametrize("given", [None, "5"])
def test_the_client_s_deadline_is_the_request_s(waiting: WaitingApp, given: str | None) -> None:
    waiting.reads = False
    waiting.answer()
    metadata = [] if given is None else [("x-warpcall-timeout", given)]

    with grpc_port(waiting, waiting.loop) as port, connected(port) as client:
        client.error("ModelInfer", b"1", metadata=metadata)

    seconds = float(waiting.asked[0][b"x-warpcall-timeout"])
    assert seconds == (pytest.approx(TIMEOUT_S, abs=20) if given is None else 5)


@contextlib.contextmanager
def stoppable(app: WaitingApp) -> Iterator[tuple[int, Callable[[], Future[None]]]]:
    """The port of a server, and what begins to stop it, with more time for requests than tests wait."""
    manager = serving(load_settings(devices="cpu", grpc_port=0), app, shared=False)
    url, stop = app.start(manager.__aenter__()).result(TIMEOUT_S)
    try:
        yield int(url.rpartition(":")[2]), lambda: app.start(stop(10 * TIMEOUT_S))
    finally:
        app.start(manager.__aexit__(None, None, None)).result(TIMEOUT_S)


def test_a_request_may_end_while_the_server_stops(waiting: WaitingApp) -> None:
    waiting.reads = False
    with stoppable(waiting) as (port, stop), connected(port) as client:
        call = client.channel.unary_unary(f"/{SERVICE}/ModelInfer").future(b"1")
        until(lambda: bool(waiting.asked))
        stopping = stop()
        waiting.answer()

        with pytest.raises(grpc.RpcError) as raised:
            call.result(TIMEOUT_S)

        assert raised.value.code() is grpc.StatusCode.UNAUTHENTICATED
        stopping.result(TIMEOUT_S)


def test_a_stream_that_waits_for_its_client_ends_when_the_server_stops(waiting: WaitingApp) -> None:
    more = threading.Event()

    def messages() -> Iterator[bytes]:
        yield call_of(X)
        more.wait(TIMEOUT_S)

    waiting.answer()
    with stoppable(waiting) as (port, stop), connected(port) as client:
        answers = client.channel.stream_stream(f"/{SERVICE}/{STREAM}")(messages())
        next(answers)
        stop().result(TIMEOUT_S)

        with pytest.raises(grpc.RpcError) as raised:
            next(answers)
        more.set()

    assert raised.value.code() is grpc.StatusCode.UNAVAILABLE
    assert raised.value.details() == "the server is stopping"


def test_a_port_in_use_stops_the_start(waiting: WaitingApp) -> None:
    with grpc_port(waiting, waiting.loop) as port:
        settings = load_settings(devices="cpu", grpc_port=port)
        manager = serving(settings, waiting, shared=False)

        with pytest.raises(ServerError, match=f"WARPCALL_GRPC_PORT: cannot listen on .*:{port}"):
            waiting.start(manager.__aenter__()).result(TIMEOUT_S)


def test_without_the_package_the_start_names_the_extra(
    waiting: WaitingApp, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "grpc", None)
    monkeypatch.setitem(sys.modules, "grpc.aio", None)

    with (
        pytest.raises(ServerError, match="install the server's extra `grpc`"),
        grpc_port(waiting, waiting.loop),
    ):
        pass
