"""Declarations of ops and of problems, for commands that take the name of either."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from warpcall import Client
from warpcall._cli.op_args import option, size_option
from warpcall._jobs.names import is_problem, without_version
from warpcall.dtypes import dtype_name
from warpcall.errors import NotFound


def declaration_of(gpu: Client, op: str) -> dict[str, Any]:
    """The declaration of an op such as "permute", or of a problem such as "ann/row-norm".

    Raises:
        NotFound: there is none, or the problem is private to another user.
    """
    if is_problem(op):
        found = gpu.problems.get(op).declaration
        sizes = {size["name"] for size in found.get("sizes", ())}
        # A size may also be a parameter of the functions. It is chosen as a size.
        params = [one for one in found["params"] if one["name"] not in sizes]
        return {**found, "params": params, "name": without_version(op)}
    try:
        return gpu.kernel(op)
    except NotFound as error:
        if error.detail.endswith("?"):  # the server knows what was meant
            raise
        raise NotFound(
            f"{error.detail}; problems have the name of their user, such as ann/row-norm: "
            "`warpcall problems list`"
        ) from None


def declaration_lines(op: Mapping[str, Any]) -> Iterator[str]:
    """What an op takes and returns, for readers."""
    yield f"{op['name']}: {op['summary']}" if op["summary"] else str(op["name"])
    if op["equivalent"]:
        yield f"equivalent to {op['equivalent']}"
    yield ""
    for i in op["inputs"]:
        yield f"  {input_label(i)} {i['shape']}  {i['doc']} ({', '.join(map(dtype_name, i['dtypes']))})"
    for p in op["params"]:
        yield f"  {option_label(p)}  {p['doc']}{_default(p['default'])}"
    for o in op["outputs"]:
        yield f"  -> {o['name']} {o['shape']}  {o['doc']}"
    sizes = op.get("sizes", [])  # older servers do not send them
    codes = op.get("dtypes", [])  # only problems have them
    if sizes or codes:
        yield "options of `warpcall bench`:"
    for size in sizes:
        yield f"  {size_option(size)}  {size['doc']}{_default(size['default'])}"
    if codes:
        dtypes = list(map(dtype_name, codes))
        yield f"  --dtype {','.join(dtypes)}  (default {dtypes[0]})"


def input_label(declared: Mapping[str, Any]) -> str:
    """The name of an input, in brackets if it is optional."""
    return f"[{declared['name']}]" if declared["optional"] else str(declared["name"])


def option_label(declared: Mapping[str, Any]) -> str:
    """A parameter as an option, in brackets if it is optional."""
    return option(declared) if declared["required"] else f"[{option(declared)}]"


def _default(default: object) -> str:
    return "" if default is None or default is False else f" (default {default})"
