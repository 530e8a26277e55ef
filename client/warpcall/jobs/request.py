"""What a job is asked for: an op, cases, what to time and how."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, field, fields
from typing import Annotated, Any, TypedDict, get_origin, get_type_hints

from warpcall._extras.arguments import check_choice
from warpcall.dtypes import dtype_code
from warpcall.errors import InvalidInput
from warpcall.jobs import Precision, Priority, Profile


@dataclass(frozen=True, kw_only=True)
class Option:
    """How a field of JobRequest is offered to users: as an option of `warpcall bench` and, with a
    `label`, as a field of the form of a new job. These build what they show from this.

    Attributes:
        help: what the option is, for the help of the command.
        flags: its names on the command line.
        metavar: what stands for its value in the help.
        default: value that the command sends without the option.
        choices: the values that are allowed, each with the words of the form; empty if there is no
            list of them.
        label: name of the field in the form; empty if the form has none.
        hint: text below the field.
    """

    help: str
    flags: tuple[str, ...]
    metavar: str | None = None
    default: str | bool | None = None
    choices: Mapping[str, str] = field(default_factory=dict)
    label: str = ""
    hint: str = ""


class JobOptions(TypedDict, total=False):
    """The fields of JobRequest besides `op`, as keyword arguments of `submit` and `preview`."""

    implementations: Sequence[str] | None
    cases: Sequence[Mapping[str, object]] | None
    sweep: Mapping[str, object] | None
    precision: Precision | None
    priority: Priority | None
    tags: Sequence[str] | None
    name: str | None
    note: str | None
    fresh: bool
    race: bool
    private: bool | None
    gpu: str | None
    node: str | None
    profile: Profile | None
    profile_options: Mapping[str, object] | None
    sanitize: bool


@dataclass(frozen=True, repr=False)
class JobRequest:
    """What a job measures and how. Give either `cases` or `sweep`, or with the precision "check"
    neither. None means the default.

        request = JobRequest("permute", sweep={"shapes": [[64, 64]], "dtypes": ["bf16"],
                                               "params": {"dims": [[1, 0]]}})
        gpu.jobs.submit(request)
        gpu.jobs.submit(request, precision="publish")  # the same with another precision

    Attributes:
        op: name of the op, such as "permute", or of a problem, such as "ann/row-norm".
        implementations: names of what is timed, by default ["warpcall", "torch"], and ["torch"]
            for a problem. The others are compared with the first.
        cases: each with `inputs`, or with the `shape` and `dtype` of the first input; of a problem
            with its `dtype` and `sizes`.
        sweep: `shapes`, `dtypes`, `params` and `sizes`, whose product are the cases. A problem has
            no `shapes`, and needs no `dtypes`: its first one is the default.
        precision: "quick", "standard" or "publish": 2, 10 or 60 seconds for each implementation of
            each case. "standard" by default. "check" compares results with the reference and times
            nothing. Without cases it takes the op's odd cases: all dtypes, layouts, NaN and
            infinities, empty tensors, one element, odd sizes, long rows.
        priority: "high" (for administrators), "normal" or "low". "normal" by default.
        tags: words to find the job by, at most 16.
        name: what lists call the job, one line of at most 100 characters. By default they show its
            first case.
        note: a text for readers, at most 1,000 characters.
        fresh: measure even if a job of the same user measured the same in the same environment.
            By default the server answers with that job.
        private: let only the job's user and administrators read it. By default all users can,
            unless it times a private upload or the server is set otherwise.
        gpu: model of the GPU that it runs on, such as "H200": words of the name that `Client.nodes`
            has. By default any.
        node: id of the server that it runs on, or host name of its machine. By default any.
        profile: what to make for each implementation, too, after all cases are measured: "torch" a
            trace by torch's profiler, "ncu" what NVIDIA's Nsight Compute says of its kernels,
            "compile" a compile report. `Job.artefacts` has the files. By default there are none.
        profile_options: what "ncu" profiles, any of these: `kernels`, a regular expression for names
            of kernels; `launch`, the number of the only launch of these, from 1; `sections` and
            `metrics`, names that Nsight Compute knows, in place of its usual sections.
        sanitize: run each upload under NVIDIA's compute-sanitizer, too, after all cases are measured,
            with its tools memcheck and racecheck. `Measurement.sanitizer` has what they found.
        race: let 2 to 64 implementations race in each case: whoever is surely slower than the
            fastest is timed no more. `Client.race` submits such a job and waits for its outcome.

    Raises:
        InvalidInput: the precision, the priority or the profile is none of the choices, or `gpu` names
            several models.
    """

    op: str
    _: KW_ONLY
    implementations: Sequence[str] | None = None
    cases: Sequence[Mapping[str, object]] | None = None
    sweep: Mapping[str, object] | None = None
    precision: Annotated[
        Precision | None,
        Option(
            help="Seconds for an implementation of a case: quick (2), standard (10), publish (60). "
            "check compares results and times nothing.",
            flags=("--precision",),
            default="standard",
            choices={"quick": "2 s", "standard": "10 s", "publish": "60 s", "check": "0 s"},
            label="Precision",
        ),
    ] = None
    priority: Annotated[
        Priority | None,
        Option(
            help="In the queue: high (administrators), normal or low.",
            flags=("--priority",),
            default="normal",
            choices={"high": "high", "normal": "normal", "low": "low"},
            label="Priority",
        ),
    ] = None
    tags: Annotated[
        Sequence[str] | None,
        Option(
            help="Tag of the job. Can be repeated.",
            flags=("--tag",),
            metavar="WORD",
            label="Tags to find the job by, optional",
            hint="Words separated by spaces.",
        ),
    ] = None
    name: Annotated[
        str | None,
        Option(
            help="What lists call the job, at most 100 characters. Default: its first case.",
            flags=("--name",),
            metavar="TEXT",
            label="Name in lists, optional",
            hint="At most 100 characters. Without a name, lists show the first case.",
        ),
    ] = None
    note: Annotated[
        str | None,
        Option(
            help="Note for readers.",
            flags=("--note",),
            metavar="TEXT",
            label="Note for readers, optional",
        ),
    ] = None
    private: Annotated[
        bool | None,
        Option(
            help="Let only you and administrators read the job and what it uploads, or let all "
            "users. Default: an upload as the version before, the first public; a job public "
            "unless it times a private upload or the server is set otherwise.",
            flags=("--private/--public",),
            label="Who may read it",
        ),
    ] = None
    gpu: Annotated[
        str | None,
        Option(
            help="Run on a GPU of this model, such as H200. `warpcall bench` takes several: H100,H200.",
            flags=("--gpu",),
            metavar="MODEL",
        ),
    ] = None
    node: Annotated[
        str | None,
        Option(
            help="Run on this server or machine: an id or a host that `warpcall nodes` shows.",
            flags=("--node",),
            metavar="NAME",
        ),
    ] = None
    profile: Annotated[
        Profile | None,
        Option(
            help="Also run each implementation under torch's profiler (torch) or Nsight Compute "
            "(ncu), or report what its kernels need (compile), after all cases are measured. "
            "`warpcall artefacts ID` shows the files.",
            flags=("--profile",),
            metavar="PROFILER",
            choices={
                "torch": "torch: a trace of each implementation in each case, for Perfetto",
                "ncu": "ncu: what limits each kernel, by Nsight Compute",
                "compile": "compile: registers, spills and machine code of each kernel",
            },
            label="Profile",
            hint="Made after all times are measured. The page of the job has the files.",
        ),
    ] = None
    profile_options: Mapping[str, object] | None = None
    sanitize: Annotated[
        bool,
        Option(
            help="Also run uploads under compute-sanitizer (memcheck and racecheck), after all cases are "
            "measured: accesses out of bounds, and races in shared memory.",
            flags=("--sanitize",),
            default=False,
            label="Run uploads under compute-sanitizer",
            hint="Made after all times are measured, on a GPU: memcheck and racecheck.",
        ),
    ] = False
    fresh: Annotated[
        bool,
        Option(
            help="Measure again what you have measured before.",
            flags=("--fresh",),
            default=False,
            label="Measure again what was measured before",
        ),
    ] = False
    race: bool = False

    def __post_init__(self) -> None:
        for name, option in OPTIONS.items():
            if option.choices:
                check_choice(name, getattr(self, name), tuple(option.choices))
        if isinstance(self.gpu, str) and "," in self.gpu:
            raise InvalidInput(
                f"gpu must be one model, got {self.gpu!r:.60}; `warpcall bench --gpu` and "
                "`gpu.jobs.submit_group` take several",
                field="gpu",
            )

    def to_dict(self) -> dict[str, Any]:
        """The fields that are given, as the server takes them: dtypes by their codes."""
        known = {field.name: getattr(self, field.name) for field in fields(self)}
        flags = ("fresh", "race", "sanitize")
        given = {k: v for k, v in known.items() if v is not None and (k not in flags or v)}
        if isinstance(sweep := given.get("sweep"), Mapping) and _is_list(sweep.get("dtypes")):
            given["sweep"] = {**sweep, "dtypes": list(map(dtype_code, sweep["dtypes"]))}
        if _is_list(given.get("cases")):
            given["cases"] = list(map(_with_codes, given["cases"]))
        return given

    def __repr__(self) -> str:
        op, *options = self.to_dict().items()
        shown = "".join(f", {name}={value!r}" for name, value in options)
        return f"JobRequest({op[1]!r}{shown})"


OPTIONS: Mapping[str, Option] = {
    name: note
    for name, hint in get_type_hints(JobRequest, include_extras=True).items()
    if get_origin(hint) is Annotated
    for note in hint.__metadata__
}
"""The options of a job by the field that has each, in the order in which users see them."""


def _with_codes(case: Any) -> Any:
    if not isinstance(case, Mapping):
        return case
    case = {**case}
    if "dtype" in case:
        case["dtype"] = dtype_code(case["dtype"])
    if isinstance(inputs := case.get("inputs"), Mapping):
        case["inputs"] = {name: _with_codes(given) for name, given in inputs.items()}
    return case


def _is_list(value: object) -> bool:
    return isinstance(value, Sequence) and not isinstance(value, str | bytes)
