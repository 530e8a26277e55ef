"""A process that records launch plans, as tests ask it: `python -m tests.kernels.verified.recording FD`.

It is a process of its own, since Triton interprets kernels in the process of the tests.
"""

from __future__ import annotations

import importlib.util
import os
import socket
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from tests.kernels.execution.thread_peer import UnstoppedPeer
from warpcall_kernels.execution.inputs import BufferLayout, layout_of
from warpcall_kernels.execution.process import Deadlines, RemoteProcess
from warpcall_kernels.execution.spec import CODES
from warpcall_kernels.execution.verified import PLAN_BYTES, read_plan
from warpcall_kernels.op.declaration import Meta
from warpcall_kernels.verified.inspection import inspect
from warpcall_kernels.verified.plan import Plan

ROOT = Path(__file__).parents[3]
SOURCES = Path(__file__).with_name("sources")
HEAD = "import torch\nimport triton\nimport triton.language as tl\n"
LIMIT_S = 120.0


class Peer(UnstoppedPeer):
    """The process as `RemoteProcess` takes it."""

    def __init__(self) -> None:
        self.sock, theirs = socket.socketpair()
        environment = {k: v for k, v in os.environ.items() if k != "TRITON_INTERPRET"}
        with theirs:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "tests.kernels.verified.recording", str(theirs.fileno())],
                pass_fds=[theirs.fileno()],
                cwd=ROOT,
                env=environment,
            )
        self.pid = self._process.pid

    def end(self) -> str:
        """End the process."""
        self._process.kill()
        self._process.wait()
        return ""


class Recording:
    """Asks one process for plans of several sources, which it imports one after the other."""

    def __init__(self) -> None:
        self._process = RemoteProcess(Peer, {"source": HEAD, "function": ""})

    def load(self, source: str, function: str, **more: Any) -> None:
        """Import a source."""
        self._process.begin(Deadlines())
        data = {"source": source, "function": function, **more}
        self._process.ask("load", LIMIT_S, "the import", first=lambda _: LIMIT_S, data=data)

    def plan(
        self,
        inputs: Mapping[str, torch.Tensor | BufferLayout],
        outputs: Sequence[Meta],
        params: Mapping[str, Any] | None = None,
        gpu: str = "sm_90",
    ) -> Plan:
        """The plan of a case. Raises RemoteFailed, as a job does."""
        layouts = {
            name: one if isinstance(one, BufferLayout) else layout_of(one)
            for name, one in inputs.items()
        }
        metas = {f"out{number}": one for number, one in enumerate(outputs)}
        answer = self._process.ask(
            *("record", LIMIT_S, "the compilation"),
            most_bytes=PLAN_BYTES,
            gpu=gpu,
            params=dict(params or {}),
            layouts={name: one.to_json() for name, one in layouts.items()},
            outputs={name: [list(m.shape), CODES[m.dtype]] for name, m in metas.items()},
        )
        plan = read_plan(answer["plan"], layouts, metas)
        inspect(plan)
        return plan

    def ask(self, do: str, **more: Any) -> dict[str, Any]:
        """Any other request."""
        return self._process.ask(do, LIMIT_S, do, **more)

    def end(self) -> None:
        """End the process."""
        self._process.end()


def empty(*shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    """A tensor without memory, for its layout."""
    return torch.empty(shape, dtype=dtype, device="meta")


def meta(*shape: int, dtype: torch.dtype = torch.float32) -> Meta:
    """Shape and dtype of an output."""
    return Meta(shape, dtype)


def main() -> None:
    """Answer requests, with a source imported for each `load`."""
    from warpcall_kernels.execution.record_server import Recorded, serve_recorder

    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as folder:

        def load(data: dict[str, Any]) -> Recorded:
            if data.get("language") == "cuda":
                return Recorded(
                    language="cuda",
                    source=data["source"],
                    declaration=data["declaration"],
                    optional=["bias"],
                )
            file = Path(folder, f"{len(list(Path(folder).iterdir()))}", "mine.py")
            file.parent.mkdir()
            file.write_text(data["source"])
            spec = importlib.util.spec_from_file_location("uploaded", file)
            assert spec is not None
            assert spec.loader is not None
            module = sys.modules["uploaded"] = importlib.util.module_from_spec(spec)
            try:
                spec.loader.exec_module(module)
            except Exception as error:  # noqa: BLE001  # as programs of the service do
                return Recorded(error=error)
            function = getattr(module, data["function"], None)
            return Recorded(function, None, module, declaration=data.get("declaration"))

        with socket.socket(fileno=int(sys.argv[1])) as sock:
            serve_recorder(sock, load)


if __name__ == "__main__":
    main()
