"""What kernels must avoid so that every version of Triton that we allow compiles them."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import warpcall_kernels


def test_no_kernel_builds_a_tuple_with_none() -> None:
    """Triton 3.6 cannot return such a tuple from a function, and 3.7 can."""
    found = []
    for file in sorted(Path(warpcall_kernels.__file__).parent.rglob("*.py")):
        for function in jit_functions(ast.parse(file.read_text())):
            for node in ast.walk(function):
                if not isinstance(node, ast.Call | ast.Return):
                    continue
                parts: list[ast.expr] = []
                if isinstance(node, ast.Call) and ast.unparse(node.func)[:1].isupper():
                    parts = node.args
                elif isinstance(node, ast.Return) and isinstance(node.value, ast.Tuple):
                    parts = node.value.elts
                if any(isinstance(part, ast.Constant) and part.value is None for part in parts):
                    found.append(f"{file.name}:{node.lineno}")

    assert found == []


def jit_functions(tree: ast.Module) -> Iterator[ast.FunctionDef]:
    for node in tree.body:
        if isinstance(node, ast.FunctionDef) and any(
            "jit" in ast.unparse(decorator) for decorator in node.decorator_list
        ):
            yield node
