"""The processes of a job that run code of users: how they start, stop and end."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from tests.service.runs.sandboxes import Uploads, bubblewraps, needs_bubblewrap, settings
from tests.service.runs.upload_parts import UPLOAD, Job, running_job
from tests.waiting import lives, until
from warpcall_service.lanes.messages import frame

pytestmark = pytest.mark.slow

BUFFER = """
import ctypes
global kept
kept = ctypes.create_string_buffer(b"what is in the buffer")
return [ctypes.addressof(kept), len(kept.value)]
"""
READ = f"""
peer = peers["a"] = start()
address, size = asks(peer, '''{BUFFER}''')
return [peer.pid, reads(peer.pid, address, size)]
"""
END = """
peer = start()
asks(peer, code)
return peer.end()
"""
COUNT = """
import threading
global count
count = 0
def work():
    global count
    while True:
        count += 1
threading.Thread(target=work, daemon=True).start()
"""
# A timer, a file and a message queue that send SIGCONT to a process that was stopped.
TIMER = """
import ctypes, signal
libc = ctypes.CDLL(None, use_errno=True)
class Event(ctypes.Structure):
    _fields_ = (("value", ctypes.c_void_p), ("signal", ctypes.c_int), ("notify", ctypes.c_int),
                ("rest", ctypes.c_char * 48))
class Times(ctypes.Structure):
    _fields_ = (("every", ctypes.c_long * 2), ("first", ctypes.c_long * 2))
timer = ctypes.c_void_p()
if libc.timer_create(1, ctypes.byref(Event(0, signal.SIGCONT, 0)), ctypes.byref(timer)):
    return "refused"
times = Times((0, 50_000_000), (0, 50_000_000))
libc.timer_settime(timer, 0, ctypes.byref(times), None)
return "armed"
"""
FILE = """
import fcntl, signal, socket
ours, theirs = socket.socketpair()
try:
    fcntl.fcntl(ours, fcntl.F_SETSIG, signal.SIGCONT)
except OSError:
    return "refused"
return "armed"
"""
QUEUE = """
import ctypes, signal
libc = ctypes.CDLL(None, use_errno=True)
class Event(ctypes.Structure):
    _fields_ = (("value", ctypes.c_void_p), ("signal", ctypes.c_int), ("notify", ctypes.c_int),
                ("rest", ctypes.c_char * 48))
queue = libc.mq_open(b"/queue", 0o102, 0o600, None)
if queue < 0 or libc.mq_notify(queue, ctypes.byref(Event(0, signal.SIGCONT, 0))):
    return "refused"
return "armed"
"""
FORK_COUNT = """
import os, time
if not os.fork():
    os.setsid()
    if not os.fork():
        while True:
            pass
    os._exit(0)
os.wait()
"""
FORKS = """
import os, time
pids = []
for _ in range(12):
    pid = os.fork()
    if not pid:
        kept = b"x" * (100 << 20)
        time.sleep(600)
    pids.append(pid)
time.sleep(600)
"""


@pytest.fixture
def job(uploads: Uploads, tmp_path: Path) -> Iterator[Job]:
    others = bubblewraps()  # of servers that other tests still use
    with running_job(settings(tmp_path / "data", uploads), tmp_path) as running:
        yield running
    assert [process for process in bubblewraps() if process not in others] == []


def test_the_memory_of_an_upload_process_can_be_read_by_its_id(job: Job, uploads: Uploads) -> None:
    pid, text = job.does(READ)
    inside = job.does("return asks(peers['a'], 'import os; return os.getpid()')")

    assert text == "what is in the buffer"
    assert (inside == pid) is (uploads == "trusted"), "a sandbox numbers its processes itself"


def test_a_process_that_is_stopped_takes_no_time_until_it_is_resumed(job: Job) -> None:
    job.does("peers['a'] = start()\nasks(peers['a'], code)", code=COUNT)
    measure = """
import time
def cpu():
    fields = open(f"/proc/{peers['a'].pid}/stat").read().rpartition(")")[2].split()
    return int(fields[11]) + int(fields[12])
def spent():
    before = cpu()
    time.sleep(0.5)
    return cpu() - before
def used():
    return [spent()]
running = spent()
peers["a"].stop()
time.sleep(0.02)
stopped = spent()
peers["a"].resume()
return [running, stopped, spent()]
"""
    running, stopped, resumed = job.does(measure)

    assert running > 0
    assert stopped == 0
    assert resumed > 0


def test_only_without_the_sandbox_a_process_can_have_itself_resumed(
    job: Job, uploads: Uploads
) -> None:
    code = "peers['a'] = start()\nreturn [asks(peers['a'], code) for code in codes]"

    found = job.does(code, codes=[TIMER, FILE, QUEUE])

    assert found == ["armed" if uploads == "trusted" else "refused"] * 3


@needs_bubblewrap
def test_a_timer_resumes_a_stopped_process_without_the_sandbox(tmp_path: Path) -> None:
    code = """
import time
peer = start()
asks(peer, timer)
peer.stop()
time.sleep(0.5)
return open(f"/proc/{peer.pid}/stat").read().rpartition(")")[2].split()[0]
"""
    states = []
    modes: tuple[Uploads, ...] = ("trusted", "sandboxed")
    for uploads in modes:
        with running_job(settings(tmp_path / uploads, uploads), tmp_path) as job:
            states.append(job.does(code, timer=TIMER))

    assert states[0] != "T"
    assert states[1] == "T"


RESUME_EACH_OTHER = """
import os, signal
for _ in range(6):
    if not os.fork():
        while True:
            os.killpg(0, signal.SIGCONT)
return "forked"
"""


def test_processes_that_resume_each_other_stand_still(job: Job) -> None:
    code = """
import time
def cpu():
    return sum(process_tree.cpu_us(pid) for pid in peers["a"]._processes())
used = []
for _ in range(5):
    time.sleep(0.2)
    peers["a"].stop()
    before = cpu()
    time.sleep(0.1)
    used.append(cpu() - before)
    peers["a"].resume()
return used, peers["a"]._how
"""
    job.does("peers['a'] = start()\nreturn asks(peers['a'], code)", code=RESUME_EACH_OTHER)

    used_us, how = job.does(f"from warpcall_bench.runs import process_tree\n{code}")

    assert used_us == [0, 0, 0, 0, 0]
    assert how in (None, "its processes did not stand still while others were timed")


def test_processes_that_an_upload_has_left_behind_are_stopped_and_ended_with_it(job: Job) -> None:
    job.does("peers['a'] = start()\nasks(peers['a'], code)", code=FORK_COUNT)
    running = job.does("return sorted(peers['a']._processes())")
    job.does("peers['a'].stop()")
    seen = [psutil.Process(pid) for pid in running]
    states = [process.status() for process in seen]
    how = job.does("return peers['a'].end()")

    assert len(running) == 2
    assert states == ["stopped", "stopped"]
    assert how == ""
    until(lambda: not any(map(lives, seen)), "one is left")


ENDS = {
    "import os; os._exit(3)": "exited with status 3",
    "import os; os._exit(0)": "exited with status 0",
    "import os, signal; os.kill(os.getpid(), signal.SIGSEGV)": "SIGSEGV",
    "import os, signal; os.kill(os.getpid(), signal.SIGKILL)": "SIGKILL",
    "import os; os.abort()": "SIGABRT",
    "import os; os.closerange(0, 100); import time; time.sleep(60)": "",
    "return 1": "",
}


def test_the_end_of_each_process_of_a_job_is_known(job: Job) -> None:
    found = {code: job.does(END, code=code) for code in ENDS}

    assert found == ENDS
    assert job.does(END, code="return 1") == "", "the next one starts"


def test_a_stopped_process_can_be_ended(job: Job) -> None:
    job.does("peers['a'] = start()\npeers['a'].stop()")

    assert job.does("return [peers['a'].end(), peers['a'].end()]") == ["", ""]


def test_a_process_that_ends_before_it_greets_cannot_be_started(
    uploads: Uploads, tmp_path: Path
) -> None:
    code = """
try:
    start()
except RuntimeError as error:
    return str(error)
"""
    given = settings(tmp_path / "data", uploads)
    with running_job(given, tmp_path, environment={"MUTE": "1"}) as job:
        said = job.does(code)

    assert said == "its process did not start: it sent nothing (exited with status 5)"


def test_several_processes_run_side_by_side_and_the_first_ones_start_ahead(job: Job) -> None:
    code = """
import time
from warpcall_bench.runs.peers import PeerStarter
starters = [PeerStarter(reaper, start._module) for _ in range(3)]
for starter in starters:
    starter.start_ahead()
first = [starter() for starter in starters]
again = starters[0]()
found = [asks(peer, f"return {number}") for number, peer in enumerate([*first, again])]
reaper.end_all()
return [found, len({peer.pid for peer in [*first, again]})]
"""
    assert job.does(code) == [[0, 1, 2, 3], 4]


def test_nothing_is_left_when_the_job_ends(job: Job) -> None:
    job.does("peers['a'] = start()\nasks(peers['a'], code)", code=FORK_COUNT)
    pids = job.does("return sorted(peers['a']._processes())")
    job.server.sendall(b"\x00\x00\x00\x7f")
    job.server.close()  # its program ends then

    report = job.report()

    assert (report["left"], report["over_memory"], report["trouble"]) == ([], False, "")
    assert not any(map(psutil.pid_exists, pids))


def test_nothing_is_left_when_the_reaper_is_killed(job: Job) -> None:
    job.does("peers['a'] = start()\npeers['b'] = start()\npeers['b'].stop()")
    pids = job.does("return [peer.pid for peer in peers.values()]")
    seen = [psutil.Process(pid) for pid in pids]

    job.reaper.kill()

    until(lambda: not any(map(lives, seen)), "a process is left", timeout_s=10)


def test_an_upload_that_takes_most_of_the_memory_is_ended_and_the_job_goes_on(
    uploads: Uploads, tmp_path: Path
) -> None:
    given = settings(tmp_path / "data", uploads, job_memory_bytes=1 << 30)
    with running_job(given, tmp_path, memory_bytes=1 << 30) as job:
        how = job.does(END, code=FORKS)
        again = job.does(END, code="return 1")

    assert (how, again) == ("out of memory", "")


def test_uploads_that_together_take_too_much_memory_end_the_job(
    uploads: Uploads, tmp_path: Path
) -> None:
    take = "global kept\nkept = b'x' * (150 << 20)"
    given = settings(tmp_path / "data", uploads, job_memory_bytes=400 << 20)
    with running_job(given, tmp_path, memory_bytes=400 << 20) as job:
        job.does("for name in 'abc':\n    peers[name] = start()")
        code = """
from warpcall_service.lanes.messages import frame
import time
for peer in peers.values():
    peer.sock.sendall(frame({'code': take}))
time.sleep(60)
"""
        job.server.sendall(frame({"code": code, "values": {"take": take}}))
        report = job.report()

    assert report["over_memory"]
    assert report["left"] == []


def test_what_each_upload_prints_goes_to_a_pipe_of_its_own_or_to_the_log(job: Job) -> None:
    found = """
first, second, logged = start(), start(), reaper.start(module, prints=False)
logged.greet()
for number, peer in enumerate((first, second, logged)):
    asks(peer, f"print({number}, flush=True)")
return [first.prints.read(100).decode(), second.prints.read(100).decode(), logged.prints]
"""

    assert job.does(found, module=UPLOAD) == ["0\n", "1\n", None]
    assert job.log.read_text() == "2\n"


def test_a_folder_of_a_control_group_is_removed_with_its_process(
    job: Job, uploads: Uploads
) -> None:
    if uploads == "trusted" or os.geteuid():
        pytest.skip("there may be no control group")
    folder = Path(job.does("peers['a'] = start()\nreturn peers['a']._started['processes']")).parent
    there = folder.is_dir()
    job.does("peers['a'].end()")

    assert there
    assert not folder.exists()
