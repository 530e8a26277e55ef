"""Has uploaded sources checked in processes of their own, some at a time."""

from __future__ import annotations

import json
import logging
from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Any

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from pydantic import ValidationError

from warpcall.errors import InvalidInput, Unavailable
from warpcall_service.lanes.user_admission import UserAdmission
from warpcall_service.runs.messages import CheckRequest
from warpcall_service.runs.one_shot import NotStarted, OneShotError, run_sandboxed
from warpcall_service.settings import Settings
from warpcall_service.uploads.database import NewVersion
from warpcall_service.uploads.models import CheckAnswer

MODULE = "warpcall_service.worker.upload_check"
MAX_WAITING = 8  # checks of one user, besides the one that runs
MAX_ANSWER_BYTES = 16 << 10
RETRY_AFTER_S = 30.0

log = logging.getLogger("warpcall.uploads")


class UploadChecks:
    """Checks uploaded sources: one of each user at a time, and `upload_checks` in all."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._admission = UserAdmission(
            "checks of uploads", settings.upload_checks, MAX_WAITING, settings.call_timeout_s
        )
        self._ended: Counter[str] = Counter()

    async def check(self, user: str, op: Mapping[str, Any], new: NewVersion) -> str:
        """Check a source, and return the first line of its function's docstring.

        Args:
            op: the op's declaration, from `Op.describe`.

        Raises:
            InvalidInput: the source cannot be used; the message names the line.
            Busy: the user has too many checks that are not finished, or it waited too long.
            Unavailable: no process can be started.
        """
        async with self._admission.admitted(user):
            outcome = "failed"
            try:
                answer = await self._answer(op, new)
                outcome = "refused" if answer.doc is None else "accepted"
            finally:
                self._ended[outcome] += 1
        if answer.doc is None:
            raise InvalidInput(
                f"{answer.field}: {_one_line(answer.error or 'it was refused')}", field=answer.field
            )
        return _one_line(answer.doc)

    def metrics(self) -> Iterable[Metric]:
        """The checks so far, as Prometheus metrics."""
        ended = CounterMetricFamily(
            "warpcall_upload_checks",
            "Checks of uploaded sources that have ended, by outcome: accepted, refused, or failed "
            "(no process could be started)",
            labels=["outcome"],
        )
        for outcome, number in self._ended.items():
            ended.add_metric([outcome], number)
        unfinished = GaugeMetricFamily(
            "warpcall_upload_checks_unfinished", "Checks of uploaded sources that run or wait"
        )
        unfinished.add_metric([], self._admission.count)
        return ended, unfinished

    async def _answer(self, op: Mapping[str, Any], new: NewVersion) -> CheckAnswer:
        limit_s = self._settings.upload_check_s
        inputs = op["inputs"]
        request: CheckRequest = {
            "op": new.op,
            "function": new.function,
            "source": new.source,
            "inputs": [one["name"] for one in inputs if not one["optional"]],
            "optional_inputs": [one["name"] for one in inputs if one["optional"]],
            "params": [one["name"] for one in op["params"]],
            "limit_s": limit_s,
        }
        # Starting the process and importing torch takes as long as the start of a worker.
        whole_s = self._settings.start_timeout_s + limit_s
        try:
            text = await run_sandboxed(
                self._settings, MODULE, json.dumps(request).encode(), whole_s, MAX_ANSWER_BYTES
            )
            return CheckAnswer.model_validate_json(text)
        except NotStarted as error:
            log.error("an upload cannot be checked: %s", error)
            raise Unavailable(
                "uploads cannot be checked at present", retry_after_s=RETRY_AFTER_S
            ) from None
        except OneShotError as error:
            return CheckAnswer(
                error=f"it cannot be checked: {error}. Its import must not end the process, and "
                f"must take at most {limit_s:g} s"
            )
        except ValidationError:
            return CheckAnswer(error="it cannot be checked: its process gave no valid answer")


def _one_line(text: str) -> str:
    """Text that a process sent, with spaces for all characters that are not printable."""
    return "".join(c if c.isprintable() else " " for c in text)
