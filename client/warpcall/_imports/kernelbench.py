"""Reads a problem of KernelBench: a file with `Model`, `get_inputs` and `get_init_inputs`."""

from __future__ import annotations

import ast
from collections.abc import Sequence
from pathlib import Path

from warpcall._cli.files import UsageError
from warpcall._imports.sources import (
    Candidate,
    Imported,
    implementation_source,
    module_name,
    problem_name,
    problem_source,
    upload_name,
)
from warpcall._jobs.cells import bound_names, needed_part, used_names
from warpcall._jobs.source import read_source

KIND = "kernelbench"
MODEL, NEW, INPUTS, INIT = "Model", "ModelNew", "get_inputs", "get_init_inputs"
NEEDED = (MODEL, INPUTS, INIT)
MOST_SIZES = 24
WANTED = "_warpcall_imported"  # a name that stands for all that is needed


def read_problem(path: Path, others: Sequence[Path]) -> Imported:
    """The problem of a file, and its implementations: `ModelNew` in this file and in others.

    Raises:
        UsageError: a file is no Python, or lacks what it must have; the message names it.
    """
    text, module = _read(path)
    names = _defined(module)
    if missing := [one for one in NEEDED if one not in names]:
        raise UsageError(
            f"{path}: a problem of KernelBench must define {', '.join(NEEDED)}; it lacks "
            f"{', '.join(missing)}"
        )
    file = module_name(path)
    # Its own ModelNew is left out, so that the problem stays the same when only that changes.
    text = _needed(text) if NEW in names else text
    sizes = sizes_of(text)
    candidates = []
    for one in [*([path] if NEW in names else []), *others]:
        candidates.append(_candidate(one, file, text, list(sizes), is_same=one == path))
    doc = ast.get_docstring(module) or f"{path.name}, a problem of KernelBench."
    return Imported(
        path=path,
        name=problem_name(path.stem),
        source=problem_source(doc.partition("\n")[0], KIND, {file: text}, file, sizes),
        candidates=candidates,
        assumed=_assumed(file, sizes),
    )


def sizes_of(text: str) -> dict[str, int]:
    """The integers that the top level assigns once, and that the inputs or weights follow from."""
    statements = ast.parse(text).body
    bound = [set(bound_names(one)) for one in statements]
    needed, before = {INPUTS, INIT}, 0
    while len(needed) != before:
        before = len(needed)
        for statement, names in zip(statements, bound, strict=True):
            if names & needed and not isinstance(statement, ast.ClassDef):
                needed |= set(used_names(statement))
    found: dict[str, int] = {}
    for statement, names in zip(statements, bound, strict=True):
        if isinstance(statement, ast.Assign | ast.AnnAssign) and len(names) == 1:
            (name,) = names
            value, times = statement.value, sum(name in one for one in bound)
            is_size = isinstance(value, ast.Constant) and type(value.value) is int
            if is_size and name in needed and times == 1 and _can_be_size(name, value.value):  # type: ignore[union-attr]
                found[name] = value.value  # type: ignore[union-attr]
    return dict([*found.items()][:MOST_SIZES])


def _can_be_size(name: str, value: int) -> bool:
    return value >= 0 and name[0].isalpha() and name.isascii() and name != "dtype"


def _candidate(path: Path, file: str, text: str, sizes: list[str], *, is_same: bool) -> Candidate:
    whole, module = _read(path)
    if NEW not in _defined(module):
        raise UsageError(f"{path}: an implementation for KernelBench must define the class {NEW}")
    new = module_name(path)
    files = {file: whole} if is_same else {file: text, new: whole}
    if not is_same and new == file:
        raise UsageError(f"{path}: the file of {NEW} must not have the name of the problem's file")
    source = implementation_source(f"{NEW} of {path.name}.", KIND, files, file, new, sizes)
    return Candidate(path, "new" if is_same else upload_name(path), source)


def _read(path: Path) -> tuple[str, ast.Module]:
    text = read_source(path)
    try:
        return text, ast.parse(text)
    except (SyntaxError, ValueError, RecursionError) as error:
        line = getattr(error, "lineno", None)
        where = f"line {line}: " if line else ""
        raise UsageError(f"{path}: {where}{type(error).__name__}: {error}") from None


def _defined(module: ast.Module) -> set[str]:
    return {name for one in module.body for name in bound_names(one)}


def _needed(text: str) -> str:
    wanted = f"{WANTED} = ({', '.join(NEEDED)})"
    return needed_part(f"{text}\n{wanted}\n", WANTED, {}).replace(f"{wanted}\n", "")


def _assumed(file: str, sizes: dict[str, int]) -> list[str]:
    listed = ", ".join(f"{name}={value}" for name, value in sizes.items())
    return [
        f"sizes: {listed}: integers of {file}, which --size changes in all files"
        if sizes
        else f"sizes: none, {file} assigns no integers that its inputs follow from",
        f"inputs: the server draws new values for each check, in the shapes and distributions of {INPUTS}()",
        (
            f"weights: {MODEL} and {NEW} are each made once in a case, after torch.manual_seed(42), and only "
            "their calls are timed"
        ),
        (
            f"results: compared with {MODEL} in double precision, by the tolerances of problems, not by one "
            "atol and rtol"
        ),
        "odd cases: not checked, because the file names the only sizes",
    ]
