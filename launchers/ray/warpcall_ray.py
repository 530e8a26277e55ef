"""Starts, lists and stops servers on the machines of a Ray cluster: docs/cluster.md.

    python launchers/ray/warpcall_ray.py up

Only the machine of this command needs this file: Ray carries the class of the actors to the others,
which need the installed server. Each server has a detached actor. Ray places it where a GPU is free, and again elsewhere when its
machine is lost. The server is a child process of the actor's process, so that it has an interpreter
and signals of its own. Ray carries no tensors: callers send them to the servers directly.
"""

from __future__ import annotations

import logging
import os
import signal
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Annotated, Any, NamedTuple, NoReturn

import typer

from warpcall_service.extension import load_settings
from warpcall_service.server_settings import PREFIX
from warpcall_service.settings import CLIENT_VARIABLES, SettingsError
from warpcall_service.store.database import Store, StoreError
from warpcall_service.supervisor.entry import REFUSED
from warpcall_service.supervisor.plan import PlannedServer
from warpcall_service.supervisor.supervisor import KILL_S, POLL_S, Supervised

NAMESPACE = "warpcall"  # of the actors
OF_ONE = ("servers", "uds", "until", "advertised_url")  # settings that servers cannot share
ANSWER_S = 10.0  # in which an actor answers, unless it waits for a machine
LOOK_S = 0.5  # between two looks at the actors
GLANCE_S = 2.0  # that one look takes at most while servers start
STDERR = Path("/proc/self/fd/2")

log = logging.getLogger("warpcall.ray")
app = typer.Typer(
    help="Start, list and stop servers on a Ray cluster.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)
Address = Annotated[
    str, typer.Option(help="HOST:PORT of the head of the Ray cluster; auto: that of this machine.")
]
Wait = Annotated[float, typer.Option(min=0, max=86_400, help="Seconds to wait for the servers.")]


class ServerState(NamedTuple):
    """What an actor says of its server.

    Attributes:
        machine: address of the machine; empty while the actor does not answer.
        url: of the server; empty until it serves.
        trouble: why it does not serve, if that is known.
        refused: whether it cannot start with these settings.
    """

    machine: str = ""
    url: str = ""
    trouble: str = ""
    refused: bool = False

    def __str__(self) -> str:
        return self.url or self.trouble or (f"starts on {self.machine}" if self.machine else WAITS)


WAITS = "waits until Ray has a machine for it"


class ServerActor:
    """Runs one server on the machine on which Ray has placed it, until `stop`.

    Args:
        name: of the server, and of its own folder in the data folder.
        variables: the server's settings, as variables of the environment.
        flags: options of its process.
    """

    def __init__(self, name: str, variables: Mapping[str, str], flags: list[str]) -> None:
        import ray

        os.environ.update(variables)
        os.environ.pop("OMP_NUM_THREADS", None)  # Ray sets it to the CPUs that the actor reserves
        settings = load_settings()
        self._machine: str = ray.util.get_node_ip_address()
        host = f"[{self._machine}]" if ":" in self._machine else self._machine
        own: dict[str, Any] = {
            "advertised_url": f"{'https' if settings.tls_cert else 'http'}://{host}",
            "port": 0,
            "uds": None,
        }
        if "host" not in settings.model_fields_set:
            own["host"] = self._machine
        if settings.devices != "cpu":
            own["devices"] = "cuda:0"  # of those that the process sees, which is the actor's one
            (gpu,) = ray.get_runtime_context().get_accelerator_ids()["GPU"]
            if settings.port and gpu.isdecimal():  # it may be a UUID
                own["port"] = settings.port + int(gpu)
        self._trouble, self._refused = "", False
        self._stop_s = settings.stop_s
        self._stopping = threading.Event()
        self._server = Supervised(PlannedServer(name, own), None, flags)
        # The kernel ends the server when the thread that has started it ends.
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def describe(self) -> ServerState:
        """The server's address, or why it has none."""
        return ServerState(self._machine, self._server.url, self._trouble, self._refused)

    def stop(self) -> None:
        """End the server in good order."""
        self._stopping.set()
        self._thread.join()

    def _run(self) -> None:
        try:
            self._supervise()
        except OSError:
            log.exception("the server cannot be supervised")
            os._exit(1)  # Ray starts the actor again

    def _supervise(self) -> None:
        kill_at = None
        while self._server.runs or not self._stopping.is_set():
            if not self._stopping.is_set():
                self._server.start_if_due()
            elif kill_at is None:
                self._server.signal(signal.SIGTERM)
                kill_at = time.monotonic() + self._stop_s + KILL_S
            elif time.monotonic() > kill_at:
                self._server.signal(signal.SIGKILL)
            status = self._server.look()
            if status is not None:
                pause_s = self._server.postpone()
                self._trouble = f"ended with status {status} on {self._machine}: {_last_line()}"
                self._refused = status == REFUSED and not self._server.was_ready
                log.error("the server ended with status %s, next start in %s s", status, pause_s)
            self._stopping.wait(POLL_S) if kill_at is None else time.sleep(POLL_S)


def _last_line() -> str:
    """What the server wrote last to its stderr, for which Ray has a file, and the file's name."""
    if not STDERR.is_file():
        return ""
    with STDERR.open("rb") as file:
        file.seek(-min(2000, STDERR.stat().st_size), os.SEEK_END)
        lines = file.read().decode(errors="replace").strip().splitlines()
    return f"{lines[-1] if lines else ''} ({STDERR.readlink()})"


@app.command("up")
def start_servers(
    address: Address = "auto",
    num_servers: Annotated[
        int | None,
        typer.Option(min=1, max=1000, help="Number of servers; by default one for each GPU."),
    ] = None,
    wait: Wait = 600.0,
    quiet: Annotated[
        bool, typer.Option("--quiet", help="Do not log a line for each request.")
    ] = False,
) -> None:
    """Start a server for each GPU of a Ray cluster. Servers that run already stay as they are.

    The servers get the WARPCALL_ variables of this command, and share a PostgreSQL database. With
    WARPCALL_DEVICES=cpu each server gets a CPU instead of a GPU.
    """
    variables, kind = _variables()
    with _connected(address) as ray:
        count = num_servers or int(ray.cluster_resources().get(kind, 0))
        if not count:
            _fail(f"the Ray cluster has no {kind}; with --num-servers they wait for one")
        needs = {"num_cpus": 1, "num_gpus": int(kind == "GPU"), "scheduling_strategy": "SPREAD"}
        lasts = {"lifetime": "detached", "max_restarts": -1, "get_if_exists": True}
        flags = ["--quiet"] if quiet else []
        actors = {}
        for name in (f"warpcall-{i}" for i in range(count)):
            placed = ray.remote(ServerActor).options(name=name, **needs, **lasts)
            actors[name] = placed.remote(name, variables, flags)
        deadline = time.monotonic() + wait
        ready: set[str] = set()
        while True:
            states = _states(ray, actors, GLANCE_S)
            for name, state in states.items():
                if state.url and name not in ready:
                    typer.echo(f"{name} {state}")
                    ready.add(name)
            if len(ready) == count:
                return
            late = time.monotonic() > deadline
            if late or any(state.refused for state in states.values()):
                missing = [f"{name} {states[name]}" for name in actors if name not in ready]
                _fail("\n".join(["not all servers are ready; `down` stops them", *missing]))
            time.sleep(LOOK_S)


@app.command("status")
def list_servers(address: Address = "auto") -> None:
    """List the servers that Ray runs."""
    with _connected(address) as ray:
        for name, state in _states(ray, _actors(ray)).items():
            typer.echo(f"{name} {state}")


@app.command("down")
def stop_servers(address: Address = "auto", wait: Wait = 600.0) -> None:
    """Stop all servers that Ray runs. Jobs that they measure go back to the queue."""
    with _connected(address) as ray:
        deadline = time.monotonic() + wait
        actors = _actors(ray)
        states = _states(ray, actors)
        asked = {actors[name].stop.remote(): name for name in actors if states[name].machine}
        ended = ray.wait([*asked], num_returns=len(asked), timeout=wait)[0] if asked else []
        for actor in actors.values():
            ray.kill(actor)
        while ray.util.list_named_actors() and time.monotonic() < deadline:
            time.sleep(LOOK_S)
        stopped = {asked[answer] for answer in ended}
        for name in actors:
            typer.echo(f"{name} {'stopped' if name in stopped else 'killed'}")


def _actors(ray: Any) -> dict[str, Any]:
    found = {}
    for name in sorted(ray.util.list_named_actors()):
        with suppress(ValueError):  # it has ended since
            found[name] = ray.get_actor(name)
    return found


def _states(
    ray: Any, actors: Mapping[str, Any], within_s: float = ANSWER_S
) -> dict[str, ServerState]:
    """What all actors say. One that waits for a machine, or is restarted, does not answer."""
    asked = {name: actor.describe.remote() for name, actor in actors.items()}
    ray.wait([*asked.values()], num_returns=len(asked), timeout=within_s) if asked else None
    found = {}
    for name, answer in asked.items():
        try:
            found[name] = ray.get(answer, timeout=0)
        except ray.exceptions.GetTimeoutError:
            found[name] = ServerState()
        except ray.exceptions.ActorUnavailableError:
            found[name] = ServerState()
        except ray.exceptions.ActorDiedError as error:  # Ray does not start it again
            found[name] = ServerState(trouble=str(error), refused=True)
    return found


def _variables() -> tuple[dict[str, str], str]:
    """The settings for the servers, and what each needs of Ray: GPU or CPU."""
    try:
        settings = load_settings()
        url = settings.database_url
        store = Store(None if url is None else url.get_secret_value(), settings.data_dir)
    except (SettingsError, StoreError) as error:
        _fail(str(error), 2)
    if store.path is not None:
        _fail(f"{PREFIX}DATABASE_URL must name a PostgreSQL database, got {store.label}", 2)
    for name in OF_ONE:
        if name in settings.model_fields_set:
            _fail(f"{PREFIX}{name.upper()} must not be set: each server has its own", 2)
    if settings.devices not in ("auto", "cpu"):
        _fail(
            f"{PREFIX}DEVICES must be auto or cpu, since Ray chooses the GPU of each server, got "
            f"{settings.devices}",
            2,
        )
    ours = {k: v for k, v in os.environ.items() if k.upper().startswith(PREFIX)}
    variables = {k: v for k, v in ours.items() if k.upper() not in CLIENT_VARIABLES}
    return variables, "CPU" if settings.devices == "cpu" else "GPU"


@contextmanager
def _connected(address: str) -> Iterator[Any]:
    """The module ray, connected to a cluster."""
    try:
        import ray
    except ModuleNotFoundError:
        _fail("Ray is not installed: pip install '.[ray]', as docs/cluster.md says")
    try:
        ray.init(address, namespace=NAMESPACE, log_to_driver=False, logging_level=logging.ERROR)
    except (ConnectionError, RuntimeError, ValueError) as error:
        _fail(f"no Ray cluster at {address[:100]}: {error}")
    try:
        yield ray
    finally:
        ray.shutdown()


def _fail(message: str, status: int = 1) -> NoReturn:
    typer.echo(f"warpcall_ray: {message}", err=True)
    raise typer.Exit(status)


if __name__ == "__main__":
    app()
