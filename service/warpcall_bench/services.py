"""The services of the benchmark platform, and what they add to a running server."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable

from fastapi import APIRouter, Request, Response
from prometheus_client.core import Metric

from warpcall.errors import Problem
from warpcall.monitors import MonitorNotification
from warpcall_bench.artefacts.service import Artefacts
from warpcall_bench.compile_reports.models import CompileRequest
from warpcall_bench.compile_reports.routes import compile_reports
from warpcall_bench.compile_reports.service import CompileReports
from warpcall_bench.evaluations import routes as evaluation_routes
from warpcall_bench.evaluations.batches import Batches
from warpcall_bench.evaluations.models import BatchRequest, EvaluationRequest
from warpcall_bench.evaluations.service import Evaluations
from warpcall_bench.forms.routes import forms
from warpcall_bench.groups.models import GroupRequest
from warpcall_bench.groups.routes import groups as group_routes
from warpcall_bench.groups.service import GroupService
from warpcall_bench.jobs import queue
from warpcall_bench.jobs import routes as job_routes
from warpcall_bench.jobs.models import JobChange, JobRequest, ScratchRequest
from warpcall_bench.jobs.service import JobService
from warpcall_bench.monitors import routes as monitor_routes
from warpcall_bench.monitors import webhooks
from warpcall_bench.monitors.models import MonitorChange, MonitorRequest
from warpcall_bench.monitors.service import MonitorService
from warpcall_bench.pages.login import login_location
from warpcall_bench.pages.routes import pages
from warpcall_bench.pages.view import problem_page, wants_page
from warpcall_bench.retention import Retention
from warpcall_bench.runs.operator_modules import OperatorModules
from warpcall_bench.runs.sandbox import Sandbox
from warpcall_bench.settings import BenchSettings
from warpcall_bench.shares import routes as share_routes
from warpcall_bench.shares.models import ShareRequest
from warpcall_bench.shares.service import ShareService
from warpcall_bench.summaries import routes as summary_routes
from warpcall_bench.summaries.artefact_routes import artefact_routes
from warpcall_bench.summaries.quota_use import quota_use
from warpcall_bench.uploads import routes as upload_routes
from warpcall_bench.uploads.checks import Checks
from warpcall_bench.uploads.models import MissingFilesRequest, ProblemUpload, UploadRequest
from warpcall_bench.uploads.service import UploadService
from warpcall_bench.verifications.models import VerificationRequest
from warpcall_bench.verifications.routes import verifications
from warpcall_bench.verifications.service import Verifications
from warpcall_service.extension import Core, Parts

# Operations refer to these by name in `openapi_extra`, where FastAPI does not see them.
SCHEMAS = (
    JobChange,
    CompileRequest,
    EvaluationRequest,
    BatchRequest,
    JobRequest,
    ScratchRequest,
    GroupRequest,
    MonitorChange,
    MonitorRequest,
    ShareRequest,
    UploadRequest,
    MissingFilesRequest,
    VerificationRequest,
    ProblemUpload,
    MonitorNotification,
)


class Services:
    """The services. `start` starts their background tasks, `stop` ends them.

    Attributes:
        jobs: accepts benchmark jobs, and runs them.
        monitors: repeats measurements.
    """

    def __init__(self, core: Core) -> None:
        settings, engine, store = core.settings, core.engine, core.store
        assert isinstance(settings, BenchSettings)  # as `Extension.settings` says
        self._settings = settings
        self._core = core
        self._modules = OperatorModules(settings)
        self._sandbox = Sandbox(settings)
        self._watching: asyncio.Task[None] | None = None
        self._checks = Checks(settings)
        self._artefacts = Artefacts(settings, store, core.nodes, core.accounts.quotas)
        self.jobs = JobService(
            *(settings, engine, store, self._modules, self._sandbox, self._checks),
            *(core.accounts, core.nodes, self._artefacts, core.traces),
        )
        self._groups = GroupService(self.jobs, core.accounts.quotas)
        self.monitors = MonitorService(settings, self.jobs, core.accounts.quotas)
        self._uploads = UploadService(
            *(settings, engine, store, self._modules, self._sandbox, self._checks),
            core.accounts.quotas,
        )
        self._reports = CompileReports(settings, engine, store, self._sandbox, self._checks)
        self._evaluations = Evaluations(self.jobs, self._uploads, core.stopping)
        self._verifications = Verifications(
            *(settings, engine, store, self._sandbox, self._checks), self._has_gpu
        )
        self._batches = Batches(
            settings, self.jobs, self._uploads, self._evaluations, core.stopping
        )
        self._shares = ShareService(self.jobs, core.accounts)
        self._retention = Retention(settings, store)

    def start(self) -> None:
        """Start the background tasks in the running event loop."""
        self._modules.start()
        self._watching = asyncio.create_task(self._sandbox.watch())
        self.jobs.start()
        self._artefacts.start()
        self.monitors.start()
        self._retention.start()

    async def stop(self) -> None:
        """Put the jobs that run back into the queue, and end everything."""
        if self._watching is not None:
            self._watching.cancel()
            await asyncio.wait((self._watching,))
        await self._batches.stop()
        self._uploads.close()
        await self._retention.stop()
        await self.monitors.stop()
        self._reports.close()
        self._verifications.close()
        await self._checks.stop()
        await self.jobs.stop()
        await self._artefacts.stop()
        await self._modules.stop()

    def parts(self) -> Parts:
        """What the services add to the server."""
        return Parts(
            routers=self._routers(),
            schemas=SCHEMAS,
            webhooks=webhooks.OPENAPI,
            metrics=self._metrics,
            uploads=lambda: self._sandbox.status,
            count_jobs=queue.counts,
            quota_use=quota_use,
            artefact_bytes=lambda: self._artefacts.nbytes,
            problem_page=_problem_page,
            login_location=login_location,
        )

    def _routers(self) -> list[APIRouter]:
        core, settings, engine = self._core, self._settings, self._core.engine
        jobs, uploads = self.jobs, self._uploads
        return [
            job_routes.jobs(jobs, core.stopping),
            job_routes.scratch_runs(settings, jobs),
            group_routes(self._groups, jobs),
            evaluation_routes.evaluations(settings, self._evaluations, self._batches, jobs),
            summary_routes.summaries(jobs),
            artefact_routes(jobs, self._artefacts),
            share_routes.shares(self._shares, jobs),
            monitor_routes.monitors(self.monitors),
            upload_routes.implementations(settings, uploads),
            upload_routes.files(settings, uploads),
            upload_routes.problems(settings, uploads),
            compile_reports(settings, self._reports),
            verifications(settings, self._verifications),
            pages(
                *(engine, jobs, self._groups, uploads, self._shares, core.nodes, self._artefacts),
                lambda: self._sandbox.status,
                "" if settings.trace_viewer == "none" else settings.trace_viewer,
            ),
            forms(
                *(core, settings, jobs, self._groups, uploads),
                *(self._shares, self.monitors, self._reports),
            ),
        ]

    def _has_gpu(self) -> bool:
        """Whether one of the servers that share the database has a GPU."""
        nodes = self._core.nodes.nodes().nodes
        return any(lane.name != "cpu" for node in nodes for lane in node.lanes)

    def _metrics(self) -> Iterable[Metric]:
        return [
            *self.jobs.scheduler.metrics(),
            *self._checks.metrics(),
            *self.monitors.metrics(),
            *self._artefacts.metrics(),
        ]


def _problem_page(request: Request, problem: Problem, request_id: str) -> Response | None:
    return problem_page(request, problem, request_id) if wants_page(request) else None
