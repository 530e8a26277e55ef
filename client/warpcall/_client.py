"""Client: the methods of the SDK, blocking. AsyncClient has the same ones, awaited."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from types import TracebackType
from typing import Any, ClassVar, Self

from warpcall._answer import Answer
from warpcall._arrays import Array, ArrayT, is_array
from warpcall._blocking import run_now
from warpcall._config import Config, configure
from warpcall._core import Core
from warpcall._explain.request import explain
from warpcall._extras.arguments import check_timeout, split_arguments
from warpcall._generated.ops import Ops
from warpcall._generated.stored_ops import StoredOps
from warpcall._jobs.client import Jobs
from warpcall._jobs.implementations import Implementations
from warpcall._jobs.problems import Problems
from warpcall._jobs.regressions import Regressions
from warpcall._jobs.source import Code
from warpcall._monitors.client import Monitors
from warpcall._program import Program
from warpcall._progress import Display
from warpcall._tensors import BaseStoredTensor, StoredTensor, TensorInput
from warpcall._transport.base import Transport
from warpcall._transport.socket_transport import SocketTransport
from warpcall._transport.waiters import BlockingWaiter
from warpcall.compile_reports import GPU, TEXT_NAMES, CompileReport, TextName
from warpcall.devices import Device
from warpcall.errors import InvalidInput
from warpcall.health import Health
from warpcall.nodes import NodeList
from warpcall.ops import OpInfo, OpList
from warpcall.users import Me

TIMEOUT_S = 60.0


class BaseClient:
    """The parts that both clients share; Client documents the arguments."""

    _stored_type: ClassVar[type[BaseStoredTensor[Any]]]

    def __init__(
        self,
        url: str | Sequence[str] | None = None,
        *,
        api_key: str | None = None,
        timeout_s: float = TIMEOUT_S,
        retries: int | None = None,
        progress: bool | None = None,
    ) -> None:
        check_timeout(timeout_s)
        if retries is not None and retries < 0:
            raise InvalidInput(f"retries must be at least 0, got {retries}", field="retries")
        configs = configure(url, api_key)
        self._core = Core(
            configs,
            self.transport_for,
            timeout_s,
            retries,
            Display(progress),
            self._stored_type,
            None if self._blocks else Client.transport_for,
        )
        key = self._core.config.api_key
        arguments = (type(self), self.url, key, timeout_s, retries, progress)
        self._core.recipe = reopened, arguments

    def __reduce__(self) -> tuple[Any, ...]:
        """A pickle has the address and the key. The client that it becomes connects anew."""
        return self._core.recipe

    _blocks: ClassVar[bool]

    @staticmethod
    def transport_for(config: Config) -> Transport:
        """A transport of this client for a server."""
        raise NotImplementedError

    @property
    def url(self) -> str:
        """The server's address; of several, all with commas between them."""
        return ",".join(config.url for config in self._core.configs)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.url!r})"


class Client(BaseClient, Ops):
    """Calls ops on a Warpcall server. Its methods block; threads can share one client.

        with Client("http://gpu-box:8000") as gpu:
            y = gpu.permute(x, dims=(2, 0, 1))  # numpy in, numpy out; torch in, torch out

    Tensors of torch come back on the device of the inputs. If an input requires a gradient, so does
    the output, and the backward pass is computed by the server, too, while the client is open.

    If several servers share a database, one address is enough: the client asks for the others and
    spreads its calls over those that it can reach. A call that uses stored tensors goes to their
    server. If a server is lost, its calls are repeated at another one.

    Args:
        url: the server's address. None means the environment variable WARPCALL_URL, then the
            profile that `warpcall login` writes, then http://127.0.0.1:8000. On the server's own
            machine a Unix domain socket, unix:///path, is faster. For https with a certificate of
            your own, the environment variable SSL_CERT_FILE names the file that holds it. Several
            addresses, as a sequence or with commas between them, are servers that share a database:
            if one cannot be reached, the next one is used.
        api_key: the key that is sent as a bearer token. None means the environment variable
            WARPCALL_API_KEY, then the profile's key if the profile is for this server. Over plain
            HTTP a key is sent only to this machine or to a private network.
        timeout_s: seconds that a whole call may take, its retries included; at most 1,000,000.
        retries: how often a call is repeated after `Busy`, `Unavailable` or a broken connection.
            None means 4 times, but for as long as `timeout_s` allows if the connection to a server
            fails that has answered before: it may be restarting. Calls have no side effects, so
            that repeating one is safe.
        progress: whether transfers of more than 32 MB and `Job.wait` show a progress bar. None
            means only if stderr is a terminal, and in a Jupyter notebook.

    Raises:
        InvalidInput: the address, key, timeout or number of retries is not valid.
    """

    _stored_type = StoredTensor
    _blocks = True

    @staticmethod
    def transport_for(config: Config) -> Transport:
        """A blocking transport for a server."""
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
        return run_now(self._core.call(name, inputs, params or {}, timeout_s=timeout_s))

    def run(self, name: str, /, **arguments: Any) -> Any:
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
        answer = self.call(name, *split, timeout_s=timeout_s)
        return only_output(answer)

    @property
    def stored(self) -> StoredCalls:
        """Ops that store their outputs on the device: `y = gpu.stored.permute(x, dims=(1, 0))`."""
        return StoredCalls(self._core)

    def put(
        self,
        array: ArrayT,
        *,
        id: str | None = None,
        ttl_s: float | None = None,
        device: str | None = None,
        timeout_s: float | None = None,
    ) -> StoredTensor[ArrayT]:
        """Store an array on one of the server's devices. Calls take the result in its place.

        Args:
            array: any shape, of a dtype that the wire has.
            id: the id of the stored tensor, 1 to 64 letters, digits, `.`, `_` and `-`. A tensor
                that had this id is deleted. None means a new id.
            ttl_s: seconds after its last use until the tensor is deleted. None means the
                server's default.
            device: the device, such as "cuda:1". None means the least busy device.
            timeout_s: seconds that this call may take; None means the client's.

        Raises:
            Busy: with this tensor, your stored tensors or all stored tensors of the device would
                exceed their limit at present.
            TooLarge: this tensor alone exceeds a limit.
        """
        stored: StoredTensor[ArrayT] = run_now(self._core.put(array, id, ttl_s, device, timeout_s))
        return stored

    def tensors(self) -> list[StoredTensor[Array]]:
        """All your stored tensors, also of other clients. Their `get` returns numpy arrays."""
        return run_now(self._core.tensors())

    def program(self) -> Program:
        """An empty program: ops that are called on it run together, in one request. See Program."""
        return Program(self._core)

    @property
    def jobs(self) -> Jobs:
        """Benchmark jobs: submit, watch, cancel and compare them. See Jobs."""
        return Jobs(self._core)

    @property
    def implementations(self) -> Implementations:
        """What jobs can time: add, list, read and remove your own code. See Implementations."""
        return Implementations(self._core)

    @property
    def problems(self) -> Problems:
        """Ops of your own that jobs measure: add, list, read and remove them. See Problems."""
        return Problems(self._core)

    @property
    def monitors(self) -> Monitors:
        """Measurements that the server repeats: add, list, read, pause and remove them."""
        return Monitors(self._core)

    @property
    def regressions(self) -> Regressions:
        """Checks whether one implementation is slower than another. See Regressions."""
        return Regressions(self.jobs)

    def explain(
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
            gpu: the architecture, such as "sm_80", "sm_90" or "sm_100".
            texts: of "ttir", "ttgir", "ptx" and "sass"; each has up to 256 KiB for a kernel.

        Raises:
            InvalidInput: the request is wrong, or the code in the line that is named.
        """
        return run_now(explain(self._core, op, case, code, function, implementation, gpu, texts))

    def ops(self) -> OpList:
        """All ops of the server, also those that this client has no method for. See warpcall.ops."""
        return run_now(self._core.ops())

    def op(self, name: str) -> OpInfo:
        """One op of the server: its inputs, outputs and parameters.

        Raises:
            NotFound: the server has no such op.
        """
        return run_now(self._core.op(name))

    def kernels(self) -> list[dict[str, Any]]:
        """What `ops` returns, as the JSON of the server."""
        return run_now(self._core.kernels())

    def kernel(self, name: str) -> dict[str, Any]:
        """What `op` returns, as the JSON of the server."""
        return run_now(self._core.kernel(name))

    def nodes(self) -> NodeList:
        """The servers that share a database with this one, with their states and devices.

        A server that uses a SQLite database lists only itself.
        """
        return run_now(self._core.nodes())

    def health(self) -> Health:
        """Whether the server can run calls now, and its devices. See warpcall.health."""
        return run_now(self._core.health())

    def devices(self) -> list[Device]:
        """The server's devices, each with what it did in the last hour. See warpcall.devices."""
        return run_now(self._core.devices())

    def me(self) -> Me:
        """Who you are to the server: your name, role and limits. See warpcall.users.

        Raises:
            Unauthorized: the server asks for a key, and none was given or it is wrong.
        """
        return run_now(self._core.me())

    def close(self) -> None:
        """Close the connections and free the memory that was held for further answers."""
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
    """The ops of a client. They store their outputs on the device, and return stored tensors."""

    def __init__(self, core: Core) -> None:
        self._core = core

    def call(
        self,
        name: str,
        inputs: Mapping[str, TensorInput[ArrayT] | None],
        params: Mapping[str, object] | None = None,
        *,
        ttl_s: float | None = None,
        timeout_s: float | None = None,
    ) -> Answer[StoredTensor[ArrayT]]:
        """Run any op, store its outputs and get them by name, with the device and the timing.

        Args:
            timeout_s: seconds that this call may take; None means the client's.
            ttl_s: seconds after its last use until an output is deleted; None for the server's
                default.

        Raises:
            InvalidInput: the op does not take an input or a parameter; nothing was computed.
            Busy, TooLarge: the outputs exceed a limit on stored tensors, as for Client.put.
        """
        return run_now(
            self._core.call(
                name, inputs, params or {}, store=True, ttl_s=ttl_s, timeout_s=timeout_s
            )
        )


def is_tensor(value: object) -> bool:
    return is_array(value) or isinstance(value, BaseStoredTensor)


def only_output(answer: Answer[Any]) -> Any:
    outputs = answer.outputs
    return next(iter(outputs.values())) if len(outputs) == 1 else outputs


def reopened(
    kind: type[BaseClient],
    url: str,
    api_key: str | None,
    timeout_s: float,
    retries: int | None,
    progress: bool | None,
) -> BaseClient:
    """A new client like one that was pickled."""
    options: dict[str, Any] = {"timeout_s": timeout_s, "retries": retries, "progress": progress}
    return kind(url, api_key=api_key, **options)
