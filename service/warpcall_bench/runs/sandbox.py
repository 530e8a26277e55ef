"""The sandbox for code that users upload: what a process in it sees, and whether it can start.

A process sees only what is listed here: the system's programs and libraries, Python with its
packages, folders of its own for temporary files, and of the devices only the GPU of its lane.
"""

from __future__ import annotations

import asyncio
import json
import logging
import os
import socket
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TypedDict

from warpcall.errors import Forbidden, Unavailable
from warpcall_bench.runs.account import USER_SYSCTLS
from warpcall_bench.runs.messages import Launch
from warpcall_bench.runs.sandboxed import CannotStart
from warpcall_bench.settings import BenchSettings
from warpcall_service.lanes.messages import Hello
from warpcall_service.processes.spawn import ChildProcess, torch_environment

PROBE_MODULE = "warpcall_bench.runs.sandbox_probe"
PROBE_S = 30.0  # within which the sandbox must have been checked
RETRY_S = 60.0  # after a check that failed
BEING_CHECKED = "the sandbox is being checked; try again in a few seconds"
PROBE_PROCESSES = 24  # the limit in the check, which tries to exceed it
MAX_ANSWER_BYTES = 64 << 10

SYSTEM = ("/usr", "/bin", "/sbin", "/lib", "/lib32", "/lib64", "/libx32")
ETC = (
    "/etc/ld.so.cache",
    "/etc/ld.so.conf",
    "/etc/ld.so.conf.d",
    "/etc/alternatives",
    "/etc/localtime",
)
# Torch finds out from these how many CPUs there are, and how far their memory is.
CPUS = ("/sys/devices/system/cpu", "/sys/devices/system/node")
DEVICES = ("/dev/null", "/dev/zero", "/dev/full", "/dev/random", "/dev/urandom")
# They say what the operator passed to the kernel, and which keys and timers others have.
HIDDEN_PROC = tuple(
    map(Path, ("/proc/cmdline", "/proc/keys", "/proc/key-users", "/proc/timer_list"))
)
GPU_DEVICES = ("/dev/nvidiactl", "/dev/nvidia-uvm", "/dev/nvidia-uvm-tools")
NSIGHT_COMPUTE = Path("/opt", "nvidia", "nsight-compute")  # where NVIDIA's packages put it
# Variables of the server's environment that say where software is, and how it computes.
INHERITED = (
    "LD_LIBRARY_PATH",
    "PYTHONPATH",
    "PYTHONDONTWRITEBYTECODE",
    "CUDA_HOME",
    "TRITON_INTERPRET",
    "TRITON_LIBCUDA_PATH",
    "TRITON_PTXAS_PATH",
    "TRITON_CACHE_MANAGER",  # of the image: finds the kernels that were shipped with it
    "TRITON_STORE_BINARY_ONLY",
    "CC",
    "OMP_NUM_THREADS",
)
# Those of them whose value is the path of a program or a folder.
PROGRAMS = ("CC", "CUDA_HOME", "TRITON_PTXAS_PATH", "TRITON_LIBCUDA_PATH")
TMP = "/tmp"  # nosec B108  # the sandbox's own
SHM = "/dev/shm"  # nosec B108  # likewise
ENVIRONMENT = {
    "HOME": TMP,
    "TMPDIR": TMP,
    "USER": "warpcall",
    "LANG": "C.UTF-8",
    "TRITON_CACHE_DIR": f"{TMP}/triton",
    "TORCHINDUCTOR_CACHE_DIR": f"{TMP}/torchinductor",
    "CUDA_CACHE_PATH": f"{TMP}/cuda",
    "CUDA_DEVICE_ORDER": "PCI_BUS_ID",
}

log = logging.getLogger("warpcall.sandbox")


class Gpu(TypedDict):
    """A GPU for the sandbox: its number in the names of device files, and its UUID."""

    minor: int
    uuid: str


class Sandbox:
    """Starts processes in the sandbox, by the server's settings.

    Attributes:
        trouble: why the sandbox cannot be used now; empty if it can. `probe` finds out.
    """

    def __init__(self, settings: BenchSettings) -> None:
        self._settings = settings
        self.trouble = BEING_CHECKED

    @property
    def status(self) -> str:
        """For /readyz: the setting `uploads`, or why uploads are refused."""
        if self._settings.uploads == "sandboxed" and self.trouble:
            return f"unavailable: {self.trouble}"
        return self._settings.uploads

    def require(self) -> None:
        """Check that uploaded code can run on this server.

        Raises:
            Forbidden: the operator does not allow it, or the sandbox cannot start.
            Unavailable: the server has just started, and still checks the sandbox.
        """
        if self._settings.uploads == "off":
            raise Forbidden(
                "this server runs no uploaded code: its operator would have to set "
                "WARPCALL_UPLOADS=sandboxed"
            )
        if self._settings.uploads == "trusted" or not self.trouble:
            return
        if self.trouble == BEING_CHECKED:
            raise Unavailable(f"uploaded code cannot run yet: {self.trouble}", retry_after_s=1)
        raise Forbidden(
            f"this server runs no uploaded code, since its sandbox cannot start: {self.trouble}"
        )

    def require_scratch(self) -> None:
        """Check that scratch runs are allowed and can run on this server. It raises as `require`."""
        if self._settings.scratch_max_s == 0:
            raise Forbidden(
                "this server allows no scratch runs: its operator would have to set "
                "WARPCALL_SCRATCH_MAX_S"
            )
        if self._settings.uploads != "sandboxed":
            raise Forbidden(
                "this server runs no scratch runs, because they need the sandbox: its operator would "
                "have to set WARPCALL_UPLOADS=sandboxed"
            )
        self.require()

    async def watch(self) -> None:
        """Check the sandbox if the settings need it, again and again until it can be used."""
        while self._settings.uploads == "sandboxed" and await self.probe():
            await asyncio.sleep(RETRY_S)

    async def probe(self) -> str:
        """Start the sandbox once, check what must not work in it, and set `trouble`."""
        before = self.trouble
        try:
            launch = self.launch(PROBE_PROCESSES)
            self.trouble = await _probe(launch, str(self._data_dir()))
        except (CannotStart, OSError, ValueError) as error:
            self.trouble = str(error)
        if self.trouble not in ("", before):
            log.error("uploaded code cannot run: %s", self.trouble)
        return self.trouble

    def launch(
        self,
        processes: int | None = None,
        gpu: Gpu | None = None,
        profilers: Sequence[str] = (),
    ) -> Launch:
        """How to start one process, with or without a GPU.

        Args:
            profilers: paths of Nsight Compute's program and of compute-sanitizer, whose folders are
                shown; empty if they are not used.

        Raises:
            CannotStart: a folder that must be visible would show the server's own files.
        """
        settings = self._settings
        return {
            "arguments": self._arguments(gpu, _profiler_folders(profilers)),
            "processes": processes or settings.sandbox_processes,
            "memory_bytes": memory_bytes(settings),
            "tmp_bytes": int(settings.sandbox_tmp_bytes),
        }

    def _arguments(self, gpu: Gpu | None, further: Sequence[str]) -> list[str]:
        """Options of bubblewrap, in the order in which it applies them.

        Args:
            further: folders to show beside those that are always shown.
        """
        tmp_bytes = str(int(self._settings.sandbox_tmp_bytes))
        arguments = ["--unshare-user", "--unshare-ipc", "--unshare-pid", "--unshare-net"]
        arguments += ["--unshare-uts", "--unshare-cgroup-try", "--hostname", "sandbox"]
        arguments += ["--uid", "0", "--gid", "0", "--cap-drop", "ALL"]
        for capability in ("SETUID", "SETGID", "SYS_RESOURCE"):  # needed for `account.leave`
            arguments += ["--cap-add", f"CAP_{capability}"]
        arguments += ["--new-session", "--die-with-parent"]
        arguments += ["--proc", "/proc", *_read_only_proc(), "--tmpfs", "/dev"]
        for device in (*DEVICES, *(gpu_devices(gpu) if gpu else ())):
            arguments += ["--dev-bind", device, device]
        for name, target in (("fd", ""), ("stdin", "/0"), ("stdout", "/1"), ("stderr", "/2")):
            arguments += ["--symlink", f"/proc/self/fd{target}", f"/dev/{name}"]
        for folder in (TMP, SHM):
            arguments += ["--perms", "1777", "--size", tmp_bytes, "--tmpfs", folder]
        bound = self._bound(gpu, further)
        arguments += self._visible(bound)
        for name in ("passwd", "group"):
            arguments += ["--ro-bind", str(Path(__file__).with_name(name)), f"/etc/{name}"]
        for folder in ("/dev", "/"):
            arguments += ["--remount-ro", folder]
        arguments += ["--chdir", TMP, "--clearenv"]
        for name, value in _environment(gpu, bound).items():
            arguments += ["--setenv", name, value]
        return arguments

    def _bound(self, gpu: Gpu | None, further: Sequence[str]) -> list[Path]:
        """The files and folders that are shown, each without those in it."""
        bound: list[Path] = []
        folders = sorted({*self._folders(), *further})  # a folder stands before those in it
        for path in map(Path, [*SYSTEM, *ETC, *(["/sys"] if gpu else CPUS), *folders]):
            linked = path.is_symlink() and str(path) in SYSTEM  # such as /bin, a link to usr/bin
            if not linked and path.exists() and not _is_in(path, bound):
                bound.append(path)
        return bound

    def _visible(self, bound: Sequence[Path]) -> list[str]:
        """Options that show files and folders, and hide the server's own ones below them."""
        arguments = []
        for path in map(Path, SYSTEM):
            if path.is_symlink():
                arguments += ["--symlink", str(path.readlink()), str(path)]
        # Bubblewrap would make the folders above them for its own account only.
        for folder in dict.fromkeys(above for path in bound for above in reversed(path.parents)):
            arguments += ["--perms", "0755", "--dir", str(folder)]
        for path in bound:
            arguments += ["--ro-bind", str(path), str(path)]
        for path in bound:
            arguments += self._masks(path)
        return arguments

    def _folders(self) -> set[str]:
        """Folders of Python, its packages and ours, and those that the operator added."""
        # Without the option -P the first entry is the folder in which the server was started.
        imports = sys.path if sys.flags.safe_path else sys.path[1:]
        python = [sys.prefix, sys.base_prefix, str(Path(__file__).parents[2]), *imports]
        named = ("PYTHONPATH", "LD_LIBRARY_PATH")
        libraries = [path for name in named for path in os.environ.get(name, "").split(":")]
        further = self._settings.sandbox_paths
        added = [] if further == "none" else further.split(",")
        return {os.path.normpath(path) for path in (*python, *libraries, *added) if path[:1] == "/"}

    def _masks(self, bound: Path) -> list[str]:
        """Options that hide the data folder where `bound` shows it.

        Raises:
            CannotStart: `bound` shows something else of the server, or belongs to it.
        """
        real, data_dir = bound.resolve(), self._data_dir()
        home = Path(os.path.expanduser("~")).resolve()  # noqa: PTH111  # it may be unknown
        coarse = len(real.parts) <= 2 and str(bound) not in (*SYSTEM, "/sys")  # such as /tmp
        if coarse or real == home or real.is_relative_to(data_dir):
            raise CannotStart(f"the sandbox would have to show {bound}, which holds private files")
        for path in self._private_files():
            if path.resolve().is_relative_to(real):
                raise CannotStart(
                    f"the sandbox would show {path}, because it shows {bound}: move it"
                )
        if not data_dir.is_relative_to(real):
            return []
        inside = str(bound / data_dir.relative_to(real))
        return ["--size", "4096", "--tmpfs", inside, "--remount-ro", inside]

    def _data_dir(self) -> Path:
        try:
            return self._settings.data_dir.expanduser().resolve()
        except RuntimeError:  # the account has no home folder; the database is elsewhere then
            return Path("/nonexistent")

    def _private_files(self) -> list[Path]:
        settings, url = self._settings, self._settings.database_url
        database = "" if url is None else url.get_secret_value().removeprefix("sqlite:///")
        files = [settings.uds, settings.tls_cert, settings.tls_key]
        if database.startswith("/"):
            files.append(Path(database))
        return [path.absolute() for path in files if path is not None]


def _is_in(path: Path, folders: Sequence[Path]) -> bool:
    return any(path.is_relative_to(folder) for folder in folders)


def _read_only_proc() -> list[str]:
    """Options that make all of /proc read-only except the folders of the sandbox's own processes.

    A server that runs as root would otherwise let its sandbox write to /proc/sys, whose files root
    owns. CUDA does not start where a process cannot write to its own folder.
    """
    arguments = []
    for path in HIDDEN_PROC:
        if path.exists():
            arguments += ["--ro-bind", "/dev/null", str(path)]
    for path in sorted({*Path("/proc").iterdir()} - {*HIDDEN_PROC}):
        ours = path.name.isdigit() or path.is_symlink()  # such as self and net
        if not ours and (path.is_dir() or path.stat().st_mode & 0o222):
            arguments += ["--ro-bind", str(path), str(path)]
    # Only a process with capabilities may write there, and only to what is of its own namespace.
    return [*arguments, "--bind", str(USER_SYSCTLS), str(USER_SYSCTLS)]


def gpu_of(device: str, lane: Hello) -> Gpu | None:
    """The GPU of a lane's device; None for the CPU.

    Raises:
        CannotStart: the lane does not know the GPU's device file.
    """
    if device == "cpu":
        return None
    minor, uuid = lane.get("minor"), lane.get("fingerprint", {}).get("uuid")
    if minor is None or not uuid:
        raise CannotStart(f"the device file of {device} is unknown, because NVML does not tell it")
    return {"minor": minor, "uuid": f"GPU-{uuid}"}


def _profiler_folders(profilers: Sequence[str]) -> list[str]:
    """The folders of profilers, whose program may be a script that starts the one of a package."""
    folders = []
    for program in map(Path, profilers):
        # In a CUDA toolkit, the script bin/compute-sanitizer starts the program of this folder.
        beside = program.parent.parent / "compute-sanitizer"
        folders += [program.parent, NSIGHT_COMPUTE if program.name == "ncu" else beside]
    return [str(folder) for folder in folders if folder.is_dir()]


def gpu_devices(gpu: Gpu) -> list[str]:
    """The device files of one GPU."""
    return [f"/dev/nvidia{gpu['minor']}", *filter(os.path.exists, GPU_DEVICES)]


def memory_bytes(settings: BenchSettings) -> int:
    """Limit on the memory of all processes of a job together, in bytes."""
    physical = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return int(settings.job_memory_bytes) or physical // 2


def search_path() -> str:
    """The folders in which processes in the sandbox find programs."""
    folders = [f"{sys.prefix}/bin", "/usr/local/cuda/bin", "/usr/local/bin", "/usr/bin", "/bin"]
    return ":".join(folders)


def _environment(gpu: Gpu | None, bound: Sequence[Path]) -> dict[str, str]:
    inherited = {name: os.environ[name] for name in INHERITED if name in os.environ}
    for name in PROGRAMS:
        # Triton would fail if the variable named a compiler that is not there. Otherwise it finds one.
        if (path := inherited.get(name, ""))[:1] == "/" and not _is_in(Path(path).resolve(), bound):
            del inherited[name]
    return {
        **ENVIRONMENT,
        "PATH": search_path(),
        "CUDA_VISIBLE_DEVICES": gpu["uuid"] if gpu else "",
        **torch_environment(),
        **inherited,
    }


async def _probe(launch: Launch, data_dir: str) -> str:
    """Why a process in the sandbox cannot start or could do too much; empty if all is well."""
    process = ChildProcess(
        PROBE_MODULE,
        "the check of the sandbox",
        {"launch": json.dumps(launch), "data-dir": data_dir},
        {"answer": socket.SOCK_STREAM},
    )
    try:
        reader, writer = await asyncio.open_unix_connection(
            sock=process.sockets["answer"], limit=MAX_ANSWER_BYTES
        )
        try:
            async with asyncio.timeout(PROBE_S):
                answer = await reader.read(MAX_ANSWER_BYTES)
        except TimeoutError:
            return f"it was not checked within {PROBE_S:g} s"
        finally:
            writer.close()
        if not answer:
            return "the process that checks the sandbox failed; the log says why"
        return str(json.loads(answer)["trouble"])
    finally:
        process.kill()
        await process.wait()
        process.close()
