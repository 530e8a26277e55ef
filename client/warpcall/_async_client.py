"""AsyncClient: the methods of Client, awaited, over the same core."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Collection, Iterable, Mapping, Sequence
from types import TracebackType
from typing import Any, Self, Unpack

from warpcall._answer import Answer
from warpcall._arrays import Array, ArrayT, is_array
from warpcall._base_client import BaseClient
from warpcall._config import Config
from warpcall._core import Core
from warpcall._explain.request import explain
from warpcall._extras.arguments import split_arguments
from warpcall._extras.suggestions import Suggests
from warpcall._generated.async_ops import AsyncOps
from warpcall._generated.async_stored_ops import AsyncStoredOps
from warpcall._jobs import races
from warpcall._jobs.client import AsyncJobs
from warpcall._jobs.evaluations import Candidate, EvaluationOptions, evaluate, evaluate_many
from warpcall._jobs.implementations import AsyncImplementations
from warpcall._jobs.monitors import AsyncMonitors
from warpcall._jobs.problems import AsyncProblems
from warpcall._jobs.regressions import AsyncRegressions
from warpcall._jobs.scratch import ScratchOptions, ScratchResult, execute
from warpcall._jobs.source import Code
from warpcall._program import AsyncProgram
from warpcall._tensors import AsyncStoredTensor, BaseStoredTensor, TensorInput
from warpcall._transport.base import Transport
from warpcall._transport.socket_transport import SocketTransport
from warpcall._transport.waiters import LoopWaiter
from warpcall._verify.request import verify
from warpcall.compile_reports import GPU, TEXT_NAMES, CompileReport, TextName
from warpcall.devices import Device
from warpcall.evaluations import Evaluation
from warpcall.health import Health
from warpcall.implementations import Language
from warpcall.jobs.request import JobOptions, JobRequest
from warpcall.nodes import NodeList
from warpcall.ops import OpInfo, OpList
from warpcall.races import Race
from warpcall.users import Me, UserQuotas
from warpcall.verifications import Verification


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
        """Run any op and get its outputs by name, with the device and the timing.

        Args:
            timeout_s: seconds that this call may take, its retries included; None means the
                client's.
            name: the op, such as "masked-softmax".
            inputs: numpy arrays, torch tensors or stored tensors, by the names of the op's inputs.
                All arrays of a call must be of one library, and on one torch device.
            params: the op's parameters by name. None, there and in `inputs`, means absent.

        Raises:
            InvalidInput: the op does not take an input or a parameter; nothing was computed.
            WarpcallError: any other failure; see warpcall.errors.
        """
        return await self._core.call(name, inputs, params or {}, timeout_s=timeout_s)

    async def run(self, name: str, /, **arguments: Any) -> Any:
        """Run any op, with its inputs and parameters as keyword arguments.

        Arrays, torch tensors and stored tensors are inputs; all other values are parameters, but
        for `timeout_s`, the seconds that this call may take.

        Returns:
            The output, or a dict of the outputs by name if there are several.

        Raises:
            InvalidInput: no argument is an array, or the op does not take one of them.
        """
        # Not a parameter: a caller who passes a dict of arrays would get an error of types.
        timeout_s = arguments.pop("timeout_s", None)
        split = split_arguments(name, arguments, is_tensor)
        answer = await self._core.call(name, *split, timeout_s=timeout_s)
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

    async def race(
        self,
        op: str | JobRequest,
        candidates: Sequence[Code],
        *,
        over: Mapping[str, Sequence[Any]] | None = None,
        function: str | None = None,
        verified: bool = False,
        timeout_s: float | None = None,
        **options: Unpack[JobOptions],
    ) -> Race:
        """Find the fastest of several implementations, surely and with little device time.

            race = gpu.race("permute", ["a.py", "b.py"], cases=[case])
            print(race.sentence)
            tuned = gpu.race("permute", ["a.py"], over={"BLOCK": [64, 128]}, cases=[case])
            print(tuned.configuration)

        The candidates are uploaded, and race in one job: whoever is surely slower than the fastest is
        timed no more. One that the server refuses is in `refused`, and does not race.

        Args:
            op: name of the op or of a problem, or a whole request.
            candidates: what `implementations.add` takes: paths, texts or functions.
            over: of one candidate: the values of constants that its module assigns at its top level.
                Each combination of them races.
            function: name of the function in all candidates. None means the default.
            verified: whether only the compiled kernels of the candidates shall be timed, as for
                `implementations.add`.
            timeout_s: seconds to wait for the job. None means any time.
            options: as of `jobs.submit`. `implementations` race, too. The precision is "quick" by
                default; it bounds the time of the race.

        Raises:
            InvalidInput: there are less than 2 or more than 64 implementations, a case is wrong, or
                `over` does not fit the source.
            JobFailed: the job did not succeed.
            OSError: a file cannot be read.
        """
        options.setdefault("precision", getattr(op, "precision", None) or "quick")
        name = op if isinstance(op, str) else op.op
        entrants = races.entrants_of(candidates, over, function, name, verified=verified)
        return await races.outcome(await races.race(self._core, op, entrants, **options), timeout_s)

    async def evaluate(
        self,
        op: str,
        candidate: Candidate,
        *,
        timeout_s: float | None = None,
        **options: Unpack[EvaluationOptions],
    ) -> Evaluation:
        """Evaluate one candidate, and wait for the verdict: whether it compiles, is right, and how fast
        it is. A source that cannot be imported, is wrong or crashes is a verdict, and no error.

        Args:
            op: name of the op or the problem.
            candidate: a file, a source or a function, as for `implementations.add`; or a mapping with
                the `source`, its `function` and `name`, or with an `implementation` that is stored.
            timeout_s: seconds to wait; None means until the end.
            options: `cases` or `sweep`, and others; see docs/for-programs.md.

        Raises:
            InvalidInput: the request cannot be measured; `field` names the reason.
            TimedOut: the verdict was not known in time. The job goes on.
        """
        return await evaluate(self._core, op, candidate, options, timeout_s)

    async def exec(
        self,
        command: Sequence[str],
        *,
        on_output: Callable[[bytes, int], None] = lambda content, left_out: None,
        **options: Unpack[ScratchOptions],
    ) -> ScratchResult:
        """Run a command on one of the server's devices, and wait until it has ended. It is a scratch run: it
        waits in the queue of jobs, has the whole device for a bounded time, runs in the server's sandbox,
        and is not judged. A command that fails is a result, and no error.

        If the wait is interrupted (Ctrl-C, or a task that is cancelled), the run is cancelled.

        Args:
            command: a program and its arguments, such as ["python", "check.py"]. No shell reads them.
            on_output: called with each piece of what the command writes, as it arrives, and the number of
                bytes that were left out before it.
            options: `send`, a folder, a tarball, or the content of each file by its path, for the folder in
                which the command starts; `fetch`, paths of files and folders there that are sent back;
                `limit_s`, 60 by default; `name`, which lists show; `private`, false to let all users read the
                run; `gpu` and `node`, as in `JobRequest`.

        Raises:
            InvalidInput, TooLarge: the command or a file is refused; `field` names the reason.
            Forbidden: the server allows no scratch runs, or the caller has not the role `scratch`.
            Busy: the user has too many jobs that are not finished.
            OSError: the folder cannot be read.
        """
        return await execute(self._core, command, options, on_output)

    def evaluate_many(
        self,
        op: str,
        candidates: Iterable[Candidate],
        **options: Unpack[EvaluationOptions],
    ) -> AsyncGenerator[Evaluation, None]:
        """Evaluate many candidates, and iterate over their verdicts in the order in which they are known.
        `index` of a verdict says of which candidate it is.

        If the iterator is closed before its end, jobs that have not begun are cancelled.

        Args:
            op, options: as for `evaluate`.
            candidates: each as for `evaluate`. More than 256 are sent one batch after the other.

        Raises:
            InvalidInput: the request cannot be measured; `field` names the reason.
        """
        return evaluate_many(self._core, op, candidates, options)

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
        """What the Triton kernels of an implementation need on a GPU; the server needs none for it.

        Args:
            op: name of the op or the problem.
            case: one case, as in a job: `{"shape": [4096, 4096], "dtype": "BF16", "params": {...}}`.
            code: a file, a source or a function, as for `implementations.add`; it is not stored.
            function: name of the function in `code`. None means the op's name, with `_` for `-`.
            implementation: "user/name" or "user/name@version"; None, without `code`: the server's.
            gpu: the architecture, such as "sm_80" or "sm_90", or a GPU, such as "h100" or "RTX 4090".
            texts: of "ttir", "ttgir", "ptx" and "sass"; each has up to 256 KiB for a kernel.

        Raises:
            InvalidInput: the request is wrong, or the code in the line that is named.
        """
        return await explain(self._core, op, case, code, function, implementation, gpu, texts)

    async def verify(
        self,
        op: str,
        cases: Mapping[str, Any] | Sequence[Mapping[str, Any]],
        code: Code,
        *,
        function: str | None = None,
        language: Language | None = None,
        launches: Mapping[str, Any] | None = None,
        gpu: str = GPU,
    ) -> Verification:
        """Whether kernels can be timed as verified ones, and what a call of them does.

        The server compiles the kernels and needs no GPU for it. Nothing is stored.

        Args:
            op: name of the op or the problem.
            cases: one case, or at most 8, as in a job: `{"shape": [4096, 4096], "dtype": "BF16",
                "params": {...}}`.
            code, function, language, launches: as for `implementations.add`.
            gpu: the architecture, such as "sm_90", or a GPU, such as "h100".

        Raises:
            InvalidInput: the request is wrong, or the code in the line that is named. A case that
                cannot be verified raises nothing: its `reason` says why.
        """
        return await verify(self._core, op, cases, code, function, language, launches, gpu)

    async def ops(self) -> OpList:
        """All ops of the server, also those that this client has no method for. See warpcall.ops."""
        return await self._core.ops()

    async def op(self, name: str) -> OpInfo:
        """One op of the server: its inputs, outputs and parameters.

        Raises:
            NotFound: the server has no such op.
        """
        return await self._core.op(name)

    async def kernels(self) -> list[dict[str, Any]]:
        """What `ops` returns, as the JSON of the server."""
        return await self._core.kernels()

    async def kernel(self, name: str) -> dict[str, Any]:
        """What `op` returns, as the JSON of the server."""
        return await self._core.kernel(name)

    async def nodes(self) -> NodeList:
        """The servers that share a database with this one, with their states and devices.

        A server that uses a SQLite database lists only itself.
        """
        return await self._core.nodes()

    async def health(self) -> Health:
        """Whether the server can run calls now, and its devices. See warpcall.health."""
        return await self._core.health()

    async def devices(self) -> list[Device]:
        """The server's devices, each with what it did in the last hour. See warpcall.devices."""
        return await self._core.devices()

    async def me(self) -> Me:
        """Who you are to the server: your name, role and limits. See warpcall.users.

        Raises:
            Unauthorized: the server asks for a key, and none was given or it is wrong.
        """
        return await self._core.me()

    async def quotas(self) -> UserQuotas:
        """Your limits, where each comes from, and what you use of them now. See warpcall.users.

        Raises:
            Unauthorized: the server asks for a key, and none was given or it is wrong.
            Unavailable: the server cannot read its database.
        """
        return await self._core.quotas()

    async def close(self) -> None:
        """Close the connections and free the memory that was held for further answers."""
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


class AsyncStoredCalls(AsyncStoredOps, Suggests):
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


def is_tensor(value: object) -> bool:
    return is_array(value) or isinstance(value, BaseStoredTensor)


def only_output(answer: Answer[Any]) -> Any:
    outputs = answer.outputs
    return next(iter(outputs.values())) if len(outputs) == 1 else outputs
