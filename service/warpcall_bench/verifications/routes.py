"""The HTTP route of verifications."""

from __future__ import annotations

from fastapi import Request, Response

from warpcall.verifications import Verification
from warpcall.wire import VERIFICATIONS_PATH
from warpcall_bench.compile_reports.routes import PROBLEMS
from warpcall_bench.json_body import check_structure, read_model
from warpcall_bench.settings import BenchSettings
from warpcall_bench.uploads.routes import most_bytes
from warpcall_bench.verifications.models import VerificationRequest
from warpcall_bench.verifications.service import Verifications
from warpcall_service.formats.media_types import JSON
from warpcall_service.formats.payloads import answered
from warpcall_service.http.caller import CurrentCaller, needs
from warpcall_service.http.openapi_parts import problem_responses, ref
from warpcall_service.http.router import Router


def verifications(settings: BenchSettings, service: Verifications) -> Router:
    """The route that verifies kernels."""
    router = Router(tags=["implementations"])
    uploading = needs("upload")
    body = {"required": True, "content": {JSON: {"schema": ref(VerificationRequest)}}}

    @router.post(
        VERIFICATIONS_PATH,
        response_model=Verification,
        responses=problem_responses(PROBLEMS),
        dependencies=uploading["dependencies"],
        openapi_extra={**uploading["openapi_extra"], "requestBody": body},
    )
    async def verify(request: Request, caller: CurrentCaller) -> Response:
        """Whether kernels can be timed as verified ones, and what a call of them launches.

        The source is compiled in the sandbox, and what one call of each case launches is described and
        checked as a job does. No GPU is needed.
        """
        most = most_bytes(settings)
        what = "the JSON of a verification"
        wanted = await read_model(request, VerificationRequest, most, what, check_structure)
        return answered(await service.make(caller, wanted))

    return router
