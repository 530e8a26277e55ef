"""Write the typed methods of the SDK, client/warpcall/_generated/, from the ops.

    python -m tools.generate_sdk          write the files
    python -m tools.generate_sdk --check  fail if one is stale

The text is laid out as ruff formats it, so that formatting changes nothing.
"""

from __future__ import annotations

import argparse
import importlib.util
import keyword
import re
import sys
import textwrap
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from warpcall_kernels import Op, ops
from warpcall_kernels.op.declaration import Input, Output, Param, dtype_name

WIDTH = 100
# Methods that every client has, written by hand.
RESERVED = {"call", "run", "kernels", "kernel", "health", "close", "url"}
RESERVED |= {"put", "tensors", "program", "step"}
PARAM_TYPES = {"bool": "bool", "int": "int", "float": "float", "ints": "Sequence[int]"}

HEAD = '''"""The ops as typed methods. Written by `python -m tools.generate_sdk`; do not edit."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping{sequence}
from typing import Any, Literal, overload

from warpcall._arrays import ArrayT
from warpcall._core import Answer
from warpcall._tensors import {names}


class {name}(ABC):
    """One method per op{how}. With `keep` outputs stay on the device, as stored tensors."""

    @abstractmethod
    {begin}def call(
        self,
        name: str,
        inputs: Mapping[str, TensorInput[ArrayT] | None],
        params: Mapping[str, object] | None = None,
        *,
        keep: bool = False,
        ttl_s: float | None = None,
    ) -> Answer[ArrayT]:
        """Run any op and get its outputs by name, with device and timing."""
'''

PROGRAM_HEAD = '''"""The ops as steps of a program. Written by `python -m tools.generate_sdk`; do not edit."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping{sequence}

from warpcall._steps import Ref, Step, StepInput


class ProgramOps(ABC):
    """One method per op, which adds a step and gives references to its outputs."""

    @abstractmethod
    def step(
        self, op: str, inputs: Mapping[str, StepInput | None], params: Mapping[str, object]
    ) -> Step:
        """Add any op."""
'''


@dataclass(frozen=True)
class Flavour:
    """How the methods of one file differ from those of the others.

    Args:
        given: what an input is, given and kept: what an output is.
        begin: before `def`.
        run: what runs an op.
        absent: what becomes of an output that is not there.
    """

    given: str
    gives: str
    kept: str
    begin: str
    run: str
    absent: str


SYNC = Flavour(
    "TensorInput[ArrayT]", "ArrayT", "StoredTensor[ArrayT]", "", "self.call", "None unless"
)
ASYNC = Flavour(
    "TensorInput[ArrayT]",
    "ArrayT",
    "AsyncStoredTensor[ArrayT]",
    "async ",
    "await self.call",
    "None unless",
)
PROGRAM = Flavour("StepInput", "Ref", "", "", "self.step", "There only if")


def render(found: Mapping[str, Op]) -> dict[str, str]:
    """The texts of the files for these ops, by file name.

    Raises:
        ValueError: an op whose name cannot be a method's.
    """
    lists = any(p.kind == "ints" for op in found.values() for p in op.params)
    sequence = ", Sequence" if lists else ""
    heads = {
        "ops.py": (
            SYNC,
            HEAD.format(
                sequence=sequence,
                name="Ops",
                how=", blocking",
                begin="",
                names="StoredTensor, TensorInput",
            ),
        ),
        "async_ops.py": (
            ASYNC,
            HEAD.format(
                sequence=sequence,
                name="AsyncOps",
                how=", to be awaited",
                begin="async ",
                names="AsyncStoredTensor, TensorInput",
            ),
        ),
        "program_ops.py": (PROGRAM, PROGRAM_HEAD.format(sequence=sequence)),
    }
    return {
        file: head
        + "".join(
            "\n" + textwrap.indent(_method(op, flavour), "    ", _is_filled)
            for op in found.values()
        )
        for file, (flavour, head) in heads.items()
    }


def _method(op: Op, flavour: Flavour) -> str:
    name = op.name.replace("-", "_")
    if not name.isidentifier() or keyword.iskeyword(name) or name in RESERVED:
        raise ValueError(f"{op.name} cannot be the name of a method")
    taken = {p.name for p in op.params} | {i.name for i in op.inputs}
    if taken & {"keep", "self"}:
        raise ValueError(f"{op.name} cannot have an argument named keep or self")
    arguments = [
        "self",
        *(_input(i, flavour.given) for i in sorted(op.inputs, key=lambda i: i.optional)),
    ]
    if op.params or flavour.kept:
        arguments += ["*", *map(_param, op.params)]
    begin = f"{flavour.begin}def {name}"
    if flavour.kept:
        gives = _return_type(op.outputs, flavour.gives)
        keeps = _return_type(op.outputs, flavour.kept)
        lines = [
            *_overload(begin, [*arguments, "keep: Literal[False] = False"], gives),
            *_overload(begin, [*arguments, "keep: Literal[True]"], keeps),
        ]
        arguments = [re.sub(r": TensorInput\[ArrayT\]( \| None)?", ": Any", a) for a in arguments]
        arguments.append("keep: bool = False")
        returns = "Any"
    else:
        lines = []
        returns = ", ".join(flavour.gives for _ in op.outputs)
        returns = f"tuple[{returns}]" if len(op.outputs) > 1 else returns
    lines += [
        f"{begin}(",
        *(f"    {argument}," for argument in arguments),
        f") -> {returns}:",
        textwrap.indent(_docstring(op, flavour), "    ", _is_filled),
        f"    answer = {flavour.run}(",
        f'        "{op.name}",',
        *_mapping(i.name for i in op.inputs),
        *_mapping(p.name for p in op.params),
        *(["        keep=keep,"] if flavour.kept else []),
        "    )",
        f"    return {', '.join(_taken(o, flavour) for o in op.outputs)}",
    ]
    return "\n".join(lines) + "\n"


def _overload(begin: str, arguments: list[str], returns: str) -> list[str]:
    """A signature alone, on as few lines as ruff lays it out."""
    joined = ", ".join(arguments)
    if len(whole := f"{begin}({joined}) -> {returns}: ...") <= WIDTH - 4:
        return ["@overload", whole]
    if len(joined) <= WIDTH - 8:
        inner = [f"    {joined}"]
    else:
        inner = [f"    {argument}," for argument in arguments]
    end = [f") -> {returns}: ..."]
    if len(end[0]) > WIDTH - 4:
        end = [") -> tuple[", f"    {returns[len('tuple[') : -1]}", "]: ..."]
    return ["@overload", f"{begin}(", *inner, *end]


def _input(declared: Input, kind: str) -> str:
    return f"{declared.name}: {kind}" + (" | None = None" if declared.optional else "")


def _param(declared: Param) -> str:
    kind = PARAM_TYPES[declared.kind]
    if declared.required:
        return f"{declared.name}: {kind}"
    if declared.default is None:
        return f"{declared.name}: {kind} | None = None"
    return f"{declared.name}: {kind} = {declared.default!r}"


def _return_type(outputs: tuple[Output, ...], kind: str) -> str:
    kinds = [f"{kind} | None" if o.when else kind for o in outputs]
    return kinds[0] if len(kinds) == 1 else f"tuple[{', '.join(kinds)}]"


def _taken(output: Output, flavour: Flavour) -> str:
    if not flavour.kept:
        return f'answer["{output.name}"]'
    return f'answer.{"find" if output.when else "take"}("{output.name}")'


def _mapping(names: Iterable[str]) -> list[str]:
    entries = [f'"{name}": {name}' for name in names]
    line = f"        {{{', '.join(entries)}}},"
    if len(line) <= WIDTH - 4:
        return [line]
    return ["        {", *(f"            {entry}," for entry in entries), "        },"]


def _docstring(op: Op, flavour: Flavour) -> str:
    summary = str(op.describe()["summary"]) or f"Run {op.name}."
    parts = [
        _wrapped(summary, "", 8, first=3),
        "",
        *_paragraph(f"Equivalent to `{op.equivalent}`."),
    ]
    if op.limits:
        parts += ["", *_paragraph(f"Limits: {_sentence(op.limits)}")]
    parts += ["", "Args:"]
    for i in op.inputs:
        dtypes = ", ".join(map(dtype_name, i.dtypes))
        parts.append(_wrapped(f"{i.name}: {_sentence(f'{i.shape}; {i.doc}')} Dtypes: {dtypes}."))
    parts += [_wrapped(f"{p.name}: {_sentence(p.doc)}") for p in op.params]
    parts += ["", "Returns:"]
    for o in op.outputs:
        when = f" {flavour.absent} {o.when}." if o.when else ""
        parts.append(_wrapped(f"{o.name}: {_sentence(f'{o.shape}; {o.doc}')}{when}"))
    body = "\n".join(parts)
    mark = 'r"""' if "\\" in body else '"""'
    return f'{mark}{body}\n"""'


def _sentence(text: str) -> str:
    text = text.strip().strip(";").strip()
    return text if text.endswith((".", "!", "?")) else f"{text}."


def _paragraph(text: str) -> list[str]:
    return [_wrapped(text, "", 8)]


def _wrapped(text: str, indent: str = "    ", margin: int = 8, first: int = 0) -> str:
    """`text` in lines that fit at `margin`, continued one level deeper if it is an entry."""
    hanging = indent + "    " if indent else ""
    plain = " ".join(text.split()).replace('"""', "'''")
    lines = textwrap.wrap(
        " " * first + indent + plain,
        WIDTH - margin,
        subsequent_indent=hanging,
        break_long_words=False,
        break_on_hyphens=False,
    )
    return "\n".join(lines)[first:]


def _is_filled(line: str) -> bool:
    return bool(line.strip())


def target() -> Path:
    """The SDK's folder of generated files; found without running the SDK, which may be broken."""
    spec = importlib.util.find_spec("warpcall")
    if spec is None or not spec.submodule_search_locations:
        raise SystemExit("the package warpcall is not installed")
    return Path(next(iter(spec.submodule_search_locations)), "_generated")


def main(arguments: list[str] | None = None) -> int:
    """The command; 1 if --check finds a file stale."""
    parser = argparse.ArgumentParser(prog="python -m tools.generate_sdk", description=__doc__)
    parser.add_argument("--check", action="store_true", help="write nothing, fail if stale")
    check = parser.parse_args(arguments).check
    stale = 0
    for name, text in render(ops()).items():
        path = target() / name
        if path.exists() and path.read_text() == text:
            continue
        if check:
            sys.stderr.write(f"{path} is stale: run python -m tools.generate_sdk\n")
            stale = 1
        else:
            path.write_text(text)
    return stale


if __name__ == "__main__":
    sys.exit(main())
