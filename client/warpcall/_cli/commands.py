"""The commands `nodes`, `ops`, `run` and `health`, and the command that has all of them."""

from __future__ import annotations

import sys
from dataclasses import asdict
from typing import Annotated, Any

import numpy as np
import typer

from warpcall import Answer, Client, __version__
from warpcall._arrays import CODES, Array
from warpcall._base_client import TIMEOUT_S
from warpcall._cli import (
    account,
    bench,
    check,
    evaluate,
    jobs,
    mcp,
    measured,
    monitors,
    race,
    regression,
    scratch,
    sharing,
    tensors,
    upload_commands,
)
from warpcall._cli.declarations import (
    declaration_lines,
    declaration_of,
    input_label,
    option_label,
)
from warpcall._cli.files import UsageError, check_room, check_target, read_inputs, write_outputs
from warpcall._cli.op_args import parse_arguments
from warpcall._cli.output import (
    Json,
    OpName,
    Url,
    console,
    op_names,
    print_json,
    table_of,
    write_lines,
)
from warpcall._cli.tables import LINE_WIDTH, node_state
from warpcall._explain import command as explain
from warpcall._imports import command as imports
from warpcall._jobs.names import is_problem
from warpcall._verify import command as verify
from warpcall.health import Health
from warpcall.nodes import Node

FIRST_VALUES = 4
SHOWN_WHOLE = 64  # values of an output that is printed as a whole
OLD_NODES_S = 10.0  # a server reads the list of nodes every second

app = typer.Typer(
    help="Run GPU kernels on a Warpcall server.",
    epilog="A server with users needs an API key: set WARPCALL_API_KEY, or use `warpcall login`.",
    no_args_is_help=True,
    context_settings={"help_option_names": ["-h", "--help"]},
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)
app.add_typer(account.app)
app.add_typer(tensors.app, name="tensors")
app.add_typer(upload_commands.implementations, name="implementations")
app.add_typer(upload_commands.problems, name="problems")
app.add_typer(monitors.app, name="monitors")
app.add_typer(bench.app)
app.add_typer(regression.app)
app.add_typer(check.app)
app.add_typer(race.app)
app.add_typer(evaluate.app)
app.add_typer(explain.app)
app.add_typer(imports.app)
app.add_typer(mcp.app)
app.add_typer(verify.app)
app.add_typer(jobs.app)
app.add_typer(measured.app)
app.add_typer(sharing.app)
app.add_typer(scratch.app)


def _print_version(wanted: bool) -> None:
    if wanted:
        write_lines(f"warpcall {__version__}")
        raise typer.Exit


@app.callback()
def options(
    version: Annotated[
        bool,
        typer.Option(
            "--version",
            help="Print the version and exit.",
            callback=_print_version,
            is_eager=True,  # before typer complains that there is no command
        ),
    ] = False,
) -> None:
    pass


@app.command("kernels", hidden=True)  # its name in older versions
@app.command()
def ops(
    name: Annotated[
        str | None,
        typer.Argument(
            autocompletion=op_names,
            help="Name of an op or of a problem such as ann/row-norm, to describe it in full. "
            "Default: list all ops.",
        ),
    ] = None,
    as_json: Json = False,
    url: Url = None,
) -> None:
    """List the ops, or describe one."""
    with Client(url) as gpu:
        found: Any = gpu.kernels() if name is None else declaration_of(gpu, name)
    if as_json:
        print_json(found)
    elif name is None:
        _print_list(found)
    else:
        write_lines(*declaration_lines(found))


@app.command(context_settings={"ignore_unknown_options": True})
def run(
    op: OpName,
    arguments: Annotated[
        list[str],
        typer.Argument(
            metavar="FILES... [OPTIONS OF THE OP]",
            help="Inputs: x.npy, x.png or x.jpg (the next input in order), name=x.npy (the input of this name), "
            "x.safetensors (several inputs, by name), name=@ID (a stored tensor). Options such as "
            "--dims 1,0: `warpcall ops OP` lists them.",
        ),
    ],
    out: Annotated[
        str | None,
        typer.Option(
            "--out",
            "-o",
            metavar="PATH",
            help="File for the outputs: .npy, .png or .jpg (one output) or .safetensors. {name} in the path is "
            "replaced by the name of each output. An existing file is replaced. Default: write no "
            "file, and print a summary.",
        ),
    ] = None,
    timeout_s: Annotated[
        float,
        typer.Option(
            "--timeout-s", metavar="S", help="Seconds that the call may take, its retries included."
        ),
    ] = TIMEOUT_S,
    store: Annotated[
        bool,
        typer.Option(
            "--store", help="Store the outputs on the server's device, and print their ids."
        ),
    ] = False,
    as_json: Json = False,
    url: Url = None,
) -> None:
    """Run an op on files.

    \b
    warpcall run permute x.npy --dims 2,0,1 -o y.npy
    warpcall run permute photo.png --dims 1,0,2 -o turned.png
    warpcall run isin text.npy test_elements=words.npy --invert
    warpcall run conv-backward in.safetensors -o grads.safetensors
    """
    if is_problem(op):
        raise UsageError(f"{op} is a problem, which only `warpcall bench` runs")
    if out is not None:
        if store:
            raise UsageError("--store leaves outputs on the server: --out has nothing to write")
        check_target(out)
    with Client(url, timeout_s=timeout_s) as gpu:
        declaration = gpu.kernel(op)
        if out is not None:
            check_room(out, [o["name"] for o in declaration["outputs"] if not o["when"]])
        files, params = parse_arguments(declaration, arguments)
        names = [i["name"] for i in declaration["inputs"]]
        files, ids = tensors.take_ids(files, names)
        stored = tensors.find(gpu, list(ids.values())) if ids else {}
        inputs: dict[str, Any] = {name: stored[id_] for name, id_ in ids.items()}
        inputs |= read_inputs(files, [name for name in names if name not in ids])
        if store:
            outputs = gpu.stored.call(op, inputs, params).outputs
            tensors.print_stored(outputs, as_json=as_json)
            return
        answer = gpu.call(op, inputs, params)
    if out is not None:
        write_outputs(answer.outputs, out)
    if as_json:
        print_json(_summary(answer))
    elif out is None:
        _print_summary(answer)


@app.command()
def health(as_json: Json = False, url: Url = None) -> None:
    """Show whether the server and its devices are ready. The exit code is 1 if it is not."""
    with Client(url) as gpu:
        report = gpu.health()
    if as_json:
        print_json(report.to_dict())
    else:
        _print_health(report)
    if report.status != "ready":
        raise typer.Exit(1)


@app.command()
def nodes(as_json: Json = False, url: Url = None) -> None:
    """List the servers that share a database.

    Each has its state and its devices.
    """
    with Client(url) as gpu:
        found = gpu.nodes()
    if as_json:
        print_json(asdict(found))
        return
    rows = [
        (node.id, node.host, node_state(node), _node_devices(node), node.version, node.url)
        for node in found.nodes
    ]
    console().print(table_of(("node", "host", "state", "devices", "version", "url"), rows))
    if found.read_s_ago > OLD_NODES_S:
        write_lines(f"this is {found.read_s_ago:.0f} s old: the database does not answer")


def _node_devices(node: Node) -> str:
    """The lanes with their models, and with their states if they are not ready."""
    shown = []
    for lane in node.lanes:
        text = f"{lane.name}: {lane.model or 'no device yet'}"
        shown.append(text if lane.state == "ready" else f"{text} ({lane.state})")
    return ", ".join(shown)


def _print_health(report: Health) -> None:
    lines = [report.status]
    lines += [f"  {reason}" for reason in report.reasons]
    lines += [f"{one.name}: {one.state}, {one.device or 'no device yet'}" for one in report.lanes]
    lines += [f"{one.name}: {one.state}" for one in report.checks if one.state != "ok"]
    write_lines(*lines)


def _print_list(found: list[dict[str, Any]]) -> None:
    rows = [
        (
            op["name"],
            ", ".join(input_label(i) for i in op["inputs"]),
            " ".join(option_label(p) for p in op["params"]),
            op["equivalent"],
        )
        for op in found
    ]
    if not sys.stdout.isatty():
        console().print(table_of(("op", "inputs", "options", "equivalent to"), rows))
        return
    short = [
        (name, f"{op['summary']}\n{inputs}\n{options}".rstrip())
        for op, (name, inputs, options, _) in zip(found, rows, strict=True)
    ]
    console().print(table_of(("op", "what it does, inputs, options"), short))
    write_lines("`warpcall ops OP` describes one")


def _print_summary(answer: Answer[Array]) -> None:
    summary = _summary(answer)
    rows = []
    for name, o in summary["outputs"].items():
        more = ", ..." if np.prod(o["shape"]) > FIRST_VALUES else ""
        rows.append((name, answer.outputs[name].dtype, o["shape"], ", ".join(o["first"]) + more))
    console().print(table_of(("output", "dtype", "shape", "first values"), rows))
    for name, array in answer.outputs.items():
        if 1 < array.size <= SHOWN_WHOLE:
            shown = np.array2string(array, max_line_width=LINE_WIDTH, threshold=SHOWN_WHOLE)
            write_lines(f"{name} =", *shown.splitlines())
    stages = ", ".join(f"{stage} {ms:g} ms" for stage, ms in answer.timing_ms.items())
    write_lines(f"on {answer.device or 'an unnamed device'}: {stages or 'no timing'}")


def _summary(answer: Answer[Array]) -> dict[str, Any]:
    return {
        "outputs": {
            name: {
                "dtype": CODES[array.dtype],
                "shape": list(array.shape),
                "first": [str(value) for value in array.reshape(-1)[:FIRST_VALUES]],
            }
            for name, array in answer.outputs.items()
        },
        "device": answer.device,
        "timing_ms": answer.timing_ms,
        "request_id": answer.request_id,
    }
