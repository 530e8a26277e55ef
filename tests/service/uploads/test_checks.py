"""Checks of uploads at the same time: in turn for one user, beside each other for several."""

from __future__ import annotations

import contextlib
import threading
from concurrent.futures import ThreadPoolExecutor

import httpx
import psutil

from tests.service.databases import Database
from tests.service.requests import metrics
from tests.service.uploads.requests import PATH, Lab, names, running_lab, upload, uploaded
from tests.service.uploads.sources import SHORT
from tests.waiting import until

ENDLESS = "import time\ntime.sleep(1000)\n"
SLOW = "import time\ntime.sleep(8)\n" + SHORT  # shorter than WARPCALL_UPLOAD_CHECK_S


def test_slow_uploads_of_one_user_delay_no_other_user(sqlite: Database) -> None:
    with contextlib.ExitStack() as stack:
        threads = stack.enter_context(ThreadPoolExecutor(10))
        lab = stack.enter_context(
            running_lab(
                sqlite,
                *("ann", "bob"),
                WARPCALL_UPLOAD_CHECK_S="600",
                WARPCALL_CALL_TIMEOUT_S="600",
                WARPCALL_DRAIN_TIMEOUT_S="1",
            )
        )
        slow = [threads.submit(_status, lab, number) for number in range(10)]
        with lab.http("root") as root, lab.http("bob") as bob:
            until(lambda: metrics(root)["warpcall_upload_checks_unfinished"] == 9)

            fast = uploaded(bob, SHORT)

            refused = [future.result() for future in slow if future.done()]
        processes = psutil.Process(lab.server.process.pid).children(recursive=True)

    assert fast["created"]
    assert refused == [429], "one runs and eight wait"
    assert not any(
        "waiting_check" in " ".join(_command(process))
        for process in processes
        if process.is_running()
    )


def test_a_user_who_is_disabled_meanwhile_stores_nothing(sqlite: Database) -> None:
    with running_lab(sqlite, "ann") as lab, lab.http("root") as root:
        answers: list[httpx.Response] = []

        def send() -> None:
            with lab.http("ann") as ann:
                answers.append(upload(ann, SLOW))

        thread = threading.Thread(target=send)
        thread.start()
        until(lambda: metrics(root)["warpcall_upload_checks_unfinished"] == 1)
        sqlite.command("users", "disable", "ann")
        until(lambda: metrics(root)["warpcall_upload_checks_unfinished"] == 0)
        thread.join()
        stored = names(root)

    assert [answer.status_code for answer in answers] in ([401], [403])
    assert stored == []


def _status(lab: Lab, number: int) -> int:
    with lab.http("ann") as ann, contextlib.suppress(httpx.HTTPError):
        source = f"# {number}\n{ENDLESS}"
        return ann.post(PATH, json={"op": "permute", "source": source}, timeout=600).status_code
    return 0


def _command(process: psutil.Process) -> list[str]:
    with contextlib.suppress(psutil.NoSuchProcess):
        return process.cmdline()
    return []
