"""Client: the methods of the SDK, blocking. AsyncClient has the same ones, awaited."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from types import TracebackType
from typing import Self, Unpack

from warpcall._answer import Answer
from warpcall._arrays import Array, ArrayT
from warpcall._async_client import AsyncClient
from warpcall._base_client import BaseClient
from warpcall._blocking import blocking, each_now, run_now, untraced
from warpcall._core import Core
from warpcall._extras.suggestions import Suggests
from warpcall._generated.ops import Ops
from warpcall._generated.stored_ops import StoredOps
from warpcall._jobs.client import Jobs
from warpcall._jobs.evaluations import Candidate, EvaluationOptions, evaluate_many
from warpcall._jobs.implementations import Implementations
from warpcall._jobs.monitors import Monitors
from warpcall._jobs.problems import Problems
from warpcall._jobs.regressions import Regressions
from warpcall._program import Program
from warpcall._tensors import StoredTensor, TensorInput
from warpcall.evaluations import Evaluation


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

    call = blocking(AsyncClient.call)
    run = blocking(AsyncClient.run)
    race = blocking(AsyncClient.race)

    @property
    def stored(self) -> StoredCalls:
        """Ops that store their outputs on the device: `y = gpu.stored.permute(x, dims=(1, 0))`."""
        return StoredCalls(self._core)

    @untraced
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

    evaluate = blocking(AsyncClient.evaluate)
    exec = blocking(AsyncClient.exec)

    def evaluate_many(
        self,
        op: str,
        candidates: Iterable[Candidate],
        **options: Unpack[EvaluationOptions],
    ) -> Iterator[Evaluation]:
        """Evaluate many candidates, and iterate over their verdicts in the order in which they are known.
        `index` of a verdict says of which candidate it is.

        If the iterator is closed before its end, jobs that have not begun are cancelled.

        Args:
            op, options: as for `evaluate`.
            candidates: each as for `evaluate`. More than 256 are sent one batch after the other.

        Raises:
            InvalidInput: the request cannot be measured; `field` names the reason.
        """
        return each_now(evaluate_many(self._core, op, candidates, options))

    explain = blocking(AsyncClient.explain)
    verify = blocking(AsyncClient.verify)
    ops = blocking(AsyncClient.ops)
    op = blocking(AsyncClient.op)
    kernels = blocking(AsyncClient.kernels)
    kernel = blocking(AsyncClient.kernel)
    nodes = blocking(AsyncClient.nodes)
    health = blocking(AsyncClient.health)
    devices = blocking(AsyncClient.devices)
    me = blocking(AsyncClient.me)
    quotas = blocking(AsyncClient.quotas)
    close = blocking(AsyncClient.close)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        tb: TracebackType | None,
    ) -> None:
        self.close()


class StoredCalls(StoredOps, Suggests):
    """The ops of a client. They store their outputs on the device, and return stored tensors."""

    def __init__(self, core: Core) -> None:
        self._core = core

    @untraced
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
