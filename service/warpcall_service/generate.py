"""Write the typed methods of the SDK, client/warpcall/_ops.py and _async_ops.py, from the ops.

    python -m warpcall_service.generate          write the files
    python -m warpcall_service.generate --check  fail if one is stale

The text is laid out as ruff formats it, so that formatting changes nothing.
"""

from __future__ import annotations

import argparse
import importlib.util
import keyword
import sys
import textwrap
from collections.abc import Iterable, Mapping
from pathlib import Path

from warpcall_kernels import Op, ops
from warpcall_kernels._op import Input, Output, Param, dtype_name

WIDTH = 100
# Methods that every client has, written by hand.
RESERVED = {"call", "run", "kernels", "kernel", "health", "close", "url"}
PARAM_TYPES = {"bool": "bool", "int": "int", "float": "float", "ints": "Sequence[int]"}

HEAD = '''"""The ops as typed methods. Written by `python -m warpcall_service.generate`; do not edit."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping{sequence}

from warpcall._arrays import ArrayT
from warpcall._core import Answer
'''

CLASS = '''

class {name}(ABC):
    """One method per op{how}."""

    @abstractmethod
    {begin}def call(
        self,
        name: str,
        inputs: Mapping[str, ArrayT | None],
        params: Mapping[str, object] | None = None,
    ) -> Answer[ArrayT]:
        """Run any op and get its outputs by name, with device and timing."""
'''


def render(found: Mapping[str, Op]) -> dict[str, str]:
    """The texts of the files for these ops, by file name.

    Raises:
        ValueError: an op whose name cannot be a method's.
    """
    lists = any(p.kind == "ints" for op in found.values() for p in op.params)
    texts = {}
    for file, name, how, begin, wait in (
        ("_ops.py", "Ops", ", blocking", "", "self.call"),
        ("_async_ops.py", "AsyncOps", ", to be awaited", "async ", "await self.call"),
    ):
        text = HEAD.format(sequence=", Sequence" if lists else "")
        text += CLASS.format(name=name, how=how, begin=begin)
        for op in found.values():
            text += "\n" + textwrap.indent(_method(op, begin, wait), "    ", _is_filled)
        texts[file] = text
    return texts


def _method(op: Op, begin: str, call: str) -> str:
    name = op.name.replace("-", "_")
    if not name.isidentifier() or keyword.iskeyword(name) or name in RESERVED:
        raise ValueError(f"{op.name} cannot be the name of a method")
    arguments = ["self", *map(_input, sorted(op.inputs, key=lambda i: i.optional))]
    if op.params:
        arguments += ["*", *map(_param, op.params)]
    lines = [
        f"{begin}def {name}(",
        *(f"    {argument}," for argument in arguments),
        f") -> {_return_type(op.outputs)}:",
        textwrap.indent(_docstring(op), "    ", _is_filled),
        f"    answer = {call}(",
        f'        "{op.name}",',
        *_mapping(i.name for i in op.inputs),
        *_mapping(p.name for p in op.params),
        "    )",
        f"    return {', '.join(map(_taken, op.outputs))}",
    ]
    return "\n".join(lines) + "\n"


def _input(declared: Input) -> str:
    return f"{declared.name}: ArrayT" + (" | None = None" if declared.optional else "")


def _param(declared: Param) -> str:
    kind = PARAM_TYPES[declared.kind]
    if declared.required:
        return f"{declared.name}: {kind}"
    if declared.default is None:
        return f"{declared.name}: {kind} | None = None"
    return f"{declared.name}: {kind} = {declared.default!r}"


def _return_type(outputs: tuple[Output, ...]) -> str:
    kinds = ["ArrayT | None" if o.when else "ArrayT" for o in outputs]
    return kinds[0] if len(kinds) == 1 else f"tuple[{', '.join(kinds)}]"


def _taken(output: Output) -> str:
    how = "outputs.get" if output.when else "take"
    return f'answer.{how}("{output.name}")'


def _mapping(names: Iterable[str]) -> list[str]:
    entries = [f'            "{name}": {name},' for name in names]
    return ["        {", *entries, "        },"] if entries else ["        {},"]


def _docstring(op: Op) -> str:
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
        when = f" None unless {o.when}." if o.when else ""
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
    """The folder of the SDK's sources; found without running them, for they may be what is broken."""
    spec = importlib.util.find_spec("warpcall")
    if spec is None or not spec.submodule_search_locations:
        raise SystemExit("the package warpcall is not installed")
    return Path(next(iter(spec.submodule_search_locations)))


def main(arguments: list[str] | None = None) -> int:
    """The command; 1 if --check finds a file stale."""
    parser = argparse.ArgumentParser(
        prog="python -m warpcall_service.generate", description=__doc__
    )
    parser.add_argument("--check", action="store_true", help="write nothing, fail if stale")
    check = parser.parse_args(arguments).check
    stale = 0
    for name, text in render(ops()).items():
        path = target() / name
        if path.exists() and path.read_text() == text:
            continue
        if check:
            sys.stderr.write(f"{path} is stale: run python -m warpcall_service.generate\n")
            stale = 1
        else:
            path.write_text(text)
    return stale


if __name__ == "__main__":
    sys.exit(main())
