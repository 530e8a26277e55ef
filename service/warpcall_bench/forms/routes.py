"""All routes of this folder."""

from __future__ import annotations

from fastapi import APIRouter

from warpcall_bench.compile_reports.service import CompileReports
from warpcall_bench.forms import account, admin, call, compiled, health, new_monitor
from warpcall_bench.forms import jobs as job_forms
from warpcall_bench.forms import monitors as monitor_forms
from warpcall_bench.forms import shares as share_forms
from warpcall_bench.forms import uploads as upload_forms
from warpcall_bench.forms.ops import Ops
from warpcall_bench.groups.service import GroupService
from warpcall_bench.jobs.service import JobService
from warpcall_bench.monitors.service import MonitorService
from warpcall_bench.settings import BenchSettings
from warpcall_bench.shares.service import ShareService
from warpcall_bench.uploads.service import UploadService
from warpcall_service.extension import Core


def forms(
    core: Core,
    settings: BenchSettings,
    jobs: JobService,
    groups: GroupService,
    uploads: UploadService,
    shares: ShareService,
    monitors: MonitorService,
    reports: CompileReports,
) -> APIRouter:
    """The pages with forms, and what they post to."""
    router = APIRouter(include_in_schema=False)
    ops = Ops(core.engine, uploads)
    for part in (
        job_forms.routes(settings, ops, jobs, groups, uploads),
        upload_forms.routes(settings, ops, uploads),
        admin.routes(core.accounts, jobs),
        health.routes(core.report),
        account.routes(core.accounts, jobs),
        call.routes(settings, core.calls, ops),
        share_forms.routes(jobs, shares),
        new_monitor.routes(settings, jobs, monitors),  # before /monitors/{id}
        monitor_forms.routes(jobs, monitors),
        compiled.routes(ops, uploads, reports),
    ):
        router.routes.extend(part.routes)
    return router
