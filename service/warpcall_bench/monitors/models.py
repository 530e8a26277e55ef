"""What the API of monitors accepts. Its answers are types of `warpcall.monitors`."""

from __future__ import annotations

from typing import Annotated

from pydantic import ConfigDict, Field, StringConstraints

from warpcall.errors import InvalidInput
from warpcall.monitors import LEAST
from warpcall_bench.jobs.models import CHECK, JobRequest
from warpcall_service.http.openapi_parts import Model, Text

LONGEST_S = 30 * 86_400
SMALLEST_LEAST, LARGEST_LEAST = 0.005, 1  # shares of the time before a step
NOT_FOR_MONITORS = {
    "priority": "the jobs of a monitor run after all others",
    "fresh": "each run of a monitor measures",
    "profile": "each run would store one",
    "sanitize": "each run would repeat it",
    "profile_options": "each run would store a profile",
}


class MonitorRequest(Model):
    """A job that the server repeats every `every_s` seconds, for the first time at once.

    `least` is the smallest step to report, as a share of the time before it. `notify` is a URL that
    the server calls for each step; its host must be one of those that the operator lists.
    """

    model_config = ConfigDict(extra="forbid", allow_inf_nan=False)

    job: JobRequest
    every_s: Annotated[int, Field(ge=1, le=LONGEST_S)]
    least: Annotated[float, Field(ge=SMALLEST_LEAST, le=LARGEST_LEAST)] = LEAST
    notify: Annotated[Text, StringConstraints(min_length=1, max_length=2000)] | None = None

    def check_form(self) -> None:
        """Check what follows from the op, as `JobRequest.check_form`.

        Raises:
            InvalidInput: the job cannot be repeated; the error names the field.
        """
        for name, why in NOT_FOR_MONITORS.items():
            if name in self.job.model_fields_set:
                raise InvalidInput(f"job.{name}: must not be given, {why}", field=f"job.{name}")
        if self.job.precision == CHECK:
            raise InvalidInput(
                f"job.precision: must not be {CHECK}, a monitor finds changes of times",
                field="job.precision",
            )
        self.job.check_form()


class MonitorChange(Model):
    """What can be changed of a monitor. A monitor that is resumed measures at once."""

    model_config = ConfigDict(extra="forbid")

    paused: bool
