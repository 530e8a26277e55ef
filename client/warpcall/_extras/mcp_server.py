"""The server of `warpcall mcp`: tools of the Model Context Protocol, thin over AsyncClient.

The answers are read by a model, which pays for each word: fields without a value are left out, and
numbers have four digits. Every failure says what to do next.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Annotated, Any

from mcp.server import MCPServer
from mcp.server.mcpserver.exceptions import ToolError
from pydantic import Field

from warpcall import __version__
from warpcall._async_client import AsyncClient
from warpcall._extras import agent_jobs
from warpcall._jobs.source import Source as SourceText
from warpcall._jobs.verified import verified_members
from warpcall.errors import InvalidInput, NotFound, Problem, TimedOut, Unauthorized, WarpcallError
from warpcall.implementations import Language
from warpcall.jobs import Precision
from warpcall.races import MOST

TIMEOUT_S = 300.0  # of a tool that waits for a job, which goes on afterwards
MOST_POINTS = 20  # of a history
MOST_TEXT = 2000  # characters
DIGITS = 4
INSTRUCTIONS = """\
Evaluate GPU kernels. Choose an op with list_ops (or a problem with list_problems), write a Python module
with a function that has the op's name (with _ for -) and takes its inputs and parameters by name, and
send it to evaluate. If it fails, follow `next`. A ratio below 1 is faster than the baseline; believe
`ratio_high`, not `ratio`. To find the fastest of several sources, send all of them to race: whoever is
surely slower is timed no more. explain shows registers and spills of Triton kernels, and needs no GPU;
profile shows what limits a kernel on one."""

Case = Annotated[
    dict[str, Any],
    Field(
        description='Such as {"shape": [4096, 4096], "dtype": "BF16", "params": {"dims": [1, 0]}}; '
        'of a problem {"dtype": "BF16", "sizes": {"rows": 4096}}.'
    ),
]
Source = Annotated[str | None, Field(description="A whole Python module as text.")]
Function = Annotated[
    str | None, Field(description="Function in the source; by default the op's name with _ for -.")
]
Verified = Annotated[
    bool,
    Field(
        description="Time only the compiled kernels, which the server launches itself. Such a time "
        "cannot be faked by code of the host. It needs a GPU."
    ),
]
NO_PROFILE = "Use explain, which needs neither a GPU nor Nsight Compute."
NEXT = {
    Unauthorized: "Set WARPCALL_API_KEY to a key of the server, or run `warpcall login`.",
    NotFound: "List the names with list_ops or list_problems.",
    InvalidInput: "Change the field that the message names.",
    TimedOut: "Call the tool again with the same arguments: what was measured is not measured again.",
}


def mcp_server(url: str | None) -> MCPServer:
    """A server whose tools call the Warpcall server at this address; None as for `Client`."""
    clients: list[AsyncClient] = []

    @asynccontextmanager
    async def lifespan(_: MCPServer) -> AsyncIterator[None]:
        async with AsyncClient(url, progress=False) as gpu:
            clients.append(gpu)
            try:
                yield
            finally:
                clients.remove(gpu)

    server = MCPServer(
        "warpcall",
        instructions=INSTRUCTIONS,
        version=__version__,
        lifespan=lifespan,
        log_level="WARNING",
    )

    async def list_ops(name: str | None = None) -> dict[str, Any]:
        """List the ops of the server with their equivalents in torch, or describe one op in full."""
        async with _saying_what_to_do():
            if name is not None:
                return compact((await clients[0].op(name)).to_dict())
            found = await clients[0].ops()
        return {
            "ops": [
                {
                    "name": op.name,
                    "equivalent": op.equivalent,
                    "inputs": [i.name for i in op.inputs],
                }
                for op in found
            ]
        }

    async def list_problems() -> dict[str, Any]:
        """List problems: ops that users have declared. evaluate takes them as `op`."""
        async with _saying_what_to_do():
            found = (await clients[0].problems.list()).problems
        return {"problems": [{"name": one.name, "doc": one.doc} for one in found]}

    async def evaluate(
        op: str,
        cases: list[Case],
        source: Source = None,
        function: Function = None,
        implementation: Annotated[
            str | None, Field(description="In place of source: a stored one, such as ann/fast.")
        ] = None,
        baseline: Annotated[
            str | None, Field(description="By default warpcall, for a problem torch.")
        ] = None,
        precision: Precision = "quick",
        verified: Verified = False,
        language: Annotated[
            Language,
            Field(
                description="cuda: CUDA C++, always verified, with its launches in a comment that "
                "begins with warpcall-launches."
            ),
        ] = "python",
    ) -> dict[str, Any]:
        """Evaluate a candidate: does it compile, is it right, how fast is it against the baseline."""
        members: dict[str, object] = {"source": source, "function": function}
        members["implementation"] = implementation
        async with _saying_what_to_do():
            if source is not None:
                text = SourceText(source, language=language)
                members |= verified_members(text, verified, None, None)
            candidate = {name: value for name, value in members.items() if value is not None}
            found = await clients[0].evaluate(
                op,
                candidate,
                cases=cases,
                baseline=baseline,
                precision=precision,
                timeout_s=TIMEOUT_S,
            )
        shown = found.to_dict()
        for name in ("index", "links", "state", "source_sha256"):
            del shown[name]
        if len(found.cases) == 1:
            del shown["cases"]
            shown["case"] = found.cases[0].case
        else:  # the failure and what to do are said once
            shown["cases"] = [
                {**one, "failure": one["failure"] and one["failure"]["kind"]}
                for one in shown["cases"]
            ]
        return compact(shown)

    async def race(
        op: str,
        cases: list[Case],
        sources: Annotated[
            list[str], Field(max_length=MOST, description="Whole Python modules as texts.")
        ] = [],  # noqa: B006  # a default of the tool's schema, which nothing changes
        implementations: Annotated[
            list[str],
            Field(max_length=MOST, description="Stored ones, such as torch, warpcall or ann/fast."),
        ] = [],  # noqa: B006
        precision: Precision = "quick",
        verified: Verified = False,
    ) -> dict[str, Any]:
        """Find the fastest of 2 to 64 candidates with little device time. Ratios are to the fastest."""
        async with _saying_what_to_do():
            return compact(
                await agent_jobs.race(
                    *(clients[0], op, cases, sources, implementations),
                    verified=verified,
                    precision=precision,
                    timeout_s=TIMEOUT_S,
                )
            )

    async def profile(
        op: str,
        case: Case,
        source: Source = None,
        function: Function = None,
        implementation: Annotated[
            str | None, Field(description="In place of source: a stored one, such as warpcall.")
        ] = None,
        kernels: Annotated[
            str | None, Field(description="Only kernels whose name has this regular expression.")
        ] = None,
        launch: Annotated[
            int | None, Field(description="Only the launch of this number, from 1.")
        ] = None,
        sections: Annotated[
            list[str] | None, Field(description="In place of the usual: SourceCounters")
        ] = None,
        metrics: Annotated[
            list[str] | None, Field(description="In place of sections: dram__bytes_read.sum")
        ] = None,
    ) -> dict[str, Any]:
        """What NVIDIA's Nsight Compute says of the kernels of an implementation in a case, as text. It
        needs a server with a GPU and Nsight Compute."""
        given = {"kernels": kernels, "launch": launch, "sections": sections, "metrics": metrics}
        options = {name: value for name, value in given.items() if value is not None}
        async with _saying_what_to_do():
            return compact(
                await agent_jobs.profile(
                    *(clients[0], op, case, source, function, implementation, options or None),
                    timeout_s=TIMEOUT_S,
                )
            )

    async def explain(
        op: str,
        case: Case,
        source: Source = None,
        function: Function = None,
        gpu: Annotated[str, Field(description="An architecture or a GPU: sm_90, H100")] = "sm_90",
    ) -> dict[str, Any]:
        """What the Triton kernels of a source, or of the server's own op, need on a GPU: registers,
        spills, shared memory, occupancy. It compiles them and needs no GPU."""
        code = None if source is None else f"{source}\n"
        async with _saying_what_to_do():
            report = await clients[0].explain(
                op, case, code=code, function=function, gpu=gpu, texts=()
            )
        left_out = ("texts", "arguments")
        kernels = [
            {name: value for name, value in one.to_dict().items() if name not in left_out}
            for one in report.kernels
        ]
        return compact({**report.to_dict(), "kernels": kernels})

    async def history(
        implementation: str,
        case: Annotated[str, Field(description="Key of the case, as `case` of a verdict has it.")],
        limit: int = 10,
    ) -> dict[str, Any]:
        """The latest measurements of an implementation in a case, over all jobs, the latest first."""
        async with _saying_what_to_do():
            found = await clients[0].jobs.history(
                case, implementation=implementation, limit=min(limit, MOST_POINTS)
            )
        fields = ("status", "median_us", "ci_low_us", "ci_high_us", "ratio", "verdict", "tags")
        points = [
            {
                "job": one.job,
                "finished_at": one.finished_at,
                "changed": one.changed,
                **{name: getattr(one.measurement, name) for name in fields},
            }
            for one in found.points
        ]
        return compact({"points": points}) if points else {"points": []}

    for tool in (list_ops, list_problems, evaluate, race, explain, profile, history):
        server.add_tool(tool)
    return server


@asynccontextmanager
async def _saying_what_to_do() -> AsyncIterator[None]:
    """Turn errors of the SDK into errors of a tool, which say what to do next."""
    try:
        yield
    except WarpcallError as error:
        known = (text for kind, text in NEXT.items() if isinstance(error, kind))
        following = next(known, "Call the tool again in a minute; see the message.")
        if isinstance(error, Problem) and error.field == "profile":
            following = NO_PROFILE
        raise ToolError(f"{str(error)[:MOST_TEXT]}\nnext: {following}") from None


def compact(value: Mapping[str, Any]) -> dict[str, Any]:
    """The members that have a value, with numbers of DIGITS digits."""
    shown = {name: _compact(one) for name, one in value.items()}
    return {name: one for name, one in shown.items() if one not in (None, "", [], {})}


def _compact(value: Any) -> Any:
    if isinstance(value, float):
        return float(f"{value:.{DIGITS}g}")
    if isinstance(value, Mapping):
        return compact(value)
    if isinstance(value, Sequence) and not isinstance(value, str):
        return [_compact(one) for one in value]
    return value
