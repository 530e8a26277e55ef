"""What the API of share links accepts. Its answers are types of `warpcall.jobs`."""

from __future__ import annotations

from typing import Annotated

from pydantic import ConfigDict, Field, StringConstraints

from warpcall_service.http.openapi_parts import Model

LONGEST_S = 10 * 365 * 86_400.0


class ShareRequest(Model):
    """A share link to a job, or to its comparison with the job `other`.

    `expires_s` is in seconds from now. Without it, the link is valid until it is revoked.
    """

    model_config = ConfigDict(extra="forbid", allow_inf_nan=False)

    other: Annotated[str, StringConstraints(min_length=1, max_length=64)] | None = None
    expires_s: Annotated[float, Field(gt=0, le=LONGEST_S)] | None = None
