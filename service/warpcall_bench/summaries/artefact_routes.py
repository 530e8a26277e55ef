"""The routes of artefacts: list those of a job, download and delete one."""

from __future__ import annotations

import re
from typing import Annotated

from fastapi import Request, Response
from pydantic import StringConstraints
from sqlalchemy.orm import Session
from starlette import responses

from warpcall.artefacts import ArtefactList
from warpcall.errors import Forbidden, InvalidInput, NodeGone, NotFound, OnOtherNode, Unavailable
from warpcall_bench.artefacts import database
from warpcall_bench.artefacts.service import Artefacts
from warpcall_bench.artefacts.tables import ArtefactRow
from warpcall_bench.jobs import submissions
from warpcall_bench.jobs.routes import JobId
from warpcall_bench.jobs.service import JobService
from warpcall_service.formats.payloads import answered
from warpcall_service.http.caller import CurrentCaller, needs
from warpcall_service.http.openapi_parts import BINARY, problem_responses
from warpcall_service.http.problems import RangeNotSatisfiable
from warpcall_service.http.router import Router
from warpcall_service.identity import Caller
from warpcall_service.text import brief

ArtefactName = Annotated[str, StringConstraints(min_length=1, max_length=128)]
UNSAFE = re.compile(r"[^A-Za-z0-9._-]")
TAG = re.compile(r'(?:W/)?("[^"]*")')


class ArtefactFile(responses.FileResponse):
    """A file, or the range of it that the headers Range and If-Range ask for (RFC 9110)."""

    chunk_size = 512 << 10
    max_ranges = 1  # several are answered with the whole file

    @classmethod
    def _parse_range_header(cls, http_range: str, file_size: int) -> list[tuple[int, int]]:
        """The range; none if it is not understood: a server may ignore such a header.

        Raises:
            RangeNotSatisfiable: the range begins behind the end of the file.
        """
        try:
            return super()._parse_range_header(http_range, file_size)
        except responses.MalformedRangeHeader:
            return []
        except responses.RangeNotSatisfiable:
            raise RangeNotSatisfiable(brief(http_range), file_size) from None


def artefact_routes(jobs: JobService, artefacts: Artefacts) -> Router:
    """The routes of artefacts. Whoever may read a job may read its artefacts."""
    router = Router(prefix="/v1/jobs/{id}/artefacts", tags=["jobs"])
    lost = problem_responses([NotFound, InvalidInput, Unavailable])

    @router.get("", response_model=ArtefactList, responses=lost)
    async def list_artefacts(id: JobId, caller: CurrentCaller) -> Response:
        """The files that belong to a job, such as profiles, and why some could not be stored."""
        found = await jobs.read(caller, _listed, caller, id)
        return answered(found)

    @router.head("/{name}", include_in_schema=False)
    @router.get(
        "/{name}",
        response_class=Response,
        responses={
            200: {"content": {"application/octet-stream": {"schema": BINARY}}},
            206: {"description": "The bytes that the Range header asks for"},
            304: {"description": "The file is still the one of the If-None-Match header"},
            **lost,
            **problem_responses([OnOtherNode, NodeGone, RangeNotSatisfiable]),
        },
    )
    async def get_artefact(
        request: Request, id: JobId, name: ArtefactName, caller: CurrentCaller
    ) -> Response:
        """The file of an artefact, or one range of its bytes. Its ETag is its SHA-256.

        The answer is 307 with the address of the server that has the file if that is another one,
        and 410 if that server is gone. `HEAD` is answered with the same headers and no body.
        """
        row = await jobs.read(caller, _found, caller, id, name)
        path, status = await artefacts.find(row)
        tag = f'"{row.sha256}"'
        headers = {
            "etag": tag,
            "cache-control": "private, no-cache",
            # For a reader who opens the saved file by the server's address all the same.
            "content-security-policy": "default-src 'none'; sandbox",
        }
        known = request.headers.get("if-none-match", "")
        if known.strip() == "*" or tag in TAG.findall(known):
            return Response(status_code=304, headers=headers)
        return ArtefactFile(
            path,
            headers=headers,
            media_type=row.media_type,
            filename=UNSAFE.sub("-", row.name),
            stat_result=status,
        )

    @router.delete(
        "/{name}",
        status_code=204,
        responses={**lost, **problem_responses([Forbidden])},
        **needs("bench"),
    )
    async def delete_artefact(id: JobId, name: ArtefactName, caller: CurrentCaller) -> Response:
        """Delete an artefact, or its error. Only the job's user and administrators may."""
        row = await jobs.write(lambda session: _deleted(session, caller, id, name))
        await artefacts.remove_file(row)
        return Response(status_code=204)

    return router


def _listed(session: Session, caller: Caller, job_id: str) -> ArtefactList:
    job = submissions.find(session, caller, job_id, any_kind=True)
    return ArtefactList(artefacts=list(map(database.described, database.of_job(session, job))))


def _found(session: Session, caller: Caller, job_id: str, name: str) -> ArtefactRow:
    job = submissions.find(session, caller, job_id, any_kind=True)
    return database.find(session, job, name)


def _deleted(session: Session, caller: Caller, job_id: str, name: str) -> ArtefactRow:
    job = submissions.find_own(session, caller, job_id, any_kind=True)
    row = database.find(session, job, name)
    database.delete(session, row)
    return row
