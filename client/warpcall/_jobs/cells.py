"""Takes from a notebook's cell what an upload needs: a function, and what it uses."""

from __future__ import annotations

import ast
import builtins
import symtable
import sys
from collections.abc import Iterator, Mapping
from types import ModuleType
from typing import Any

from warpcall.errors import InvalidInput


def needed_part(cell: str, wanted: str, names: Mapping[str, Any]) -> str:
    """The statements of a cell that define `wanted` and what it uses, after the imports of other cells.

    A cell that defines a function often uploads it, too, and the server has no client and no data to
    run such statements with. Statements that change a variable in use, such as `TABLE[0] = 1`, are
    needed as well.

    Args:
        names: what the notebook's names stand for.

    Returns:
        The whole cell if it does not define `wanted`, or cannot be a module, because it has a magic
        command or awaits something outside of functions.

    Raises:
        InvalidInput: what is needed is neither in this cell nor imported.
    """
    try:
        return _needed_part(cell, wanted, names)
    except SyntaxError:
        return cell


def _needed_part(cell: str, wanted: str, names: Mapping[str, Any]) -> str:
    statements = ast.parse(cell).body
    bound = [set(bound_names(statement)) for statement in statements]
    if not any(wanted in one for one in bound):
        return cell
    assigned = set[str]().union(
        *(bound_names(s) for s in statements if isinstance(s, ast.Assign | ast.AnnAssign))
    )
    known, kept = {wanted}, set[int]()
    for _ in statements:  # each round adds a statement, or is the last one
        before = len(kept)
        for at, statement in enumerate(statements):
            changes = known & assigned & set(_changed(statement))
            if at not in kept and (known & bound[at] or changes or _is_for_all(statement)):
                kept.add(at)
                known |= set(used_names(statement))
        if len(kept) == before:
            break
    elsewhere = known.difference(dir(builtins), *bound) & names.keys()
    if "*" in set().union(*bound):  # whatever is not found may come from that module
        elsewhere = set()
    imports = [_import_of(name, names[name], wanted) for name in sorted(elsewhere)]
    lines = cell.splitlines()
    numbers = {n for at in kept for n in _lines(statements[at])}
    future = [n for at in kept if _is_future(statements[at]) for n in _lines(statements[at])]
    first = [lines[n] for n in sorted(future)]
    rest = [lines[n] for n in sorted(numbers - set(future))]
    return "\n".join([*first, *imports, *rest]) + "\n"


def _lines(statement: ast.stmt) -> range:
    """The numbers of a statement's lines, with its decorators, from 0."""
    decorators = getattr(statement, "decorator_list", [])
    begin = min(one.lineno for one in (statement, *decorators))
    return range(begin - 1, statement.end_lineno or begin)


def _is_for_all(statement: ast.stmt) -> bool:
    """Whether a statement concerns names that it does not say, or how all others are read."""
    return "*" in bound_names(statement) or _is_future(statement)


def _is_future(statement: ast.stmt) -> bool:
    return isinstance(statement, ast.ImportFrom) and statement.module == "__future__"


def bound_names(statement: ast.stmt) -> Iterator[str]:
    """The names that a statement gives to something, at the top level of the cell."""
    waiting: list[ast.AST] = [statement]
    while waiting:
        node = waiting.pop()
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            yield node.name
            continue  # what is bound in it is its own
        if isinstance(node, ast.alias):
            yield node.asname or node.name.partition(".")[0]
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            yield node.id
        waiting += ast.iter_child_nodes(node)


def used_names(statement: ast.stmt) -> Iterator[str]:
    """The names of the notebook that a statement reads, now or when its function is called."""
    tables = [symtable.symtable(ast.unparse(statement), "cell", "exec")]
    while tables:
        table = tables.pop()
        is_top = table.get_type() == "module"
        for symbol in table.get_symbols():
            if symbol.is_referenced() and (is_top or symbol.is_global()):
                yield symbol.get_name()
        tables += table.get_children()


def _changed(statement: ast.stmt) -> Iterator[str]:
    """The names whose values a statement may change: by an item, an attribute or a method."""
    if isinstance(statement, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
        return
    for node in ast.walk(statement):
        target: ast.AST = node.func if isinstance(node, ast.Call) else node
        if isinstance(target, ast.Attribute | ast.Subscript) and (
            isinstance(node, ast.Call) or not isinstance(target.ctx, ast.Load)
        ):
            while isinstance(target, ast.Attribute | ast.Subscript):
                target = target.value
            if isinstance(target, ast.Name):
                yield target.id


def _import_of(name: str, value: object, wanted: str) -> str:
    """The statement that imports what another cell has imported under a name."""
    if isinstance(value, ModuleType):
        return f"import {value.__name__}" + (f" as {name}" if value.__name__ != name else "")
    module, own = getattr(value, "__module__", None), getattr(value, "__name__", None)
    if module != "__main__" and getattr(sys.modules.get(str(module)), str(own), None) is value:
        return f"from {module} import {own}" + (f" as {name}" if own != name else "")
    raise InvalidInput(
        f"{wanted} uses {name}, which another cell defines: define it in the same cell, or write the "
        "cells to a file with %%writefile and give its path",
        field="source",
    )
