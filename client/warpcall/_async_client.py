"""AsyncClient: the methods of Client, awaited, over the same core."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from types import TracebackType
from typing import Any, Self

from warpcall._answer import Answer
from warpcall._arrays import Array, ArrayT
from warpcall._client import BaseClient, is_tensor, only_output
from warpcall._config import Config
from warpcall._core import Core
from warpcall._explain.request import explain
from warpcall._extras.arguments import split_arguments
from warpcall._generated.async_ops import AsyncOps
from warpcall._generated.async_stored_ops import AsyncStoredOps
from warpcall._jobs.client import AsyncJobs
from warpcall._jobs.implementations import AsyncImplementations
from warpcall._jobs.problems import AsyncProblems
from warpcall._jobs.regressions import AsyncRegressions
from warpcall._jobs.source import Code
from warpcall._monitors.client import AsyncMonitors
from warpcall._program import AsyncProgram
from warpcall._tensors import AsyncStoredTensor, TensorInput
from warpcall._transport.base import Transport
from warpcall._transport.socket_transport import SocketTransport
from warpcall._transport.waiters import LoopWaiter
from warpcall.compile_reports import GPU, TEXT_NAMES, CompileReport, TextName
from warpcall.devices import Device
from warpcall.health import Health
from warpcall.nodes import NodeList
from warpcall.ops import OpInfo, OpList
from warpcall.users import Me


class AsyncClient(BaseClient, AsyncOps):
    """Calls ops on a Warpcall server from asyncio. It has the methods of Client, awaited.

        async with AsyncClient("http://gpu-box:8000") as gpu:
            y = await gpu.permute(x, dims=(2, 0, 1))

    The backward pass of torch cannot be awaited: `y.sum().backward()` blocks the loop while the
    server computes. `await asyncio.to_thread(y.sum().backward)` does not.
    """

    _stored_type = AsyncStoredTensor
    _blocks = False

    @staticmethod
    def transport_for(config: Config) -> Transport:
        """A transport in the running loop."""
        if config.direct:
            return SocketTransport(config.address, config.authority, LoopWaiter())
        from warpcall._transport.httpcore_transport import AsyncHttpcoreTransport

        return AsyncHttpcoreTransport(config)

    async def call(
        self,
        name: str,
        inputs: Mapping[str, TensorInput[ArrayT] | None],
        params: Mapping[str, object] | None = None,
        *,
        timeout_s: float | None = None,
    ) -> Answer[ArrayT]:
        """Client.call, awaited."""
        return await self._core.call(name, inputs, params or {}, timeout_s=timeout_s)

    async def run(self, name: str, /, **arguments: Any) -> Any:
        """Client.run, awaited."""
        timeout_s = arguments.pop("timeout_s", None)
        split = split_arguments(name, arguments, is_tensor)
        answer = await self.call(name, *split, timeout_s=timeout_s)
        return only_output(answer)

    @property
    def stored(self) -> AsyncStoredCalls:
        """Client.stored; the methods of the result are awaited."""
        return AsyncStoredCalls(self._core)

    async def put(
        self,
        array: ArrayT,
        *,
        id: str | None = None,
        ttl_s: float | None = None,
        device: str | None = None,
        timeout_s: float | None = None,
    ) -> AsyncStoredTensor[ArrayT]:
        """Client.put, awaited."""
        stored: AsyncStoredTensor[ArrayT] = await self._core.put(
            array, id, ttl_s, device, timeout_s
        )
        return stored

    async def tensors(self) -> list[AsyncStoredTensor[Array]]:
        """Client.tensors, awaited."""
        return await self._core.tensors()

    def program(self) -> AsyncProgram:
        """Client.program; the `run` of the result is awaited."""
        return AsyncProgram(self._core)

    @property
    def jobs(self) -> AsyncJobs:
        """Client.jobs; the methods of the result are awaited."""
        return AsyncJobs(self._core)

    @property
    def implementations(self) -> AsyncImplementations:
        """Client.implementations; the methods of the result are awaited."""
        return AsyncImplementations(self._core)

    @property
    def problems(self) -> AsyncProblems:
        """Client.problems; the methods of the result are awaited."""
        return AsyncProblems(self._core)

    @property
    def monitors(self) -> AsyncMonitors:
        """Client.monitors; the methods of the result are awaited."""
        return AsyncMonitors(self._core)

    @property
    def regressions(self) -> AsyncRegressions:
        """Client.regressions; the methods of the result are awaited."""
        return AsyncRegressions(self.jobs)

    async def explain(
        self,
        op: str,
        case: Mapping[str, Any],
        *,
        code: Code | None = None,
        function: str | None = None,
        implementation: str | None = None,
        gpu: str = GPU,
        texts: Collection[TextName] = TEXT_NAMES,
    ) -> CompileReport:
        """Client.explain, awaited."""
        return await explain(self._core, op, case, code, function, implementation, gpu, texts)

    async def ops(self) -> OpList:
        """Client.ops, awaited."""
        return await self._core.ops()

    async def op(self, name: str) -> OpInfo:
        """Client.op, awaited."""
        return await self._core.op(name)

    async def kernels(self) -> list[dict[str, Any]]:
        """Client.kernels, awaited."""
        return await self._core.kernels()

    async def kernel(self, name: str) -> dict[str, Any]:
        """Client.kernel, awaited."""
        return await self._core.kernel(name)

    async def nodes(self) -> NodeList:
        """Client.nodes, awaited."""
        return await self._core.nodes()

    async def health(self) -> Health:
        """Client.health, awaited."""
        return await self._core.health()

    async def devices(self) -> list[Device]:
        """Client.devices, awaited."""
        return await self._core.devices()

    async def me(self) -> Me:
        """Client.me, awaited."""
        return await self._core.me()

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
        timeout_s: float | None = None,
    ) -> Answer[AsyncStoredTensor[ArrayT]]:
        """StoredCalls.call, awaited."""
        return await self._core.call(
            name, inputs, params or {}, store=True, ttl_s=ttl_s, timeout_s=timeout_s
        )
