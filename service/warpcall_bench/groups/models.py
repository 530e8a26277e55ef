"""What the groups API accepts, as models."""

from __future__ import annotations

import hashlib
import json
from typing import Annotated, Self

from pydantic import AfterValidator, ConfigDict, Field, model_validator

from warpcall.groups import FEWEST_GPUS, MOST_GPUS
from warpcall_bench.jobs.models import GpuModel, JobRequest
from warpcall_bench.jobs.placement import words_of
from warpcall_bench.jobs.submissions import sha256_of
from warpcall_service.http.openapi_parts import Model


def each_once(gpus: list[str]) -> list[str]:
    """The models themselves, if each is named once."""
    if len({words_of(gpu) for gpu in gpus}) < len(gpus):
        raise ValueError("each model must be named once")
    return gpus


class GroupRequest(Model):
    """The same job on several models of a GPU.

    `gpus` names 2 to 8 models, as `gpu` of a job does, and `job` is a job without `gpu`. Each model
    has a job of its own, which waits and runs by itself. One that has measured the same before is
    taken in place of a new one, unless `job.fresh` is true.
    """

    model_config = ConfigDict(extra="forbid")

    gpus: Annotated[
        list[GpuModel],
        Field(min_length=FEWEST_GPUS, max_length=MOST_GPUS, fail_fast=True),
        AfterValidator(each_once),
    ]
    job: JobRequest

    @model_validator(mode="after")
    def _check(self) -> Self:
        if self.job.gpu is not None:
            raise ValueError("job must have no gpu: gpus has the models")
        return self

    def parts(self) -> list[JobRequest]:
        """The request of each part."""
        return [self.job.model_copy(update={"gpu": gpu}) for gpu in self.gpus]

    def sha256(self) -> str:
        """Hash of the request. A repeated Idempotency-Key must come with the same."""
        asked = json.dumps(["group", self.gpus, sha256_of(self.job)])
        return hashlib.sha256(asked.encode()).hexdigest()
