"""Calls as users write them, for the type checker: nothing here runs.

mypy checks this file with all others (`make check`). test_types.py removes the comments that ignore
an error, and expects mypy and pyright to find an error in each of these lines, and no others.
"""

from __future__ import annotations

from typing import Any, assert_type

import numpy as np
import numpy.typing as npt
import torch

from warpcall import (
    Answer,
    AsyncClient,
    Client,
    CompileReport,
    Job,
    JobPreview,
    JobRequest,
    OpInfo,
    OpList,
    Results,
    StoredTensor,
)

Array = npt.NDArray[Any]


def arrays_come_back_as_they_went(gpu: Client, x: Array, t: torch.Tensor) -> None:
    assert_type(gpu.permute(x, dims=(1, 0)), Array)
    assert_type(gpu.permute(t, dims=[1, 0], timeout_s=5), torch.Tensor)
    assert_type(gpu.put(t).get(timeout_s=1.5), torch.Tensor)
    assert_type(gpu.stored.permute(t, dims=(1, 0)), StoredTensor[torch.Tensor])
    assert_type(gpu.conv_backward(x, x, x), tuple[Array, Array, Array | None])
    inputs = {"x": x}
    gpu.run("permute", **inputs, dims=(1, 0))


def methods_that_are_derived_have_the_types_of_the_awaited_ones(gpu: Client, x: Array) -> None:
    assert_type(gpu.call("permute", {"x": x}, {"dims": [1, 0]}), Answer[Array])
    assert_type(gpu.explain("permute", {"shape": [2, 2]}, gpu="sm_80"), CompileReport)
    assert_type(gpu.close(), None)
    assert_type(gpu.jobs.export("j1", form="json"), bytes)
    assert_type(gpu.jobs.preview("permute", precision="quick"), JobPreview)


async def awaited_calls_have_the_same_types(gpu: AsyncClient, t: torch.Tensor) -> None:
    assert_type(await gpu.masked_softmax(t, causal=True), torch.Tensor)
    assert_type(await (await gpu.put(t)).get(), torch.Tensor)


def jobs_take_what_they_declare(gpu: Client) -> None:
    sweep = {"shapes": [[64, 64]], "dtypes": [torch.bfloat16, np.float32, "fp16"]}
    request = JobRequest("permute", precision="quick", sweep=sweep)
    assert_type(gpu.jobs.submit(request, priority="low"), Job)
    assert_type(gpu.jobs.preview(request), JobPreview)
    job = gpu.jobs.submit("permute", precision="quick", sweep=sweep)
    assert_type(job, Job)
    assert_type(gpu.ops(), OpList)
    assert_type(gpu.op("permute"), OpInfo)
    assert_type(job.wait(), Results)
    assert_type(job.results().to_rows(), list[dict[str, Any]])


def what_is_wrong_is_found(gpu: Client, x: Array) -> None:
    gpu.permute(x)  # type: ignore[call-arg]
    gpu.permute(x, dims="1,0")  # type: ignore[arg-type]
    gpu.permute({1, 2}, dims=(0,))  # type: ignore[type-var]
    gpu.masked_softmax(x, causal="yes")  # type: ignore[arg-type]
    gpu.jobs.submit("permute", precision="fast")  # type: ignore[arg-type]
    gpu.jobs.submit("permute", priority="urgent")  # type: ignore[arg-type]
    gpu.jobs.submit("permute", presision="quick")  # type: ignore[call-arg]
    gpu.jobs.preview("permute", sweep=["F32"])  # type: ignore[arg-type]
    JobRequest("permute", precision="fast")  # type: ignore[arg-type]
    JobRequest("permute", "quick")  # type: ignore[call-arg]
    gpu.jobs.export("j1", "xlsx")  # type: ignore[arg-type]
    gpu.jobs.history()  # type: ignore[call-arg]
    gpu.jobs.board("permute", case=1)  # type: ignore[arg-type]
    gpu.problems.get("ann/row-norm", verson="1")  # type: ignore[call-arg]
    gpu.monitors.add("permute", every_s="1h")  # type: ignore[arg-type]
    gpu.jobs.list(state="done")  # type: ignore[arg-type]
    Client(timeout="5")  # type: ignore[call-arg]
