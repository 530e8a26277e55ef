"""The SDK in a real Jupyter kernel: progress bars, tables, and calls that are awaited."""

from __future__ import annotations

from tempfile import TemporaryDirectory
from typing import Any

import nbformat
import pytest
import safetensors.numpy
from nbclient import NotebookClient
from traitlets.config import Config

from tests.client.first_sight.test_discovery import RESULTS
from tests.client.job_answers import DETAILS
from tests.client.scripted import ScriptedServer, Visit
from tests.client.scripted_ops import OpsServer
from tests.client.test_jobs import CASE, END, PROGRESS, answers, streams

START_S = 240  # of a kernel on a busy machine
TRANSFER = """
import numpy as np
from warpcall import Client
x = np.zeros(40 << 20, np.uint8)
with Client({url!r}{options}) as gpu:
    assert gpu.run("permute", x=x, dims=(0,)).nbytes == x.nbytes
"""
AWAITED = """
from warpcall import AsyncClient
async with AsyncClient({url!r}) as gpu:
    assert (await gpu.run("permute", x=x, dims=(0,))).nbytes == x.nbytes
"""
JOB = """
from warpcall import Client
with Client({url!r}) as gpu:
    results = gpu.jobs.get("j1").wait()
results
"""
OPS = """
from warpcall import Client
gpu = Client({url!r})
gpu.ops()
"""


class Notebook(NotebookClient):
    """Runs cells in a kernel, and keeps all that they show, also what they replace later."""

    def __init__(self, folder: str, *cells: str) -> None:
        code: Any = nbformat.v4  # has no type information
        # Sockets in a folder of its own: a free port that is chosen for a kernel may be another's when
        # it binds, and so may a name in the current folder, which is the default for sockets.
        config = Config({"KernelManager": {"transport": "ipc", "ip": f"{folder}/kernel"}})
        super().__init__(
            code.new_notebook(cells=[*map(code.new_code_cell, cells)]),
            config=config,
            startup_timeout=START_S,
        )
        self.shown: list[dict[str, str]] = []

    def process_message(self, msg: dict[str, Any], cell: Any, cell_index: int) -> Any:
        """Keep what a message shows."""
        content = msg["content"]
        if msg["msg_type"] == "stream":
            self.shown.append({content["name"]: content["text"]})
        elif "data" in content:
            self.shown.append(content["data"])
        return super().process_message(msg, cell, cell_index)


def run(*cells: str) -> Notebook:
    with TemporaryDirectory() as folder:
        notebook = Notebook(folder, *cells)
        notebook.execute()
    return notebook


def echo(visit: Visit) -> None:
    arrays = safetensors.numpy.load(visit.body())
    visit.answer(200, safetensors.numpy.save({"out": arrays["x"]}))


@pytest.mark.slow
@pytest.mark.parametrize("awaited", [False, True], ids=["blocking", "awaited"])
def test_a_large_transfer_shows_both_ways_and_leaves_nothing(awaited: bool) -> None:
    with ScriptedServer(echo) as server:
        cells = [TRANSFER.format(url=server.url, options=", progress=not " + str(awaited))]
        notebook = run(*cells, *[AWAITED.format(url=server.url)] * awaited)

    texts = [shown["text/html"] for shown in notebook.shown]
    assert any("permute up" in text for text in texts)
    assert any("permute down" in text for text in texts)
    assert any("/41.9 MB" in text for text in texts)
    (left,) = notebook.nb.cells[-1].outputs
    assert left["data"] == {"text/html": "", "text/plain": ""}


def test_a_silenced_transfer_shows_nothing() -> None:
    with ScriptedServer(echo) as server:
        notebook = run(TRANSFER.format(url=server.url, options=", progress=False"))

    assert notebook.shown == []


def test_a_job_shows_what_it_does_while_it_is_awaited_and_then_its_results() -> None:
    ended = {**DETAILS, "state": "succeeded", "cases_done": 1, "exit_class": "ok"}
    happened = streams(PROGRESS, CASE, END, seen=[], whole=True)
    scripts = (answers(DETAILS), happened, answers(ended), answers(RESULTS.to_dict()))

    with ScriptedServer(*scripts) as server:
        notebook = run(JOB.format(url=server.url))

    texts = [shown.get("text/html", "") for shown in notebook.shown]
    assert any("0/1 cases" in text and "running" in text for text in texts)
    assert notebook.nb.cells[0].outputs[0]["data"]["text/html"] == ""
    assert "<td>1.235</td>" in notebook.nb.cells[0].outputs[-1]["data"]["text/html"]


def test_the_ops_are_a_table() -> None:
    with OpsServer() as server:
        notebook = run(OPS.format(url=server.url))

    assert "<td>permute(x, dims)</td>" in notebook.nb.cells[0].outputs[0]["data"]["text/html"]
