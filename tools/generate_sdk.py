"""Write the typed methods of the SDK, client/warpcall/_generated/, from the ops' declarations.

python -m tools.generate_sdk          write the files
python -m tools.generate_sdk --check  fail if a file is stale
"""

from __future__ import annotations

import argparse
import importlib.util
import keyword
import subprocess
import sys
import textwrap
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from warpcall.dtypes import DTYPES
from warpcall_kernels import Op, ops
from warpcall_kernels.op.declaration import Input, Output, Param, dtype_name

WIDTH = 100
# Kernels take complex128, too, which no body can carry.
ON_THE_WIRE = frozenset(dtype.name for dtype in DTYPES)
# Names of the clients' and programs' own members, which no op may take.
RESERVED = {"call", "run", "kernels", "kernel", "health", "close", "url", "jobs", "me"}
RESERVED |= {"put", "tensors", "stored", "program", "step", "op", "ops", "nodes", "devices"}
RESERVED |= {"implementations", "problems", "explain"}
TIMEOUT_DOC = "seconds that this call may take, its retries included; None means the client's."
ARGUMENTS = {"self", "timeout_s"}  # arguments of every method
PARAM_TYPES = {"bool": "bool", "int": "int", "float": "float", "ints": "Sequence[int]"}

HEAD = '''"""{about}. Written by `python -m tools.generate_sdk`; do not edit."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence

{imports}
'''
CLASS = '''

class {name}(ABC):
    """One method per op. It {does}."""

    @abstractmethod
    {begin}def {runner}
'''
INTS = "from warpcall._extras.arguments import ints"
CALL = '''call(
        self,
        name: str,
        inputs: Mapping[str, TensorInput[ArrayT] | None],
        params: Mapping[str, object] | None = None,
        *,
        timeout_s: float | None = None,
    ) -> Answer[%s]:
        """Run any op."""'''
STEP = '''step(
        self, op: str, inputs: Mapping[str, StepInput | None], params: Mapping[str, object]
    ) -> Step:
        """Add a step that runs any op."""'''


@dataclass(frozen=True)
class Flavour:
    """How one generated class differs from the others.

    Args:
        name: of the class.
        does: what its methods do, for the docstring of the class.
        takes, gives: the types of an input and of an output.
        begin: what stands before `def`.
        doc: a docstring in place of the op's own; {name} stands for the method's name.
        lazy: whether a method adds a step, instead of running the op.
    """

    name: str
    does: str
    gives: str
    takes: str = "TensorInput[ArrayT]"
    begin: str = ""
    doc: str = ""
    lazy: bool = False

    @property
    def head(self) -> str:
        """The class up to its methods."""
        return CLASS.format(**vars(self), runner=STEP if self.lazy else CALL % self.gives)

    @property
    def run(self) -> str:
        """The expression that runs an op."""
        return "self.step" if self.lazy else f"{'await ' if self.begin else ''}self.call"


STORED_DOC = "Run `{client}.{{name}}`, and store its outputs on the device."
OPS = Flavour("Ops", "blocks, and returns arrays", "ArrayT")
STORED_OPS = Flavour(
    "StoredOps",
    "blocks, and returns stored tensors",
    "StoredTensor[ArrayT]",
    doc=STORED_DOC.format(client="Client"),
)
ASYNC_OPS = Flavour("AsyncOps", "is awaited, and returns arrays", "ArrayT", begin="async ")
ASYNC_STORED_OPS = Flavour(
    "AsyncStoredOps",
    "is awaited, and returns stored tensors",
    "AsyncStoredTensor[ArrayT]",
    begin="async ",
    doc=STORED_DOC.format(client="AsyncClient"),
)
PROGRAM_OPS = Flavour(
    "ProgramOps",
    "adds a step to the program, and returns references to its outputs",
    "Ref",
    takes="StepInput",
    lazy=True,
)
CLIENT_IMPORTS = """from warpcall._answer import Answer
from warpcall._arrays import ArrayT
from warpcall._tensors import"""
FILES: dict[str, tuple[str, str, list[Flavour]]] = {
    "ops.py": (
        "The ops as methods of Client",
        f"{CLIENT_IMPORTS} TensorInput",
        [OPS],
    ),
    "stored_ops.py": (
        "The ops as methods of Client.stored",
        f"{CLIENT_IMPORTS} StoredTensor, TensorInput",
        [STORED_OPS],
    ),
    "async_ops.py": (
        "The ops as methods of AsyncClient",
        f"{CLIENT_IMPORTS} TensorInput",
        [ASYNC_OPS],
    ),
    "async_stored_ops.py": (
        "The ops as methods of AsyncClient.stored",
        f"{CLIENT_IMPORTS} AsyncStoredTensor, TensorInput",
        [ASYNC_STORED_OPS],
    ),
    "program_ops.py": (
        "The ops as steps of a program",
        "from warpcall._steps import Ref, Step, StepInput",
        [PROGRAM_OPS],
    ),
}


def render(found: Mapping[str, Op]) -> dict[str, str]:
    """The texts of the generated files for these ops, by file name, as ruff formats them.

    Raises:
        ValueError: an op, or an argument of it, has a name that a method cannot have.
    """
    texts = {}
    for file, (about, imports, flavours) in FILES.items():
        if any(map(_positional, found.values())):
            imports = "\n".join(sorted([*imports.split("\n"), INTS]))
        text = HEAD.format(about=about, imports=imports)
        for flavour in flavours:
            methods = "\n".join(_method(op, flavour) for op in found.values())
            text += f"{flavour.head}\n{textwrap.indent(methods, '    ', _is_filled)}"
        texts[file] = _formatted(text)
    return texts


def _formatted(text: str) -> str:
    ruff = [sys.executable, "-m", "ruff", "format", f"--line-length={WIDTH}", "-"]
    return subprocess.run(ruff, input=text, stdout=subprocess.PIPE, text=True, check=True).stdout


def _method(op: Op, flavour: Flavour) -> str:
    name = op.name.replace("-", "_")
    if not name.isidentifier() or keyword.iskeyword(name) or name in RESERVED:
        raise ValueError(f"{op.name} cannot be the name of a method")
    for name_taken in ARGUMENTS & ({p.name for p in op.params} | {i.name for i in op.inputs}):
        raise ValueError(f"{op.name} cannot have an argument named {name_taken}")
    inputs = sorted(op.inputs, key=lambda i: i.optional)
    arguments = ["self", *(_input(i, flavour.takes) for i in inputs)]
    star, options = "*", op.params
    values = {p.name: p.name for p in op.params}
    if positional := _positional(op):
        arguments.append(f"{positional.name}: int | Sequence[int]")
        star, options = "*further: int", tuple(p for p in op.params if p != positional)
        values[positional.name] = f'ints("{positional.name}", {positional.name}, further)'
    named = list(map(_param, options))
    if not flavour.lazy:
        named.append("timeout_s: float | None = None")
    if named or positional:
        arguments += [star, *named]
    doc = f'"""{flavour.doc.format(name=name)}"""' if flavour.doc else _docstring(op, flavour)
    outputs = ", ".join(_output(o, flavour) for o in op.outputs)
    lines = [
        f"{flavour.begin}def {name}({', '.join(arguments)}) -> {_return_type(op, flavour)}:",
        textwrap.indent(doc, "    ", _is_filled),
        f"    answer = {flavour.run}(",
        f'        "{op.name}",',
        f"        {_mapping({i.name: i.name for i in op.inputs})},",
        f"        {_mapping(values)},",
        "" if flavour.lazy else "        timeout_s=timeout_s,",
        "    )",
        f"    return {outputs}",
    ]
    return "\n".join(lines) + "\n"


def _positional(op: Op) -> Param | None:
    """The integers that follow the inputs as torch takes them: permute(x, (1, 0)), permute(x, 1, 0)."""
    if any(i.optional for i in op.inputs):
        return None
    return next((p for p in op.params if p.required and p.kind == "ints"), None)


def _input(declared: Input, kind: str) -> str:
    return f"{declared.name}: {kind}" + (" | None = None" if declared.optional else "")


def _param(declared: Param) -> str:
    kind = PARAM_TYPES[declared.kind]
    if declared.required:
        return f"{declared.name}: {kind}"
    if declared.default is None:
        return f"{declared.name}: {kind} | None = None"
    return f"{declared.name}: {kind} = {declared.default!r}"


def _return_type(op: Op, flavour: Flavour) -> str:
    types = [
        f"{flavour.gives} | None" if o.when and not flavour.lazy else flavour.gives
        for o in op.outputs
    ]
    return types[0] if len(types) == 1 else f"tuple[{', '.join(types)}]"


def _output(output: Output, flavour: Flavour) -> str:
    if flavour.lazy:
        return f'answer["{output.name}"]'
    return f'answer.{"outputs.get" if output.when else "output"}("{output.name}")'


def _mapping(values: Mapping[str, str]) -> str:
    return "{" + ", ".join(f'"{name}": {value}' for name, value in values.items()) + "}"


def _docstring(op: Op, flavour: Flavour) -> str:
    summary = str(op.describe()["summary"]) or f"Run {op.name}."
    parts = [
        _wrapped(summary, "", 8, first=3),
        "",
        _wrapped(f"Equivalent to `{op.equivalent}`.", "", 8),
    ]
    if op.limits:
        parts += ["", _wrapped(f"Limits: {_sentence(op.limits)}", "", 8)]
    parts += ["", "Args:"]
    for i in op.inputs:
        dtypes = ", ".join(name for name in map(dtype_name, i.dtypes) if name in ON_THE_WIRE)
        parts.append(_wrapped(f"{i.name}: {_sentence(f'{i.shape}; {i.doc}')} Dtypes: {dtypes}."))
    parts += [_wrapped(f"{p.name}: {_sentence(p.doc)}") for p in op.params]
    if not flavour.lazy:
        parts.append(_wrapped(f"timeout_s: {TIMEOUT_DOC}"))
    absent = "There only if" if flavour.lazy else "None unless"
    parts += ["", "Returns:"]
    for o in op.outputs:
        when = f" {absent} {o.when}." if o.when else ""
        parts.append(_wrapped(f"{o.name}: {_sentence(f'{o.shape}; {o.doc}')}{when}"))
    body = "\n".join(parts)
    mark = 'r"""' if "\\" in body else '"""'
    return f'{mark}{body}\n"""'


def _sentence(text: str) -> str:
    text = text.strip().strip(";").strip()
    return text if text.endswith((".", "!", "?")) else f"{text}."


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
