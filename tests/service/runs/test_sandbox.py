"""What code in the sandbox cannot do. Outside of it the same code does it: the control."""

from __future__ import annotations

import ctypes
import os
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from tests.service.runs.sandboxes import Outcomes, needs_bubblewrap, settings, tried

pytestmark = needs_bubblewrap

CALL = """
import ctypes
libc = ctypes.CDLL(None, use_errno=True)
if {call} < 0:
    raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
"""
CLONE = """
import ctypes, os
pid = ctypes.CDLL(None, use_errno=True).syscall(56, 0x10000000 | 17, 0, 0, 0, 0)
if not pid:
    os._exit(0)
if pid < 0:
    raise OSError(ctypes.get_errno(), "no")
"""
# Its grandparent is the reaper; in the sandbox it is bubblewrap, which has the first process id.
STARTER = """
import os
status = open(f"/proc/{os.getppid()}/status").read()
starter = status.partition("PPid:")[2].split()[0]
return open(f"/proc/{starter}/environ").read().index("SECRET_OF_THE_SERVER")
"""
# What is tried, and the error of it in the sandbox.
ATTEMPTS = {
    "read the data folder": (
        "import os\nreturn os.listdir(data_dir)",
        "FileNotFoundError",
    ),
    "read a key": ("return open(f'{data_dir}/secret').read()", "FileNotFoundError"),
    "read another job's files": ("return open(others).read()", "FileNotFoundError"),
    "read the server's environment": (
        "return open(f'/proc/{server}/environ').read()",
        "FileNotFoundError",
    ),
    "read the environment of what started it": (STARTER, "PermissionError"),
    "own the files of the server": (
        "import os\nassert os.stat(f'{shown}/file').st_uid == os.getuid()",
        "AssertionError",
    ),
    "send a descriptor": (
        "import socket\na, b = socket.socketpair()\nsocket.send_fds(a, [b'!'], [a.fileno()])",
        "PermissionError",
    ),
    "let each open of a file wait": (
        "import fcntl\nwith open(f'{shown}/file') as file:\n    fcntl.fcntl(file, 1024, 0)",
        "PermissionError: [Errno 1]",
    ),
    "watch a folder by a signal": (
        "import fcntl, os\nfcntl.fcntl(os.open('/usr', 0), 1026, 1)",
        "PermissionError: [Errno 1]",
    ),
    "have very many instances of inotify": (
        "import os\nfor _ in range(40):"
        + CALL.format(call="libc.inotify_init()").replace("\n", "\n    "),
        "OSError: [Errno 24]",
    ),
    "have very many signals wait": (
        """
import os, signal
from ctypes import CDLL, c_void_p, get_errno
signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGRTMIN])
libc = CDLL(None, use_errno=True)
for _ in range(2000):
    if libc.sigqueue(os.getpid(), int(signal.SIGRTMIN), c_void_p(0)):
        raise OSError(get_errno(), "no")
""",
        "BlockingIOError: [Errno 11]",
    ),
    "read how the kernel was started": ("return open('/proc/cmdline').read()", "PermissionError"),
    "inherit the environment": (
        "import os\nreturn os.environ['SECRET_OF_THE_SERVER']",
        "KeyError",
    ),
    "connect to an address of this machine": (
        "import socket\nsocket.create_connection(('127.0.0.1', port), 5)",
        "PermissionError",
    ),
    "connect to a socket in the file system": (
        "import socket\nsocket.socket(socket.AF_UNIX).connect(path)",
        "FileNotFoundError",
    ),
    "connect to a socket without a file": (
        "import socket\nsocket.socket(socket.AF_UNIX).connect(chr(0) + abstract)",
        "ConnectionRefusedError",
    ),
    "open a queue of messages of this machine": (
        "import os" + CALL.format(call="libc.msgget(key, 0)"),
        "FileNotFoundError",
    ),
    "send a signal to the server": ("import os\nos.kill(server, 0)", "ProcessLookupError"),
    "write to what it is shown": ("open(f'{shown}/made', 'w').close()", "OSError: [Errno 30]"),
    "change the mode of what it is shown": (
        "import os\nos.chmod(f'{shown}/file', 0o777)",
        "OSError: [Errno 30]",
    ),
    "trace itself": ("import os" + CALL.format(call="libc.ptrace(0, 0, 0, 0)"), "PermissionError"),
    "read memory of a process": (
        """
import ctypes, os
class Part(ctypes.Structure):
    _fields_ = [("at", ctypes.c_void_p), ("size", ctypes.c_size_t)]
source, target = ctypes.create_string_buffer(8), ctypes.create_string_buffer(8)
mine, its = (Part(ctypes.addressof(buffer), 8) for buffer in (target, source))
libc = ctypes.CDLL(None, use_errno=True)
if libc.process_vm_readv(os.getpid(), ctypes.byref(mine), 1, ctypes.byref(its), 1, 0) < 0:
    raise OSError(ctypes.get_errno(), "no")
""",
        "PermissionError",
    ),
    "make a namespace of users": (
        "import os" + CALL.format(call="libc.unshare(0x10000000)"),
        "PermissionError",
    ),
    "make a namespace with clone": (
        CLONE,
        "PermissionError",
    ),
    "mount": (
        "import ctypes, os\nctypes.CDLL(None).unshare(0x10020000)"
        + CALL.format(call="libc.mount(b'none', b'/tmp', b'tmpfs', 0, None)"),
        "PermissionError",
    ),
    "hide memory in a file without a name": (
        "import os\nos.close(os.memfd_create('x'))",
        "OSError: [Errno 38]",
    ),
    "hide memory in a segment": (
        "import os" + CALL.format(call="libc.shmget(0, 4096, 0o1600)"),
        "OSError: [Errno 38]",
    ),
    "change its personality": (
        "import os" + CALL.format(call="libc.personality(0x0040000)"),
        "PermissionError",
    ),
    "keep keys in the kernel": (
        "import os" + CALL.format(call="libc.syscall(248, b'user', b'x', b'y', 1, -2)"),
        "PermissionError",
    ),
    "fill /tmp": (
        "for i in range(40):\n    open(f'/tmp/fill-{run}-{i}', 'wb').write(bytes(1 << 20))",
        "OSError: [Errno 28]",
    ),
    "fill /dev/shm": (
        "for i in range(40):\n    open(f'/dev/shm/fill-{run}-{i}', 'wb').write(bytes(1 << 20))",
        "OSError: [Errno 28]",
    ),
    "write a file beyond the largest": (
        "import os\nopen(f'/tmp/fill-{run}-0', 'wb').truncate(40 << 20)",
        "OSError: [Errno 27]",
    ),
    "open very many files": (
        "import os\nkept = [os.open('/dev/null', 0) for _ in range(4200)]",
        "OSError: [Errno 24]",
    ),
}


class Tried(NamedTuple):
    inside: Outcomes
    outside: Outcomes


@pytest.fixture(scope="module")
def outcomes(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Tried]:
    """The outcome of every attempt, in the sandbox and outside of it."""
    libc = ctypes.CDLL(None)
    folder = tmp_path_factory.mktemp("sandbox")
    (folder / "shown").mkdir()
    (folder / "shown/file").touch()
    others = folder / "others"
    others.write_text("of another job")
    abstract = f"warpcall-test-{os.getpid()}"
    values: dict[str, Any] = {
        "data_dir": str(folder / "data"),
        "others": str(others),
        "server": os.getpid(),
        "path": str(folder / "socket"),
        "abstract": abstract,
        "shown": str(folder / "shown"),
        "run": str(os.getpid()),
        "key": os.getpid(),
    }
    codes = {name: code for name, (code, _) in ATTEMPTS.items()}
    queue = libc.msgget(values["key"], 0o1600)
    assert queue >= 0
    changes = {"sandbox_paths": str(folder / "shown"), "sandbox_tmp_bytes": 16 << 20}
    with (
        socket.create_server(("127.0.0.1", 0)) as inet,
        socket.socket(socket.AF_UNIX) as unix,
        socket.socket(socket.AF_UNIX) as unnamed,
        pytest.MonkeyPatch.context() as patch,
    ):
        patch.setenv("SECRET_OF_THE_SERVER", "a password")
        unix.bind(values["path"])
        unnamed.bind(f"\0{abstract}")
        unix.listen()
        unnamed.listen()
        values["port"] = inet.getsockname()[1]
        found = []
        for uploads in ("sandboxed", "trusted"):
            given = settings(folder / "data", uploads, **changes)
            found.append(tried(codes, given, **values))
    libc.msgctl(queue, 0, None)
    yield Tried(*found)
    for place in ("/tmp", "/dev/shm"):
        for file in Path(place).glob(f"fill-{os.getpid()}-*"):
            file.unlink()


@pytest.mark.parametrize("name", ATTEMPTS)
def test_what_works_outside_is_refused_in_the_sandbox(name: str, outcomes: Tried) -> None:
    how, error = outcomes.inside[name]

    assert outcomes.outside[name][0] == "done", outcomes.outside[name]
    assert how == "refused", error
    assert error.startswith(ATTEMPTS[name][1]), error


@pytest.mark.skipif(os.geteuid() != 0, reason="only root may do this outside of the sandbox")
def test_the_sandbox_of_roots_server_has_nothing_of_root(tmp_path: Path) -> None:
    written = ("/proc/sys/kernel/core_pattern", "/proc/sys/vm/swappiness")
    read = ("/proc/kpageflags", "/proc/vmallocinfo", "/proc/slabinfo", "/proc/timer_list")
    codes = {
        **{path: f"import os\nos.close(os.open({path!r}, os.O_WRONLY))" for path in written},
        **{path: f"open({path!r}, 'rb').read(8)" for path in read},
        "/dev/null": "import os\nos.chmod('/dev/null', 0o666)",
    }

    inside = tried(codes, settings(tmp_path / "data"))
    outside = tried(codes, settings(tmp_path / "data", "trusted"))

    assert {how for how, _ in inside.values()} == {"refused"}, inside
    assert {how for how, _ in outside.values()} == {"done"}, outside


# Each is called with arguments that no kernel takes. Without the filter the kernel says so.
REACHED = """
import ctypes, errno, os, pyseccomp
libc = ctypes.CDLL(None, use_errno=True)
number = pyseccomp.resolve_syscall(pyseccomp.Arch.NATIVE, name)
if libc.syscall(number, *map(ctypes.c_long, arguments)) >= 0:
    return "it works"
found = errno.errorcode[ctypes.get_errno()]
if found in ("EPERM", "ENOSYS"):
    raise OSError(found)
return found
"""
CALLS = {
    "clone3": [0, 0],
    "userfaultfd": [-1],
    "io_uring_setup": [0, 0],
    "io_uring_enter": [-1, 0, 0, 0, 0, 0],
    "io_uring_register": [-1, 0, 0, 0],
    "perf_event_open": [0, 0, -1, -1, 0],
    "bpf": [-1, 0, 0],
    "move_mount": [-1, 0, -1, 0, -1],
    "open_tree": [-1, 0, -1],
    "fsopen": [0, -1],
    "fsconfig": [-1, 0, 0, 0, 0],
    "fsmount": [-1, -1, -1],
    "fspick": [-1, 0, -1],
    "mount_setattr": [-1, 0, -1, 0, 0],
    "setns": [-1, 0],
    "pidfd_getfd": [-1, -1, -1],
    "process_vm_writev": [-1, 0, 0, 0, 0, -1],
    "process_madvise": [-1, 0, 0, 0, -1],
    "open_by_handle_at": [-1, 0, 0],
    "name_to_handle_at": [-1, 0, 0, 0, -1],
    "keyctl": [-1, 0, 0, 0, 0],
    "request_key": [0, 0, 0, 0],
    "memfd_secret": [-1],
    "shmat": [-1, 0, 0],
    "io_setup": [0, 0],
    "mmap": [0, 0, 3, 0x40022, -1, 0],
}


@pytest.mark.skipif(
    os.geteuid() != 0, reason="outside of the sandbox only root reaches all of these"
)
def test_dangerous_calls_do_not_reach_the_kernel(tmp_path: Path) -> None:
    codes = {
        name: f"name, arguments = {name!r}, {arguments}\n{REACHED}"
        for name, arguments in CALLS.items()
    }

    inside = tried(codes, settings(tmp_path / "data"))
    outside = tried(codes, settings(tmp_path / "data", "trusted"))

    assert {name for name, (how, _) in inside.items() if how != "refused"} == set()
    # A kernel may be built without some of them.
    missing = {name for name, found in outside.items() if found == ["refused", "OSError: ENOSYS"]}
    assert {name for name, (how, _) in outside.items() if how != "done"} == missing
    assert len(missing) < len(CALLS) / 2, missing


FAMILIES = {
    "AF_UNIX": 1,
    "AF_INET": 2,
    "AF_PACKET": 17,
    "AF_ALG": 38,
    "AF_VSOCK": 40,
    "AF_KEY": 15,
    "AF_NETLINK": 16,
    "AF_INET6": 10,
}


def test_sockets_of_other_families_are_refused(tmp_path: Path) -> None:
    codes = {
        name: f"import socket\nsocket.socket({family}, socket.SOCK_DGRAM)"
        for name, family in {**FAMILIES, "beyond": 1 << 20, "AF_LLC": 26}.items()
    }

    inside = tried(codes, settings(tmp_path / "data"))
    outside = tried(codes, settings(tmp_path / "data", "trusted"))

    refused = ["refused", "PermissionError: [Errno 1] Operation not permitted"]
    assert {name for name, found in inside.items() if found == refused} == {
        *codes.keys() - {"AF_UNIX", "AF_NETLINK"}
    }
    assert outside["AF_VSOCK"] != refused
    assert outside["beyond"] != refused


def test_a_compiler_that_the_sandbox_does_not_show_is_not_named_in_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Triton takes the compiler that CC names, and fails if there is none."""
    codes = {"cc": "import os\nreturn os.environ.get('CC')"}
    hidden = tmp_path / "cc"
    hidden.touch()
    found = []

    for compiler in (str(hidden), "/bin/cc", "cc"):
        monkeypatch.setenv("CC", compiler)
        found += tried(codes, settings(tmp_path / "data"))["cc"]

    assert found == ["done", None, "done", "/bin/cc", "done", "cc"]


def test_a_process_can_change_its_own_folder_of_proc_and_nothing_else_there(tmp_path: Path) -> None:
    """CUDA does not start without the first."""
    opened = "import os, threading\nos.close(os.open({path}, os.O_WRONLY))"
    codes = {
        "process": opened.format(path="'/proc/self/comm'"),
        "thread": opened.format(path="f'/proc/self/task/{threading.get_native_id()}/comm'"),
        "kernel": opened.format(path="'/proc/sys/vm/swappiness'"),
        "namespace": opened.format(path="'/proc/sys/user/max_inotify_instances'"),
    }

    inside = tried(codes, settings(tmp_path / "data"))

    assert [how for how, _ in inside.values()] == ["done", "done", "refused", "refused"], inside
