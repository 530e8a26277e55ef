"""The settings of the benchmark platform: jobs, uploads, sandboxes, artefacts and monitors."""

from __future__ import annotations

import re
from typing import Literal

from pydantic import ByteSize, Field, field_validator

from warpcall_service.server_settings import MIB, Seconds
from warpcall_service.settings import Settings

WEBHOOK_PORTS = {"https": 443, "http": 80}
_WEBHOOK_HOST = re.compile(r"(?:(http)://)?([a-z0-9._-]+|\[[0-9a-f:.]+\])(?::(\d{1,5}))?")


class BenchSettings(Settings):
    """The settings of a server with the platform: those of the core, and its own."""

    job_max_cases: int = Field(1000, ge=1, description="Cases that one job may have.")
    job_wall_s: Seconds = Field(
        7200.0,
        description=(
            "Seconds that one job may run. A job that is certain to take longer is refused."
        ),
    )
    job_stall_s: Seconds = Field(
        300.0,
        description=(
            "Seconds without progress after which a job is ended. Compiling counts as no progress, "
            "and neither does a repeated report of the same phase."
        ),
    )
    job_block_s: Seconds = Field(
        10.0,
        description=(
            "Seconds for which a job may keep calls off its device at a time. An implementation "
            "whose single call takes longer cannot be timed."
        ),
    )
    job_lease_s: float = Field(
        30.0,
        ge=3,
        le=86_400,
        allow_inf_nan=False,
        description=(
            "Seconds without a heartbeat after which other servers on the same database take over "
            "a server's jobs. All of them must have the same value."
        ),
    )
    job_memory_bytes: ByteSize = Field(
        ByteSize(0),
        ge=0,
        description=(
            "Bytes of memory that the processes of one job may use together. With 0 it is half of "
            "this machine's memory."
        ),
    )
    job_modules: str = Field(
        "none",
        pattern=r"^[A-Za-z_][\w.]*(,[A-Za-z_][\w.]*)*$",
        description=(
            "Python modules, separated by commas, whose `IMPLEMENTATIONS` jobs may time. They run "
            "with the server's rights: name only your own code."
        ),
    )
    job_module_s: Seconds = Field(
        60.0,
        description=(
            "Seconds that importing one of `job_modules` may take. One that takes longer cannot be "
            "used; other implementations can."
        ),
    )
    job_modules_readable: bool = Field(
        False,
        description=(
            "Whether the pages show the source of `job_modules` to every user. Administrators "
            "always see it."
        ),
    )
    uploads: Literal["off", "sandboxed", "trusted"] = Field(
        "off",
        description=(
            "Whether users with the role `upload` may upload Python source that jobs time, or whose "
            "op they measure. "
            "`sandboxed` runs it in a sandbox (bubblewrap) and refuses uploads where the sandbox "
            "cannot start. `trusted` runs it with the server's rights: choose that only if you "
            "trust every such user with the server's data. `off` refuses uploads. Servers that "
            "share a database must have the same value."
        ),
    )
    scratch_max_s: float = Field(
        0.0,
        ge=0,
        le=86_400,
        allow_inf_nan=False,
        description=(
            "Seconds that one scratch run may have a device: a command of a user with the role `scratch`, "
            "which runs in the sandbox and is not judged. With 0, scratch runs are refused. They also need "
            "`uploads=sandboxed`. Calls wait meanwhile. Servers that share a database must have the same value."
        ),
    )
    upload_max_bytes: ByteSize = Field(
        ByteSize(256 << 10),
        ge=1024,
        le=256 << 10,
        description="Largest source of one upload, in bytes of UTF-8: the file with the function.",
    )
    upload_max_files: int = Field(
        200,
        ge=1,
        le=1000,
        description=(
            "Files that one upload may have, such as modules and tables beside its source. With 1, "
            "only single files may be uploaded."
        ),
    )
    upload_max_tree_bytes: ByteSize = Field(
        ByteSize(4 * MIB),
        ge=1024,
        le=8 * MIB,
        description="Bytes that all files of one upload may have together.",
    )
    upload_check_s: Seconds = Field(
        10.0,
        description=(
            "Seconds that the code of an uploaded source may take when it is checked, and that of a "
            "problem when it makes the cases of a job. The time of importing torch and Triton "
            "before it does not count."
        ),
    )
    upload_call_s: Seconds = Field(
        10.0,
        description=(
            "Seconds that a call of uploaded code may take in a job, except for its first call in a "
            "case. If it takes longer, its process is killed, and the status of the implementation "
            "in this case is `timeout`."
        ),
    )
    upload_compile_s: Seconds = Field(
        60.0,
        description=(
            "Seconds that the import of an uploaded source may take in a job, and its first call in "
            "a case, which compiles. Afterwards it is killed as after `upload_call_s`."
        ),
    )
    upload_checks: int = Field(
        2,
        ge=1,
        le=256,
        description=(
            "Sources that are checked at the same time, at most one of each user; those of a batch "
            "of evaluations that one process checks count as one. Further checks wait, at most 8 of each user for at most `call_timeout_s`; the others are answered "
            "`busy`."
        ),
    )
    explain_s: Seconds = Field(
        30.0,
        description=(
            "Seconds that the code of an implementation and compiling its kernels may take in one "
            "compile report or verification. The time of importing torch and Triton before it does not count."
        ),
    )
    explain_cache_bytes: ByteSize = Field(
        ByteSize(32 * MIB),
        ge=0,
        description=(
            "Bytes of memory for compile reports, which are kept compressed until others need the "
            "room. With 0 none is kept."
        ),
    )
    waiting_process_s: float = Field(
        600.0,
        ge=0,
        le=86_400,
        allow_inf_nan=False,
        description=(
            "Seconds for which processes that have imported torch wait for the next check of a source "
            "or the next job, which then starts two seconds sooner. They hold some 200 MB each, and no "
            "memory of a GPU: docs/platform.md says how many there are. With 0 none waits."
        ),
    )
    sandbox_processes: int = Field(
        2048,
        ge=64,
        le=65_536,
        description=(
            "Processes and threads that may exist in one sandbox. Torch starts some for each CPU. "
            "Uploaded code that starts more gets an error."
        ),
    )
    sandbox_tmp_bytes: ByteSize = Field(
        ByteSize(1024 * MIB),
        ge=MIB,
        description=(
            "Bytes of files in `/tmp` of one sandbox, and as many in `/dev/shm`. They are in "
            "memory. Uploaded code that writes more gets an error."
        ),
    )
    sandbox_paths: str = Field(
        "none",
        pattern=r"^(none|/[^,]+(,/[^,]+)*)$",
        description=(
            "Further files and folders that uploaded code may read, separated by commas, such as "
            "a CUDA toolkit outside of `/usr`. It sees `/usr`, Python, its packages and the "
            "folders in `LD_LIBRARY_PATH` in any case."
        ),
    )
    user_max_uploads: int = Field(
        1000,
        ge=0,
        description=(
            "Versions of uploaded source that one user may have stored. A further upload is "
            "refused until the user deletes some."
        ),
    )
    user_max_uploaded_bytes: ByteSize = Field(
        ByteSize(64 * MIB),
        ge=0,
        description=(
            "Bytes of uploaded source that one user may have stored. A further upload is refused "
            "until the user deletes some."
        ),
    )
    jobs_private: bool = Field(
        False,
        description=(
            "Whether jobs that do not say so themselves are private. Only their user and "
            "administrators can read private jobs; every user can read the others."
        ),
    )
    job_days: float = Field(
        0.0,
        ge=0,
        le=36_500,
        allow_inf_nan=False,
        description=(
            "Days after its end after which a job is deleted, with its results, events, artefacts and "
            "share links. Jobs that steps of monitors name stay. With 0 jobs are kept for ever."
        ),
    )
    event_days: float = Field(
        0.0,
        ge=0,
        le=36_500,
        allow_inf_nan=False,
        description=(
            "Days after the end of a job after which its events are deleted, except the last one. "
            "Events of progress are deleted after one day in any case. With 0 the others are kept as "
            "long as the job."
        ),
    )
    usage_days: float = Field(
        0.0,
        ge=0,
        le=36_500,
        allow_inf_nan=False,
        description=(
            "Days for which usage by day, user and op is kept. With 0 it is kept for ever."
        ),
    )
    artefact_days: float = Field(
        30.0,
        gt=0,
        le=3650,
        allow_inf_nan=False,
        description="Days after which the artefacts of a job, such as profiles, are deleted.",
    )
    ncu: str = Field(
        "auto",
        pattern=r"^(auto|none|/.+)$",
        description=(
            "Path of Nsight Compute's program `ncu`, which profiles jobs. With `auto` it is looked "
            "up in `PATH` and in `/usr/local/cuda/bin`. With `none` such profiles are refused."
        ),
    )
    compute_sanitizer: str = Field(
        "auto",
        pattern=r"^(auto|none|/.+)$",
        description=(
            "Path of NVIDIA's program `compute-sanitizer`, which checks uploads of jobs with `sanitize`. "
            "With `auto` it is looked up in `PATH` and in `/usr/local/cuda`. With `none`, or without "
            "it, such jobs say so and go on."
        ),
    )
    trace_viewer: str = Field(
        "https://ui.perfetto.dev",
        pattern=r"^(none|https?://[A-Za-z0-9.:\[\]-]+(/[A-Za-z0-9._~/-]*)?)$",
        description=(
            "URL of the Perfetto that pages open traces of `--profile torch` with, such as a copy of it "
            "in your network. With `none` pages have no button for it."
        ),
    )
    artefact_max_bytes: ByteSize = Field(
        ByteSize(16 * MIB),
        ge=1024,
        le=128 * MIB,
        description="Largest artefact of a job. A larger one is replaced by an error.",
    )
    user_max_artefact_bytes: ByteSize = Field(
        ByteSize(1024 * MIB),
        ge=0,
        description=(
            "Bytes of artefacts that one user's jobs may have stored. A further artefact is "
            "replaced by an error until the user deletes some or they expire."
        ),
    )
    user_max_jobs: int = Field(1000, ge=1, description="Unfinished jobs that one user may have.")
    user_running_jobs: int = Field(
        2, ge=1, description="Jobs of one user that may run at the same time, on different devices."
    )
    user_max_monitors: int = Field(
        20, ge=0, description="Monitors that one user may have. With 0 nobody can add one."
    )
    monitor_min_every_s: int = Field(
        3600,
        ge=1,
        le=86_400,
        description="Shortest time in seconds between two runs of a monitor that a user may ask for.",
    )
    webhook_hosts: str = Field(
        "none",
        description=(
            "Hosts that monitors may call, separated by commas, such as "
            "`hooks.example.org,10.0.0.7:8443`. A host without a port has only port 443. They are "
            "called over TLS, except for entries such as `http://10.0.0.7:8080`. With `none` no "
            "monitor can have a URL."
        ),
    )
    user_max_streams: int = Field(
        32, ge=1, description="Streams of job events that one user may have open."
    )

    @field_validator("webhook_hosts")
    @classmethod
    def _check_hosts(cls, given: str) -> str:
        _webhook_origins(given)
        return given

    @property
    def webhook_origins(self) -> frozenset[str]:
        """The entries of `webhook_hosts` with scheme and port, such as https://example.org:443."""
        return _webhook_origins(self.webhook_hosts)

    @property
    def modules(self) -> list[str]:
        """Names of the operator's modules that register implementations."""
        return [] if self.job_modules == "none" else self.job_modules.split(",")


def _webhook_origins(given: str) -> frozenset[str]:
    origins = set()
    for part in given.split(",") if given != "none" else []:
        found = _WEBHOOK_HOST.fullmatch(part.strip().lower())
        if found is None or not 0 < int(found[3] or 1) < 1 << 16:
            raise ValueError(
                "must be hosts such as hooks.example.org,10.0.0.7:8443,http://10.0.0.7:8080, or "
                f"none, got {part.strip()!r}"
            )
        scheme = found[1] or "https"
        origins.add(f"{scheme}://{found[2]}:{found[3] or WEBHOOK_PORTS[scheme]}")
    return frozenset(origins)
