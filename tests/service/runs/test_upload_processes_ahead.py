"""Upload processes that the reaper has started before the job's process requests them."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from tests.service.runs.sandboxes import Uploads, bubblewraps, settings
from tests.service.runs.upload_parts import UPLOAD, Job, running_job
from tests.waiting import lives, until

pytestmark = pytest.mark.slow

START = """
peers[name] = start()
return peers[name].pid
"""
# What each thread may do, its account, the files that are open, and its memory of other starts.
SEEN = """
import os, threading
threads = {}
for number in os.listdir("/proc/self/task"):
    lines = open(f"/proc/self/task/{number}/status").read().splitlines()
    found = dict(line.split(":", 1) for line in lines if ":" in line)
    threads[number] = [found["Uid"].split(), found["CapEff"].strip(), found["NoNewPrivs"].strip()]
files = {}
for fd in os.listdir("/proc/self/fd"):
    try:
        files[fd] = os.readlink(f"/proc/self/fd/{fd}")
    except OSError:
        pass
return {
    "threads": [*threads.values()], "files": files,
    "limits": __import__("resource").getrlimit(__import__("resource").RLIMIT_NPROC),
    "dumpable": __import__("ctypes").CDLL(None).prctl(3, 0, 0, 0, 0),
}
"""
ASK = "return asks(peers[name], code)"


@pytest.fixture
def job(uploads: Uploads, tmp_path: Path) -> Iterator[Job]:
    """A job with one process that waits."""
    others = bubblewraps()  # of servers that other tests still use
    with running_job(settings(tmp_path / "data", uploads), tmp_path, ahead=[UPLOAD]) as running:
        yield running
    assert [process for process in bubblewraps() if process not in others] == []


def waiting(job: Job) -> list[psutil.Process]:
    """The upload processes below the reaper that run Python, and have a thread of `import_ahead`."""
    return [
        one
        for one in psutil.Process(job.reaper.pid).children(recursive=True)
        if lives(one) and UPLOAD in one.cmdline() and one.name() != "bwrap"
    ]


def seen(job: Job, name: str) -> dict[str, Any]:
    found: dict[str, Any] = job.does(ASK, name=name, code=SEEN)
    return found


def test_the_first_request_gets_the_process_that_waits_and_the_next_one_a_new_one(job: Job) -> None:
    until(lambda: waiting(job), "none waits")
    (one,) = waiting(job)

    first = job.does(START, name="a")
    second = job.does(START, name="b")

    assert first == one.pid
    assert second != first


def test_it_has_the_same_walls_as_one_that_was_started_for_its_upload(
    job: Job, uploads: Uploads
) -> None:
    for name in ("waited", "started"):
        job.does(START, name=name)

    waited, started = seen(job, "waited"), seen(job, "started")

    assert len(waited["threads"]) == 2, "a thread that had begun before the account was left"
    for thread in waited["threads"]:
        assert thread == started["threads"][0]
    if uploads == "sandboxed":
        assert waited["threads"][0] == [["1000"] * 4, "0000000000000000", "1"]
    assert waited["limits"] == started["limits"]
    assert waited["dumpable"] == started["dumpable"] == 1
    kinds = [
        sorted(path.partition(":")[0] for path in one["files"].values() if "/proc/" not in path)
        for one in (waited, started)
    ]
    assert kinds[0] == kinds[1], "it has no descriptor on which it waited"


def test_what_it_prints_goes_where_the_request_says(job: Job) -> None:
    job.does(START, name="a")
    printed = job.does(
        """
asks(peers["a"], "import os; os.write(1, b'out '); os.write(2, b'error'); return 1")
return peers["a"].prints.read(100).decode()
"""
    )

    assert printed == "out error"
    assert "out error" not in job.log.read_text()


def test_one_that_has_died_is_replaced(job: Job) -> None:
    until(lambda: waiting(job), "none waits")
    (one,) = waiting(job)
    one.kill()
    until(lambda: not lives(one))

    assert job.does(START, name="a") != one.pid
    assert job.does(ASK, name="a", code="return 7") == 7


def test_its_end_is_known_as_that_of_any_other_one(job: Job) -> None:
    job.does(START, name="a")
    how = job.does(
        """
asks(peers["a"], "import os; os.kill(os.getpid(), 11)")
return peers["a"].end()
"""
    )

    assert how == "SIGSEGV"


def test_those_that_wait_end_with_their_job(job: Job) -> None:
    until(lambda: waiting(job), "none waits")
    left = psutil.Process(job.reaper.pid).children(recursive=True)

    job.control.close()

    job.reaper.wait(20)
    until(lambda: not any(map(lives, left)), "a process is left")


def test_those_that_wait_make_room_for_an_upload_that_needs_the_memory_of_the_job(
    tmp_path: Path,
) -> None:
    given, most = settings(tmp_path / "data", "trusted"), 400 << 20
    environment = {"AHEAD_BYTES": str(120 << 20)}
    with running_job(
        given, tmp_path, memory_bytes=most, environment=environment, ahead=[UPLOAD, UPLOAD]
    ) as job:
        until(lambda: len(waiting(job)) == 2, "they do not wait")
        pid = job.does(START, name="a")
        (other,) = [one for one in waiting(job) if one.pid != pid]

        job.does(ASK, name="a", code="global more\nmore = b'x' * (200 << 20)\nreturn 1")

        until(lambda: not lives(other), "it still waits")
        assert job.does(ASK, name="a", code="return 7") == 7
