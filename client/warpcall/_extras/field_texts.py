"""The texts below the fields of a class, which describe them in the server's OpenAPI."""

from __future__ import annotations

import ast
import functools
import gc
import inspect
import itertools
import sys
from collections.abc import Iterator, Mapping
from typing import Any


def describe_fields(schema: dict[str, Any], described: type) -> None:
    """Add the texts of a class to the JSON schema of its fields, as pydantic's `json_schema_extra`.

    pydantic's own `use_attribute_docstrings` reads and parses the source of a class again for each
    route that answers with it, when the server starts: a quarter of a second. This runs only when
    somebody asks for the OpenAPI.

    Args:
        schema: of the class; it is changed.
        described: the class.
    """
    for base in reversed(described.__mro__):
        for name, text in _texts_of(base.__module__).get(base.__name__, {}).items():
            if name in schema["properties"]:
                schema["properties"][name]["description"] = text


@functools.cache
def _texts_of(module: str) -> Mapping[str, Mapping[str, str]]:
    """The texts of the fields of each class of a module of this package."""
    if not module.startswith("warpcall"):
        return {}
    tree = _parse(inspect.getsource(sys.modules[module]))
    return {node.name: dict(_texts(node)) for node in tree.body if isinstance(node, ast.ClassDef)}


def _parse(source: str) -> ast.Module:
    """Parse a source without the garbage collector.

    On Python 3.11, `ast.parse` raises SystemError if another thread parses meanwhile, as each traceback
    that is logged does. Other threads run in the midst of it only if it collects garbage.
    """
    collects = gc.isenabled()
    gc.disable()
    try:
        return ast.parse(source)
    finally:
        if collects:
            gc.enable()


def _texts(node: ast.ClassDef) -> Iterator[tuple[str, str]]:
    """The name and the text of each field that has a text below it."""
    for field, below in itertools.pairwise(node.body):
        match field, below:
            case (
                ast.AnnAssign(target=ast.Name(id=name)),
                ast.Expr(value=ast.Constant(value=str(text))),
            ):
                yield name, inspect.cleandoc(text)
