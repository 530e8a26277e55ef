"""Client and AsyncClient: the same surface over one core."""

from __future__ import annotations

from collections.abc import Mapping
from types import TracebackType
from typing import Any, ClassVar, Self

from warpcall._answer import Answer
from warpcall._arrays import Array, ArrayT, is_array
from warpcall._blocking import run_now
from warpcall._config import Config, configure
from warpcall._core import Core, split_arguments
from warpcall._generated.async_ops import AsyncOps, AsyncStoredOps
from warpcall._generated.ops import Ops, StoredOps
from warpcall._jobs.client import AsyncJobs, Jobs
from warpcall._program import AsyncProgram, Program
from warpcall._progress import Display
from warpcall._tensors import AsyncStoredTensor, BaseStoredTensor, StoredTensor, TensorInput
from warpcall._transport.base import Transport
from warpcall._transport.socket_transport import SocketTransport
from warpcall._transport.waiters import BlockingWaiter, LoopWaiter
from warpcall.errors import InvalidInput

TIMEOUT_S = 60.0
LONGEST_TIMEOUT_S = 1e6  # 11 days; poll() counts milliseconds in 31 bits
RETRIES = 4


class _Base:
    """What both flavours are made of; Client says what the arguments mean."""

    _stored_type: ClassVar[type[BaseStoredTensor[Any]]]

    def __init__(
        self,
        url: str | None = None,
        *,
        api_key: str | None = None,
        timeout_s: float = TIMEOUT_S,
        retries: int = RETRIES,
        progress: bool | None = None,
    ) -> None:
        if not 0 < timeout_s <= LONGEST_TIMEOUT_S:
            raise InvalidInput(
                f"timeout_s must be above 0 and at most {LONGEST_TIMEOUT_S:.0f}, got {timeout_s}",
                field="timeout_s",
            )
        if retries < 0:
            raise InvalidInput(f"retries must be at least 0, got {retries}", field="retries")
        config = configure(url, api_key)
        transport, display = self._transport(config), Display(progress)
        self._core = Core(config, transport, timeout_s, retries, display, self._stored_type)

    @staticmethod
    def _transport(config: Config) -> Transport:
        raise NotImplementedError

    @property
    def url(self) -> str:
        """The server's address."""
        return self._core.config.url

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.url!r})"


class Client(_Base, Ops):
    """Calls ops on a Warpcall server; blocking, safe to share between threads.

        with Client("http://gpu-box:8000") as gpu:
            y = gpu.permute(x, dims=(2, 0, 1))  # numpy in, numpy out; torch in, torch out

    Args:
        url: the server; by default WARPCALL_URL, then the profile's (`warpcall login` writes it),
            or else http://127.0.0.1:8000. On the server's own machine unix:///path is faster. For https with a certificate of your own, SSL_CERT_FILE
            names the file that holds it.
        api_key: sent as a bearer token; by default WARPCALL_API_KEY, then the profile's if it is for
            this server. Over plain HTTP it goes only to this machine or a private network.
        timeout_s: of a whole call, its retries included.
        retries: further tries after busy, unavailable or a broken connection; calls are pure.
        progress: bars for transfers above 32 MB: yes, no, or (None) if stderr is a terminal.

    Raises:
        InvalidInput: a url, key, timeout or number of retries that cannot be.
    """

    _stored_type = StoredTensor

    @staticmethod
    def _transport(config: Config) -> Transport:
        if config.direct:
            return SocketTransport(config.address, config.authority, BlockingWaiter())
        # Imported here: httpcore takes 50 ms to import.
        from warpcall._transport.httpcore_transport import HttpcoreTransport

        return HttpcoreTransport(config)

    def call(
        self,
        name: str,
        inputs: Mapping[str, TensorInput[ArrayT] | None],
        params: Mapping[str, object] | None = None,
    ) -> Answer[ArrayT]:
        """Run any op and get its outputs by name, with device and timing.

        Raises:
            InvalidInput: what the op cannot take; nothing was computed.
            WarpcallError: everything else that can go wrong; see warpcall.errors.
        """
        return run_now(self._core.call(name, inputs, params or {}))

    def run(self, name: str, /, **arguments: Any) -> Any:
        """Run any op: arrays are its tensors, all else its parameters.

        Returns:
            The output, or with several a dict of them by name.
        """
        answer = self.call(name, *split_arguments(name, arguments, _is_tensor))
        return _only(answer)

    @property
    def stored(self) -> StoredCalls:
        """Ops whose outputs are stored on the device: `y = gpu.stored.permute(x, dims=(1, 0))`."""
        return StoredCalls(self._core)

    def put(
        self,
        array: ArrayT,
        *,
        id: str | None = None,
        ttl_s: float | None = None,
        device: str | None = None,
    ) -> StoredTensor[ArrayT]:
        """Leave an array on the server's device; calls take what this returns in its place.

        Args:
            id: what to call it there; what had this id before is freed. By default a new one.
            ttl_s: seconds after its last use until it goes; by default the server's.
            device: where, such as "cuda:1"; by default the least busy.

        Raises:
            Busy: you, or all together, keep so much that it does not fit at present.
            TooLarge: more than you may keep.
        """
        stored: StoredTensor[ArrayT] = run_now(self._core.put(array, id, ttl_s, device))
        return stored

    def tensors(self) -> list[StoredTensor[Array]]:
        """All that you keep on the server, whichever program put it there; numpy arrays."""
        return run_now(self._core.tensors())

    def program(self) -> Program:
        """An empty program: ops called on it run together, in one request; see Program."""
        return Program(self._core)

    @property
    def jobs(self) -> Jobs:
        """Benchmark jobs: submit, watch, cancel and compare them; see Jobs."""
        return Jobs(self._core)

    def kernels(self) -> list[dict[str, Any]]:
        """The declarations of all ops that the server has."""
        return run_now(self._core.kernels())

    def kernel(self, name: str) -> dict[str, Any]:
        """The declaration of one op: inputs, outputs, parameters."""
        return run_now(self._core.kernel(name))

    def health(self) -> dict[str, Any]:
        """Whether the server is ready, its devices, and if it is not ready, why."""
        return run_now(self._core.health())

    def close(self) -> None:
        """Close the connections, and keep no memory for further answers."""
        run_now(self._core.close())

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        tb: TracebackType | None,
    ) -> None:
        self.close()


class StoredCalls(StoredOps):
    """The ops of a client, whose outputs are stored on the device and returned as stored tensors."""

    def __init__(self, core: Core) -> None:
        self._core = core

    def call(
        self,
        name: str,
        inputs: Mapping[str, TensorInput[ArrayT] | None],
        params: Mapping[str, object] | None = None,
        *,
        ttl_s: float | None = None,
    ) -> Answer[StoredTensor[ArrayT]]:
        """Run any op and get its outputs by name, as stored tensors, with device and timing.

        Args:
            ttl_s: seconds after its last use until an output is deleted; None for the server's
                default.

        Raises:
            InvalidInput: an input or parameter that the op does not take; nothing was computed.
            Busy, TooLarge: the outputs do not fit into the limits on stored tensors.
        """
        return run_now(self._core.call(name, inputs, params or {}, store=True, ttl_s=ttl_s))


class AsyncClient(_Base, AsyncOps):
    """Calls ops on a Warpcall server from asyncio; the surface of Client, awaited.

    async with AsyncClient("http://gpu-box:8000") as gpu:
        y = await gpu.permute(x, dims=(2, 0, 1))
    """

    _stored_type = AsyncStoredTensor

    @staticmethod
    def _transport(config: Config) -> Transport:
        if config.direct:
            return SocketTransport(config.address, config.authority, LoopWaiter())
        from warpcall._transport.httpcore_transport import AsyncHttpcoreTransport

        return AsyncHttpcoreTransport(config)

    async def call(
        self,
        name: str,
        inputs: Mapping[str, TensorInput[ArrayT] | None],
        params: Mapping[str, object] | None = None,
    ) -> Answer[ArrayT]:
        """Client.call, awaited."""
        return await self._core.call(name, inputs, params or {})

    async def run(self, name: str, /, **arguments: Any) -> Any:
        """Client.run, awaited."""
        answer = await self.call(name, *split_arguments(name, arguments, _is_tensor))
        return _only(answer)

    @property
    def stored(self) -> AsyncStoredCalls:
        """Client.stored, whose methods are awaited."""
        return AsyncStoredCalls(self._core)

    async def put(
        self,
        array: ArrayT,
        *,
        id: str | None = None,
        ttl_s: float | None = None,
        device: str | None = None,
    ) -> AsyncStoredTensor[ArrayT]:
        """Client.put, awaited."""
        stored: AsyncStoredTensor[ArrayT] = await self._core.put(array, id, ttl_s, device)
        return stored

    async def tensors(self) -> list[AsyncStoredTensor[Array]]:
        """Client.tensors, awaited."""
        return await self._core.tensors()

    def program(self) -> AsyncProgram:
        """An empty program, whose `run` is awaited."""
        return AsyncProgram(self._core)

    @property
    def jobs(self) -> AsyncJobs:
        """Client.jobs, whose methods are awaited."""
        return AsyncJobs(self._core)

    async def kernels(self) -> list[dict[str, Any]]:
        """Client.kernels, awaited."""
        return await self._core.kernels()

    async def kernel(self, name: str) -> dict[str, Any]:
        """Client.kernel, awaited."""
        return await self._core.kernel(name)

    async def health(self) -> dict[str, Any]:
        """Client.health, awaited."""
        return await self._core.health()

    async def close(self) -> None:
        """Client.close, awaited."""
        await self._core.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        tb: TracebackType | None,
    ) -> None:
        await self.close()


class AsyncStoredCalls(AsyncStoredOps):
    """StoredCalls for AsyncClient; its methods are awaited."""

    def __init__(self, core: Core) -> None:
        self._core = core

    async def call(
        self,
        name: str,
        inputs: Mapping[str, TensorInput[ArrayT] | None],
        params: Mapping[str, object] | None = None,
        *,
        ttl_s: float | None = None,
    ) -> Answer[AsyncStoredTensor[ArrayT]]:
        """StoredCalls.call, awaited."""
        return await self._core.call(name, inputs, params or {}, store=True, ttl_s=ttl_s)


def _is_tensor(value: object) -> bool:
    return is_array(value) or isinstance(value, BaseStoredTensor)


def _only(answer: Answer[Any]) -> Any:
    outputs = answer.outputs
    return next(iter(outputs.values())) if len(outputs) == 1 else outputs
