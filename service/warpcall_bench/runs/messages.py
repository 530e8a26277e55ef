"""Messages between the server, a lane's worker, a job's reaper and a job's process; without torch.

A job's process gets a `JobTask` as the first frame (`lanes.messages.frame`) on its socket, and then
one `{"go": true, "block_s": ...}` each time it has requested the device, with the seconds of timed
work that a block may have. If the job gives way to another one, `{"go": false}` comes before, and the
upload processes stand still until `go` is true. It sends frames with one member each:

- `hello`: fingerprint and environment class, once torch is imported and the device is open, and
  the hash of the source that was loaded for each implementation;
- `want`: it requests the device, and waits for `go`; `release`: it returns the device;
- `odd`: what the check of an upload in the op's odd cases found, before the first `result`;
- `progress`: what the sampler does now;
- `printed`: what an upload printed in the case at `position`, in UTF-8 and base64, before its `result`;
- `result`: the sampler's whole result of the case at `position`;
- `profile`: a piece of a file of a profile, PIECE_BYTES long unless it is the `last` one, or an
  `error`;
- `ended`: the exit class and a `detail`; the last frame, also after success.

The reaper, the parent of that process, has a control socket. The server sends `stop` on it or
closes it. The reaper sends a `ReaperReport` as JSON when the job has ended.

Code of users runs in other processes below the reaper, the upload processes. The job's process has
a socket (SOCK_SEQPACKET) to the reaper, on which it requests them: a `StartUpload` with the upload
process's end of a socket pair, and that of a pipe if the job's process wants what it prints, which the
reaper answers with `UploadStarted`, or an `EndUpload`, which it answers with `UploadEnded`.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Mapping
from typing import Any, Literal, NotRequired, TypedDict

from warpcall_bench.runs.trees import SourceTree, identity

MAX_REASON_CHARS = 5000  # of what a verification says of a case, such as errors of a compiler
NO_ANSWER = "it cannot be checked: its process gave no valid answer"
REQUEST_BYTES = 4096  # the most of a message between a job's process and its reaper
PROFILE_MODULE = "warpcall_bench.programs.profile_main"  # makes profiles of code of users
RECORD_MODULE = "warpcall_bench.programs.record_main"  # compiles verified uploads, without a GPU
PIECE_BYTES = 512 << 10  # of a file of a profile, in each frame but the last
# The files of each kind of profile, in the order in which they are sent. An error takes the place of
# the last one, so that a profile is complete when it has its last file.
PROFILE_FILES: Mapping[str, tuple[str, ...]] = {
    "torch": ("kernels.json", "trace.json"),
    "ncu": ("ncu-rep", "ncu.txt"),
    "compile": ("compiled.json",),
    "memcheck": ("memcheck.txt",),
    "racecheck": ("racecheck.txt",),
}
SANITIZERS = ("memcheck", "racecheck")  # those of them that are tools of compute-sanitizer
# What uploads print in a job; a text in the place of what goes beyond it counts like any other one.
MOST_PRINTED_BYTES = 256 << 10  # in one case, in UTF-8: 80 KiB of which each byte may become three
MOST_PRINTED_OF_JOB = 4 << 20
ODD_AT_ONCE = 8  # uploads of a job that are checked in odd cases at the same time
TAG_VARIABLE = (
    "WARPCALL_JOB_TAG"  # in the environment of all processes of a job: its server, lane and job
)


class CheckedCase(TypedDict):
    """A case that a lane has checked."""

    spec: Mapping[str, Any]
    key: str
    device_bytes: int


class Checked(TypedDict):
    """A lane's reply to the check of a submission.

    Attributes:
        implementation_s: seconds for one implementation of one case at the job's precision.
        environment: the class of the machine and its software.
        kernels_sha256: hash of the kernels' code that would be measured.
        memory_bytes: the most memory that a case may need.
        sources: hash of the source of each implementation that would be measured; the server adds
            it to the lane's reply.
        problem_sha256: version of the problem that would be measured; the server adds it.
        nodes: ids of the servers that the job may run on, if it asks for one; the server adds them.
    """

    cases: list[CheckedCase]
    implementation_s: float
    environment: str
    kernels_sha256: str
    memory_bytes: int
    sources: dict[str, str]
    problem_sha256: NotRequired[str]
    nodes: NotRequired[list[str]]


Language = Literal["python", "cuda"]
WITHOUT_GPU = "sm_90"  # for which verified kernels are compiled where there is no GPU


class Verified(TypedDict):
    """What a verified upload has beside its source.

    Attributes:
        language: of the source. Only a verified upload may be in CUDA C++.
        launches: declaration of its launches, as parsed JSON; None if the recorder finds them.
    """

    language: Language
    launches: dict[str, Any] | None


def version_of(
    op: str,
    function: str,
    source: str,
    verified: Verified | None = None,
    *,
    entry: str = "",
    files: Mapping[str, str] | None = None,
) -> str:
    """The version of an uploaded implementation: a SHA-256 in hex.

    The version of a single file that is not verified is that of older servers.

    Args:
        verified: None for an upload that is not verified.
        entry, files: as in `SourceTree`; empty and None for a single file.
    """
    what: list[object] = [op, function, source]
    if verified is not None:
        what += [verified["language"], verified["launches"]]
    if entry:
        what.append(identity(entry, files or {}))
    return hashlib.sha256(json.dumps(what).encode()).hexdigest()


def problem_version(source: str) -> str:
    """The version of a problem: the SHA-256 of its source, in hex."""
    return hashlib.sha256(source.encode()).hexdigest()


class Upload(SourceTree):
    """An uploaded implementation that a job times.

    Attributes:
        name: as the job has it among its implementations, such as "ann/mine@3f2a91c0".
        function: name of the function in the source.
        verified: whether only its compiled kernels are called (`warpcall_kernels.verified`).
        language, launches: of a verified one, as in `Verified`.
    """

    name: str
    op: str
    function: str
    verified: NotRequired[bool]
    language: NotRequired[Language]
    launches: NotRequired[dict[str, Any] | None]


def version_of_upload(upload: Upload) -> str:
    """The version of an upload that a job times."""
    verified: Verified | None = None
    if upload.get("verified"):
        verified = {"language": upload["language"], "launches": upload["launches"]}
    return version_of(
        upload["op"],
        upload["function"],
        upload["source"],
        verified,
        entry=upload.get("entry", ""),
        files=upload.get("files"),
    )


class CheckRequest(SourceTree):
    """The check of an uploaded source, before it is stored.

    The answer has either `doc`, the first line of the function's docstring, or `error` and `field`,
    why the source is refused and which part of the upload is wrong.

    Attributes:
        inputs: names of the inputs that calls of the op always have.
        optional_inputs: names of its other inputs.
        params: names of its parameters.
        verified: None unless it is a verified upload.
        gpu: architecture of the GPU that the source sees, and for which CUDA C++ is compiled, such as
            "sm_90"; empty if jobs have no GPU.
        limit_s: seconds that the import may take.
    """

    op: str
    function: str
    inputs: list[str]
    optional_inputs: list[str]
    params: list[str]
    verified: Verified | None
    gpu: str
    limit_s: float


class ChecksRequest(TypedDict):
    """The check of several sources of one user.

    Attributes:
        limit_s: seconds that all of them may take together.
    """

    checks: list[CheckRequest]
    limit_s: float


class ProblemSource(TypedDict):
    """A problem on which a job is, such as "ann/row-norm"."""

    name: str
    source: str


class ProblemRequest(TypedDict):
    """The check of a problem, or of cases of a job on it; `programs.problem_check` has the answers.

    Attributes:
        name: such as "ann/row-norm", for keys of cases and for messages.
        job: None for the check of an upload; otherwise `cases` or a `sweep`, or neither for odd
            cases, `max_cases`, whether they are `timed` and `small`, the `device` and the
            `memory_bytes` that a case may have on it.
        limit_s: seconds that the import and all calls of the problem's functions may take.
    """

    name: str
    source: str
    job: Mapping[str, Any] | None
    limit_s: float


class ExplainRequest(TypedDict):
    """The compile report of an implementation in one case; `programs.explain` has the answers.

    Attributes:
        op: name of the op, also of a problem.
        problem: the problem that is the op; None for a shipped op.
        function: name of the function in the `tree`.
        tree: the files of the implementation; None for the op's own kernels.
        case: as a job's cases are written.
        gpu: the architecture, such as "sm_90".
        limit_s: seconds that the code of users and compiling may take.
        memory_bytes: the most that the inputs and outputs of the case may have.
    """

    op: str
    problem: ProblemSource | None
    function: str
    tree: SourceTree | None
    case: Mapping[str, Any]
    gpu: str
    limit_s: float
    memory_bytes: int


class VerifyRequest(SourceTree):
    """The verification of an implementation: launch plans of some cases, which are then checked.

    `programs.verify` answers with the plans, and `programs.plan_check` with what they are.

    Attributes:
        op, problem, function, gpu, limit_s: as in `ExplainRequest`.
        language: of the source.
        launches: declaration of its launches, as parsed JSON; None if they are recorded, or declared
            in the source.
        cases: as a job's cases are written.
    """

    op: str
    problem: ProblemSource | None
    function: str
    language: Language
    launches: object
    cases: list[Mapping[str, Any]]
    gpu: str
    limit_s: float


class PlanCheckRequest(TypedDict):
    """The check of what `programs.verify` has answered, by `programs.plan_check`.

    Attributes:
        op, problem, cases, gpu: of the `VerifyRequest`.
        answer: of that program, which ran code of users. Only the program that checks it parses it.
    """

    op: str
    problem: ProblemSource | None
    cases: list[Mapping[str, Any]]
    gpu: str
    answer: bytes


def plan_check_body(asked: VerifyRequest, answer: bytes) -> bytes:
    """A `PlanCheckRequest` as the content of a frame: a line of JSON, and the answer as it came."""
    head = {name: asked[name] for name in ("op", "problem", "cases", "gpu")}
    return json.dumps(head).encode() + b"\n" + answer


def read_plan_check(body: bytes) -> PlanCheckRequest:
    """The request that `plan_check_body` made."""
    head, _, answer = body.partition(b"\n")
    asked = json.loads(head)
    return {
        "op": asked["op"],
        "problem": asked["problem"],
        "cases": asked["cases"],
        "gpu": asked["gpu"],
        "answer": answer,
    }


class ModuleRequest(TypedDict):
    """The import of one of the operator's modules.

    Attributes:
        limit_s: seconds that the import may take.
    """

    module: str
    limit_s: float


class DescribedImplementation(TypedDict):
    """An implementation of a module: its name, one line of description, its ops (none: all)."""

    name: str
    doc: str
    ops: list[str]


class ModuleAnswer(TypedDict):
    """What a module provides, or why it cannot be used; `error` is empty if it can."""

    implementations: list[DescribedImplementation]
    error: str


class NcuOptions(TypedDict, total=False):
    """What Nsight Compute profiles, as `ProfileOptions` of `jobs.models` says. None means the default."""

    kernels: str | None
    launch: int | None
    sections: list[str] | None
    metrics: list[str] | None


class ProfileTask(TypedDict):
    """The profiles that a job's process makes after it has measured all cases, or what a tool of
    compute-sanitizer checks then.

    Attributes:
        profiler: one of PROFILE_FILES.
        cases: position and spec of each case, and the implementations to profile. Those that the
            process has found to fail are left out.
        most_bytes: size of the largest file.
        program: path of Nsight Compute's program or of compute-sanitizer; empty if there is none, or
            if the profiler needs none of them.
        limit_s: seconds that a profile by another program than the job's process may take.
        call_s: seconds of these for which its call may keep the device.
        options: for Nsight Compute; absent for the default ones.
    """

    profiler: str
    cases: list[tuple[int, Any, list[str]]]
    most_bytes: int
    program: str
    limit_s: float
    call_s: float
    options: NotRequired[NcuOptions]


class ScratchTask(TypedDict):
    """The command of a scratch run.

    Attributes:
        command: the program and its arguments.
        files: SHA-256 of each file of the folder in which the command starts, by its path there.
        fetch: paths of files and folders that are sent back when the command has ended.
        limit_s: seconds that the command may take.
        most_bytes: of a file that is sent back.
        program: path of the profiler that the command runs; empty if it runs none, or it is not there.
        profiler: whether the command runs a profiler.
    """

    command: list[str]
    files: dict[str, str]
    fetch: list[str]
    limit_s: float
    most_bytes: int
    program: str
    profiler: bool


class Task(TypedDict):
    """The work of a job's process.

    Attributes:
        modules: the operator's modules to import, and the names of the implementations that the
            job times from each.
        uploads: uploaded implementations, to import as well. The content of their other files is
            not in the task.
        contents: these files, by their SHA-256. Only the server has it in its task: it sends them as
            frames of their own behind the task.
        problem: the problem whose op is measured; None for a shipped op.
        sandboxed: whether uploads and the problem run in the sandbox.
        seed: seed of the inputs' values.
        cases: position and spec of each case.
        memory_bytes: the most memory that the job may use.
        threads: threads of the CPU's kernels; 0 means all CPUs.
        odd: names of uploads that are checked in the op's odd cases first; absent means none.
        profile: absent or None if nothing is profiled.
        sanitize: what compute-sanitizer checks, tool by tool; absent means nothing.
        race: whether the implementations of each case race; absent means not.
        scratch: of a scratch run, which has no implementations and no cases; absent for a benchmark.
    """

    device: str
    modules: dict[str, list[str]]
    uploads: list[Upload]
    contents: NotRequired[Mapping[str, bytes]]
    problem: ProblemSource | None
    sandboxed: bool
    op: str
    implementations: list[str]
    precision: str
    seed: int
    cases: list[tuple[int, Any]]
    memory_bytes: int
    threads: int
    odd: NotRequired[list[str]]
    profile: NotRequired[ProfileTask | None]
    sanitize: NotRequired[list[ProfileTask]]
    race: NotRequired[bool]
    scratch: NotRequired[ScratchTask]


def odd_at_once() -> int:
    """How many uploads of a job are checked in odd cases at the same time: each keeps a CPU busy, and
    half of them are left for the checked processes' compilers and for calls."""
    return max(1, min(ODD_AT_ONCE, len(os.sched_getaffinity(0)) // 2))


def is_left_out(profiler: str, status: str) -> bool:
    """Whether an implementation of this status in a case is not profiled there.

    A result that is wrong, or a call that failed, is what compute-sanitizer can explain.
    """
    if profiler in SANITIZERS:
        return status in ("compile_error", "unchecked")
    return status != "ok"


def profiles_of(task: Task) -> list[ProfileTask]:
    """All profiles of a task, with what compute-sanitizer checks, in the order in which they are made."""
    profile = task.get("profile")
    return [*([] if profile is None else [profile]), *task.get("sanitize", ())]


class JobTask(Task):
    """What a job's process gets: its work, and limits from the server's settings.

    Attributes:
        call_s: seconds that a call of an upload may take, except for the first one in a case.
        compile_s: seconds that the first call of an upload in a case may take, and its import.
        behind: the SHA-256 of each file of uploads that follows as a frame, in this order.
    """

    call_s: float
    compile_s: float
    behind: list[str]


class Launch(TypedDict):
    """How the processes of a job are started in the sandbox.

    Attributes:
        arguments: options of bubblewrap: file systems, namespaces, environment.
        processes: the most processes and threads that may exist in it.
        memory_bytes: the most memory that they may use together.
        tmp_bytes: size of each of its folders for temporary files, and of the largest file.
    """

    arguments: list[str]
    processes: int
    memory_bytes: int
    tmp_bytes: int


class UploadLaunch(TypedDict):
    """How the upload processes of a job are started.

    Attributes:
        sandbox: None if they run with the server's rights.
        without_gpu: the sandbox of the recorders of verified uploads, which shows no GPU. None
            without a sandbox, or if the job has none of them.
        environment: variables beside those of the sandbox or of the server.
        device: as they name it: in a sandbox the only GPU is "cuda:0".
        profiler: whether Nsight Compute or compute-sanitizer runs in the job.
        threads, memory_bytes: as in `Task`.
    """

    sandbox: Launch | None
    without_gpu: Launch | None
    environment: dict[str, str]
    device: str
    profiler: bool
    threads: int
    memory_bytes: int


class StartUpload(TypedDict):
    """The request for a further upload process.

    Attributes:
        start: its number in this job.
        module: the module whose program it runs.
    """

    start: int
    module: str


class UploadStarted(TypedDict):
    """The answer to `StartUpload`.

    Attributes:
        root: id of the process from which all processes of the sandbox descend, as the reaper's PID
            namespace numbers it; that of the upload process itself without a sandbox.
        processes: the file that lists all processes of the sandbox, and bubblewrap's ones; empty if
            they have no control group.
        bubblewrap: ids of bubblewrap's own processes.
        trouble: why it could not be started; empty if it was started.
    """

    root: int
    processes: str
    bubblewrap: list[int]
    trouble: str


class EndUpload(TypedDict):
    """The request to end an upload process and all processes that it started.

    Attributes:
        end: its number.
        ended: whether it has ended by itself, which the reaper may learn a little later.
    """

    end: int
    ended: bool


class UploadEnded(TypedDict):
    """The answer to `EndUpload`.

    Attributes:
        status: its exit status, negative for a signal; None if the request ended it.
        out_of_memory: it was ended because its processes together used too much memory.
        left: whether some of them could not be ended.
    """

    status: int | None
    out_of_memory: bool
    left: bool


class ReaperReport(TypedDict):
    """How a job's process ended.

    Attributes:
        status: exit status, negative for a signal.
        over_memory: it was killed because the job's processes together used too much memory.
        left: ids of processes that could not be ended.
        trouble: why it could not be started in the sandbox; empty if it was started.
    """

    status: int
    over_memory: bool
    left: list[int]
    trouble: str
