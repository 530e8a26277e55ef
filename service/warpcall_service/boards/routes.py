"""The route of boards."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Query, Response
from pydantic import StringConstraints

from warpcall.errors import InvalidInput, Unavailable
from warpcall.jobs.results import Board
from warpcall_service.boards.board import board
from warpcall_service.formats.media_types import JSON
from warpcall_service.formats.payloads import to_json
from warpcall_service.http.caller import CurrentCaller
from warpcall_service.http.openapi_parts import Text, problem_responses
from warpcall_service.jobs.models import CaseKey, OpName, without_version
from warpcall_service.jobs.service import JobService

DeviceName = Annotated[Text, StringConstraints(min_length=1, max_length=255)]


def boards(jobs: JobService) -> APIRouter:
    """The route that says who leads."""
    router = APIRouter(prefix="/v1/board", tags=["jobs"])

    @router.get("", response_model=Board, responses=problem_responses([InvalidInput, Unavailable]))
    async def show_board(
        caller: CurrentCaller,
        op: OpName,
        device: Annotated[
            DeviceName | None,
            Query(description="Name of a device; by default the one that measured the op last"),
        ] = None,
        case: Annotated[
            CaseKey | None,
            Query(description="Key of one case, which is then shown with the steps to its best"),
        ] = None,
    ) -> Response:
        """The best valid result of each implementation in each case of an op on a device.

        The latest 500 jobs of the op on that device count that the caller may read.
        """
        name = without_version(op)
        found = await jobs.read(caller, board, caller, name, device or "", case or "")
        return Response(to_json(found), media_type=JSON)

    return router
