"""The generated methods match the declarations of the ops."""

from __future__ import annotations

import ast
import dataclasses
import inspect
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from torch import Tensor

from tools.generate_sdk import main, render
from warpcall import AsyncClient, Client, Program
from warpcall._generated.async_stored_ops import AsyncStoredOps
from warpcall._generated.stored_ops import StoredOps
from warpcall_kernels import Op, ops
from warpcall_kernels.op.declaration import Input, Meta, Output, Param


def blend(a: Tensor, b: Tensor | None = None, *, dims: tuple[int, ...], sharp: bool) -> Tensor:
    r"""Blend two things \ or one, in a sentence that is long enough to be wrapped when it is
    indented.
    """
    return a


def infer(a: Tensor, b: Tensor | None = None, **params: object) -> dict[str, Meta]:
    return {"out": Meta(tuple(a.shape), a.dtype)}


BLEND = Op(
    name="blend-two",
    function=blend,
    reference=blend,
    infer=infer,
    bytes_moved=lambda a, b=None, **params: 0,
    inputs=(
        Input("a", (torch.float32,), "[..., K]", "the first"),
        Input("b", (torch.float32, torch.bool), "[K]", "the second", optional=True),
    ),
    outputs=(Output("out", "[..., K]", "the blend"), Output("rest", "[K]", "", when="b is given")),
    equivalent="a if b is None else a + b",
    cases=(),
    params=(
        Param("dims", "ints", "which dims", required=True),
        Param("sharp", "bool", "whether", default=False),
        Param("order", "int", "how often " * 12),
    ),
)


def test_the_generated_files_are_fresh() -> None:
    assert main(["--check"]) == 0


@pytest.mark.parametrize("name", sorted(ops()))
@pytest.mark.parametrize("client", [Client, StoredOps, AsyncClient, AsyncStoredOps, Program])
def test_each_op_has_a_method_that_takes_what_it_declares(client: type, name: str) -> None:
    method = getattr(client, name.replace("-", "_"))
    op = ops()[name]

    parameters = inspect.signature(method).parameters

    own = {"self"} if client is Program else {"self", "timeout_s"}
    if name == "permute":  # as torch has it: permute(x, (1, 0)) and permute(x, 1, 0)
        assert parameters["dims"].kind is inspect.Parameter.POSITIONAL_OR_KEYWORD
        assert parameters["further"].kind is inspect.Parameter.VAR_POSITIONAL
        own |= {"further"}
    assert set(parameters) == {*own, *(i.name for i in op.inputs), *(p.name for p in op.params)}
    for p in op.params:
        assert p.name == "dims" or parameters[p.name].kind is inspect.Parameter.KEYWORD_ONLY
        if not p.required:
            assert parameters[p.name].default == p.default
    assert inspect.iscoroutinefunction(method) is (client in (AsyncClient, AsyncStoredOps))


def test_a_method_names_only_dtypes_that_a_body_can_carry() -> None:
    text = inspect.getdoc(Client.permute) or ""

    assert "float8_e8m0fnu, complex64" in " ".join(text.split())
    assert "complex128" not in text


def test_a_method_follows_its_declaration() -> None:
    trees = map(ast.parse, render({"blend-two": BLEND}).values())

    arrays, stored, awaited, awaited_stored, program = (
        node.body[-1] for tree in trees for node in tree.body if isinstance(node, ast.ClassDef)
    )

    assert isinstance(arrays, ast.FunctionDef)
    assert isinstance(stored, ast.FunctionDef)
    assert isinstance(awaited, ast.AsyncFunctionDef)
    assert isinstance(awaited_stored, ast.AsyncFunctionDef)
    assert isinstance(program, ast.FunctionDef)
    assert arrays.name == "blend_two"
    assert ast.unparse(arrays.args) == (
        "self, a: TensorInput[ArrayT], b: TensorInput[ArrayT] | None=None, *, dims: Sequence[int], "
        "sharp: bool=False, order: int | None=None, timeout_s: float | None=None"
    )
    assert returned(arrays) == returned(awaited) == "tuple[ArrayT, ArrayT | None]"
    assert returned(stored) == "tuple[StoredTensor[ArrayT], StoredTensor[ArrayT] | None]"
    assert returned(awaited_stored) == returned(stored).replace("Stored", "AsyncStored")
    assert returned(program) == "tuple[Ref, Ref]"
    assert "Dtypes: float32, bool." in (ast.get_docstring(arrays) or "")


def returned(method: ast.FunctionDef | ast.AsyncFunctionDef) -> str:
    return ast.unparse(method.returns or ast.Constant(0))


def test_formatting_changes_nothing(tmp_path: Path) -> None:
    for name, text in render({**ops(), "blend-two": BLEND}).items():
        (tmp_path / name).write_text(text)

    done = subprocess.run(
        [sys.executable, "-m", "ruff", "format", "--diff", "--line-length=100", str(tmp_path)],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )

    assert (done.returncode, done.stdout) == (0, "")


@pytest.mark.parametrize(
    "name", ["run", "close", "put", "stored", "jobs", "program", "class", "2d"]
)
def test_an_op_cannot_take_a_name_that_methods_cannot_have(name: str) -> None:
    with pytest.raises(ValueError, match="cannot be the name of a method"):
        render({name: dataclasses.replace(BLEND, name=name)})


@pytest.mark.parametrize("name", ["self", "timeout_s"])
def test_an_op_cannot_have_a_parameter_that_methods_have_themselves(name: str) -> None:
    op = dataclasses.replace(BLEND, params=(Param(name, "bool", "whether"),))

    with pytest.raises(ValueError, match=f"argument named {name}"):
        render({"blend-two": op})
