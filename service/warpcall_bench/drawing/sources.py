"""Source code as the pages show it: highlighted on the server, and the difference of two versions."""

from __future__ import annotations

import difflib
import functools
import importlib.util
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from markupsafe import Markup
from pygments import highlight
from pygments.formatters import HtmlFormatter
from pygments.lexers import PythonLexer

LIBRARY = "warpcall_kernels"
FAMILY = f"{LIBRARY}._"  # folders that ops share begin like this
MOST_CHARACTERS = 64 << 10  # of a source that is highlighted; longer ones are shown as plain text
MOST_LINES = 2000  # of each of two sources whose difference is shown
PART_LINES = 25  # that a browser lays out together; the style has the height of so many
CONTEXT = 4  # lines around a difference
# Kinds of tokens that the style draws in another way than the rest, by the names of Pygments. Other
# tokens are no elements: these would be most of the elements of a page with a source.
STYLED = frozenset(
    (
        *("k", "kn", "ow", "kc", "s", "s1", "s2", "sd", "sa", "si", "se", "c1", "ch"),
        *("mi", "mf", "mh", "nf", "nc", "nd", "nb", "bp"),
    )
)
TOKEN = re.compile(r'<span class="(\w+)">([^<]*)</span>')
# An import from a folder that ops share. Parsing the files of all ops takes 0.2 s, this 2 ms.
IMPORT = re.compile(rf"^from ({re.escape(FAMILY)}[\w.]*) import (\([^)]*\)|[^\n]*)", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class SourceFile:
    """A file of the library, by its path in the package."""

    path: str
    text: str


@dataclass(frozen=True, slots=True)
class DiffLine:
    """A line of a difference. `kind` is "added", "removed", "kept" or "gap"."""

    kind: str
    text: str
    before: int | None = None
    after: int | None = None


@functools.cache
def _highlighter() -> tuple[Any, Any]:
    return PythonLexer(stripnl=False), HtmlFormatter(nowrap=True)


def load_highlighter() -> None:
    """Compile the expressions of the lexer. The first page with a source would wait for them."""
    highlight("x = 1", *_highlighter())


@functools.lru_cache(maxsize=64)
def highlighted(text: str, first: int = 1) -> Markup:
    """Python source as HTML. Each line is an element with its number, so that the style can show it.

    The number of the first line is `first`. PART_LINES lines are an element, too: a browser lays out
    those parts that a reader sees, so that the first paint does not wait for the others.
    """
    if len(text) > MOST_CHARACTERS:
        lines = [Markup.escape(line) for line in text.splitlines()]
    else:
        marked = TOKEN.sub(_styled, highlight(text, *_highlighter()))
        lines = [Markup(line) for line in marked.splitlines()]  # nosec B704  # it is escaped
    return _numbered(lines, first)


def _styled(token: re.Match[str]) -> str:
    """A token as an element, or only its text if the style does not draw it in another way."""
    return token[0] if token[1] in STYLED else token[2]


def plain(text: str) -> Markup:
    """Another text as HTML, with the lines of `highlighted`."""
    return _numbered(text.expandtabs().splitlines())


def _numbered(lines: Sequence[str], first: int = 1) -> Markup:
    numbered = [
        Markup('<span data-n="{}">{}\n</span>').format(number, line)
        for number, line in enumerate(lines, first)
    ]
    return Markup("").join(
        Markup("<span>{}</span>").format(Markup("").join(numbered[begin : begin + PART_LINES]))
        for begin in range(0, len(numbered), PART_LINES)
    )


def definition(text: str, name: str) -> tuple[int, str] | None:
    """The number of the first line of a function's definition, and its lines with the decorators.

    None if there is no such function. The source is not parsed, because code of users may be built
    to make a parser slow: the definition ends at the first line that is indented no further.
    """
    lines = text.splitlines()
    head = re.compile(rf"(\s*)(async\s+)?def\s+{re.escape(name)}\s*\(")
    found = next(((n, m[1]) for n, line in enumerate(lines) if (m := head.match(line))), None)
    if found is None:
        return None
    begin, indent = found
    end, at = begin + 1, begin
    while at and _continues(lines[at - 1], indent, "@)]}#"):
        at -= 1
        if lines[at].startswith(f"{indent}@"):
            begin = at
    while end < len(lines) and (not lines[end].strip() or _continues(lines[end], indent, ")]}")):
        end += 1
    return begin + 1, "\n".join(lines[begin:end]).rstrip() + "\n"


def _continues(line: str, indent: str, starts: str) -> bool:
    """Whether a line is indented further than `indent`, or goes on with one of these characters."""
    rest = line.removeprefix(indent)
    return line.startswith(indent) and bool(rest.strip()) and rest[0] in f" \t{starts}"


def difference(before: str, after: str) -> list[DiffLine] | None:
    """The lines that differ, with some around them; None if the sources are too long for it."""
    old, new = before.splitlines(), after.splitlines()
    if max(len(old), len(new)) > MOST_LINES:
        return None
    found: list[DiffLine] = []
    groups = difflib.SequenceMatcher(None, old, new).get_grouped_opcodes(CONTEXT)
    for group in groups:
        found.append(DiffLine("gap", f"from line {group[0][3] + 1}"))
        for tag, i1, i2, j1, j2 in group:
            if tag == "equal":
                found += [
                    DiffLine("kept", line, i1 + n + 1, j1 + n + 1)
                    for n, line in enumerate(old[i1:i2])
                ]
            else:
                found += [DiffLine("removed", old[n], n + 1) for n in range(i1, i2)]
                found += [DiffLine("added", new[n], None, n + 1) for n in range(j1, j2)]
    return found


@functools.cache
def files_of_op(op: str) -> Sequence[SourceFile]:
    """The file of a shipped op, and the files of its family that it uses; empty if there is none.

    They are read from the installed library, which is not imported.
    """
    spec = importlib.util.find_spec(LIBRARY)
    if spec is None or not spec.submodule_search_locations:
        return ()
    root = Path(spec.submodule_search_locations[0])
    found: dict[str, SourceFile] = {}
    waiting = [f"{LIBRARY}.{op.replace('-', '_')}"]
    while waiting:
        module = waiting.pop(0)
        path = _path(root, module)
        if path is None or module in found:
            continue
        text = path.read_text()
        found[module] = SourceFile(path.relative_to(root).as_posix(), text)
        waiting += _family_modules(text, root)
    return tuple(one for one in found.values() if one.text.strip())


def _path(root: Path, module: str) -> Path | None:
    base = root.joinpath(*module.split(".")[1:])
    return next((p for p in (base.with_suffix(".py"), base / "__init__.py") if p.is_file()), None)


def _family_modules(text: str, root: Path) -> list[str]:
    found = []
    for module, names in IMPORT.findall(text):
        lines = [line.partition("#")[0] for line in names.strip("()").splitlines()]
        imported = [name.split()[0] for name in ",".join(lines).split(",") if name.strip()]
        submodules = [f"{module}.{name}" for name in imported]
        found += [module, *(name for name in submodules if _path(root, name))]
    return found
