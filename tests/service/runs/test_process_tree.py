"""Which processes run: a process stands still only when each of its threads does."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

from tests.waiting import until
from warpcall_service.runs import process_tree

WRITES = """
import os, threading
fd = os.memfd_create("file")
content = bytearray(64 << 20)
def write():
    while True:
        os.pwrite(fd, content, 0)
threading.Thread(target=write, daemon=True).start()
print("ready", flush=True)
threading.Event().wait()
"""


def main_thread_stands_still(pid: int) -> bool:
    text = Path(f"/proc/{pid}/stat").read_text()
    return text[text.rindex(")") + 2] == "T"


def stopped_with_a_thread_in_the_kernel(pid: int) -> bool:
    """Stop a process; whether one of its threads went on after the main thread stood still."""
    os.kill(pid, signal.SIGSTOP)
    until(lambda: main_thread_stands_still(pid), "its main thread does not stop")
    went_on = process_tree.runs(pid)
    until(lambda: not process_tree.runs(pid), "a thread does not stop")
    spent = process_tree.cpu_us(pid)
    time.sleep(0.02)
    assert process_tree.cpu_us(pid) == spent, "it stands still"
    os.kill(pid, signal.SIGCONT)
    return went_on


def test_a_process_runs_while_a_thread_is_in_the_kernel() -> None:
    with subprocess.Popen([sys.executable, "-c", WRITES], stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"ready\n"
        try:
            found = [stopped_with_a_thread_in_the_kernel(process.pid) for _ in range(20)]
        finally:
            process.kill()

    assert any(found)
    assert not process_tree.runs(process.pid)
    assert process_tree.cpu_us(process.pid) == 0
