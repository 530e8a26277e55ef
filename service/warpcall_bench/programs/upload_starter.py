"""The processes of one uploaded implementation in a job: started ahead, and used to measure it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from warpcall_bench.runs.messages import RECORD_MODULE, WITHOUT_GPU, Task, Upload
from warpcall_bench.runs.peers import UPLOAD_MODULE, PeerStarter, Reaper

if TYPE_CHECKING:
    from warpcall_kernels.measuring import RemoteProcess


class UploadStarter:
    """Starts the processes of one upload: one, or two if it is verified.

    A verified upload has a recorder, which runs the author's code without a GPU, and a process that
    carries out its launch plans, which runs our code only.

    Attributes:
        name: of the upload in its job.
        calls_here: whether it can be called on the job's device. Verified kernels run on a GPU only.
    """

    def __init__(self, reaper: Reaper, upload: Upload, task: Task) -> None:
        self._upload = upload
        self._device = task["device"]
        verified = upload.get("verified", False)
        self.name = upload["name"]
        self.calls_here = not verified or self._device != "cpu"
        # What the process that makes the calls prints is not the author's, and goes to the log.
        self._calls = PeerStarter(reaper, UPLOAD_MODULE, prints=not verified)
        self._recorder = PeerStarter(reaper, RECORD_MODULE) if verified else None

    def start_ahead(self) -> None:
        """Start the processes; they import torch while this process does."""
        if self._recorder is not None:
            self._recorder.start_ahead()
        if self.calls_here:
            self._calls.start_ahead()

    def process(self) -> RemoteProcess:
        """What measures the upload. Call it once, after `start_ahead`."""
        from warpcall_kernels.compile.architectures import architecture_of
        from warpcall_kernels.measuring import RemoteProcess, VerifiedProcess

        if self._recorder is None:
            return RemoteProcess(self._calls, {"upload": self._upload})
        gpu = architecture_of(self._device) if self._device != "cpu" else WITHOUT_GPU
        recorder = RemoteProcess(self._recorder, {"upload": self._upload, "gpu": gpu})
        return VerifiedProcess(self._calls, recorder, gpu, on_gpu=self.calls_here)
