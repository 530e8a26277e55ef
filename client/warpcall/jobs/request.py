"""What a job is asked for: an op, cases, what to time and how."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, fields
from typing import Any, TypedDict

from warpcall._extras.arguments import check_choice
from warpcall.dtypes import dtype_code
from warpcall.jobs import PRECISIONS, PRIORITIES, PROFILES, Precision, Priority, Profile


class JobOptions(TypedDict, total=False):
    """The fields of JobRequest besides `op`, as keyword arguments of `submit` and `preview`."""

    implementations: Sequence[str] | None
    cases: Sequence[Mapping[str, object]] | None
    sweep: Mapping[str, object] | None
    precision: Precision | None
    priority: Priority | None
    tags: Sequence[str] | None
    note: str | None
    fresh: bool
    private: bool | None
    gpu: str | None
    node: str | None
    profile: Profile | None


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

    Raises:
        InvalidInput: the precision, the priority or the profile is none of the choices.
    """

    op: str
    _: KW_ONLY
    implementations: Sequence[str] | None = None
    cases: Sequence[Mapping[str, object]] | None = None
    sweep: Mapping[str, object] | None = None
    precision: Precision | None = None
    priority: Priority | None = None
    tags: Sequence[str] | None = None
    note: str | None = None
    fresh: bool = False
    private: bool | None = None
    gpu: str | None = None
    node: str | None = None
    profile: Profile | None = None

    def __post_init__(self) -> None:
        check_choice("precision", self.precision, PRECISIONS)
        check_choice("priority", self.priority, PRIORITIES)
        check_choice("profile", self.profile, PROFILES)

    def to_dict(self) -> dict[str, Any]:
        """The fields that are given, as the server takes them: dtypes by their codes."""
        known = {field.name: getattr(self, field.name) for field in fields(self)}
        given = {k: v for k, v in known.items() if v is not None and (k != "fresh" or v)}
        if isinstance(sweep := given.get("sweep"), Mapping) and _is_list(sweep.get("dtypes")):
            given["sweep"] = {**sweep, "dtypes": list(map(dtype_code, sweep["dtypes"]))}
        if _is_list(given.get("cases")):
            given["cases"] = list(map(_with_codes, given["cases"]))
        return given

    def __repr__(self) -> str:
        op, *options = self.to_dict().items()
        shown = "".join(f", {name}={value!r}" for name, value in options)
        return f"JobRequest({op[1]!r}{shown})"


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
