"""Gradients of torch tensors through calls: the backward pass makes calls to the same server.

This module never imports torch. A caller who passes a torch tensor has imported it already.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable, Coroutine, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from warpcall._answer import Answer
from warpcall._blocking import run_now
from warpcall.errors import InvalidInput

if TYPE_CHECKING:
    import torch

Tensors = Mapping[str, Any]
RunOp = Callable[[str, Tensors, Mapping[str, Any]], Coroutine[Any, Any, Answer[Any]]]
DETACH = "pass {name}.detach(), or call within torch.no_grad()"


@dataclass(frozen=True, slots=True)
class Recorded:
    """A call whose output has a gradient.

    Attributes:
        run_op: runs an op in the backward pass. It blocks.
        op: the op, with hyphens.
        params: the parameters that are given.
        tensors: names, shapes and dtypes of the inputs that are tensors of torch.
        inputs: inputs by name: when the call is recorded those that are stored tensors, and in the
            backward pass also the tensors that its rule saves.
    """

    run_op: RunOp
    op: str
    params: Mapping[str, Any]
    tensors: Mapping[str, tuple[torch.Size, torch.dtype]]
    inputs: Tensors

    def call(self, op: str, inputs: Tensors, **params: Any) -> Mapping[str, Any]:
        """Run an op on the server, and return its outputs.

        Raises:
            InvalidInput: autograd records the backward pass, and this op has no gradient.
        """
        if op not in RULES and (needed := needing_gradients(inputs)):
            raise InvalidInput(
                f"{self.op} of Warpcall has no second derivative, because {op} has no gradient: "
                "compute the first one without create_graph=True",
                field=needed[0],
            )
        return run_now(self.run_op(op, inputs, params)).outputs


Backward = Callable[
    [Recorded, "torch.Tensor", Mapping[str, bool]], Mapping[str, "torch.Tensor | None"]
]


@dataclass(frozen=True, slots=True)
class Rule:
    """How the gradients of an op are computed.

    Attributes:
        backward: takes the recorded call, the gradient of its output, and which gradients are
            wanted; returns gradients by the names of the inputs.
        saves: the names of the tensors that it needs: inputs, or "out". Others can be changed in
            place before the backward pass.
        without: the names of the inputs that have no gradient, although they could require one.
    """

    backward: Backward
    saves: frozenset[str] = frozenset()
    without: frozenset[str] = frozenset()


def needing_gradients(inputs: Tensors) -> list[str]:
    """The names of the inputs for which autograd wants gradients."""
    lib = sys.modules.get("torch")
    if lib is None or not lib.is_grad_enabled():
        return []
    return [n for n, v in inputs.items() if isinstance(v, lib.Tensor) and v.requires_grad]


def refuse_gradients(inputs: Tensors, what: str) -> None:
    """Raise InvalidInput if autograd wants gradients of an input, which `what` would lose."""
    for name in needing_gradients(inputs):
        raise InvalidInput(
            f"{name} requires a gradient, which {what} does not have: {DETACH.format(name=name)}",
            field=name,
        )


def check_differentiable(op: str, inputs: Tensors) -> None:
    """Raise InvalidInput if autograd wants gradients that the SDK cannot compute for this op."""
    if op not in RULES:
        refuse_gradients(inputs, op)
    elif rule := RULES[op]:
        refuse_gradients({n: v for n, v in inputs.items() if n in rule.without}, op)


def attach(
    run_op: RunOp, op: str, inputs: Tensors, params: Mapping[str, Any], output: torch.Tensor
) -> torch.Tensor:
    """The output of a call, as a node of autograd's graph.

    Args:
        run_op: runs an op in the backward pass. It must block.
        op: the op, with hyphens, for which `check_differentiable` has passed.
    """
    if RULES[op] is None:
        return output
    lib = sys.modules["torch"]
    tensors = {n: v for n, v in inputs.items() if isinstance(v, lib.Tensor)}
    others = {n: v for n, v in inputs.items() if n not in tensors and v is not None}
    known = {name: (tensor.shape, tensor.dtype) for name, tensor in tensors.items()}
    recorded = Recorded(run_op, op, params, known, others)
    attached: torch.Tensor = _function().apply(recorded, [output], *tensors.values())
    return attached


@functools.cache
def _function() -> Any:
    lib = sys.modules["torch"]

    class RemoteCall(lib.autograd.Function):  # type: ignore[misc,name-defined]  # lib is torch
        """A call that was made, with its backward pass."""

        @staticmethod
        def forward(
            ctx: Any, recorded: Recorded, made: list[torch.Tensor], *tensors: torch.Tensor
        ) -> torch.Tensor:
            output = made.pop()
            # A tensor that is not a view: autograd would refuse changes in place of a view.
            plain = lib.empty(0, dtype=output.dtype, device=output.device)
            plain.set_(output.untyped_storage(), output.storage_offset(), output.shape)
            known = {**dict(zip(recorded.tensors, tensors, strict=True)), "out": plain}
            rule = RULES[recorded.op]
            assert rule is not None
            saved = {name: tensor for name, tensor in known.items() if name in rule.saves}
            ctx.recorded, ctx.rule, ctx.saved = recorded, rule, list(saved)
            ctx.save_for_backward(*saved.values())
            return plain  # type: ignore[no-any-return]

        @staticmethod
        def backward(ctx: Any, grad: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
            recorded: Recorded = ctx.recorded
            saved = dict(zip(ctx.saved, ctx.saved_tensors, strict=True))
            call = replace(recorded, inputs={**recorded.inputs, **saved})
            wanted = dict(zip(recorded.tensors, ctx.needs_input_grad[2:], strict=True))
            grads = ctx.rule.backward(call, grad, wanted)
            found = [grads.get(name) if wanted[name] else None for name in wanted]
            return (None, None, *found)

    return RemoteCall


def _conv(
    call: Recorded, grad: torch.Tensor, wanted: Mapping[str, bool]
) -> Mapping[str, torch.Tensor | None]:
    inputs = {"grad_output": grad, "x": call.inputs["x"], "weight": call.inputs["weight"]}
    found = call.call("conv-backward", inputs, **call.params, bias=wanted.get("bias", False))
    return {name: found.get(f"grad_{name}") for name in ("x", "weight", "bias")}


def _masked_softmax(
    call: Recorded, grad: torch.Tensor, wanted: Mapping[str, bool]
) -> Mapping[str, torch.Tensor | None]:
    scale = {name: value for name, value in call.params.items() if name == "scale"}
    inputs = {"grad_output": grad, "output": call.inputs["out"]}
    if not wanted.get("bias"):
        return {"x": call.call("masked-softmax-backward", inputs, **scale)["grad_x"]}
    shape, dtype = call.tensors["bias"]
    inputs["bias"] = grad.new_zeros(shape, dtype=dtype)  # no value of it is read
    found = call.call("masked-softmax-bias-backward", inputs, **scale)
    return {"x": found["grad_x"], "bias": found["grad_bias"]}


def _permute(
    call: Recorded, grad: torch.Tensor, wanted: Mapping[str, bool]
) -> Mapping[str, torch.Tensor | None]:
    dims = [int(dim) % grad.dim() for dim in call.params["dims"]]
    inverse = sorted(range(len(dims)), key=dims.__getitem__)
    return {"x": call.call("permute", {"x": grad}, dims=inverse)["out"]}


def _transpose_add(
    call: Recorded, grad: torch.Tensor, wanted: Mapping[str, bool]
) -> Mapping[str, torch.Tensor | None]:
    grads = {}
    if wanted.get("a"):
        (*batch, h, w), dtype = call.tensors["a"]
        summed = _as_dtype(grad.sum_to_size((*batch, w, h)), dtype)
        rank = summed.dim()
        dims = (*range(rank - 2), rank - 1, rank - 2)
        grads["a"] = call.call("permute", {"x": summed}, dims=dims)["out"]
    if wanted.get("b"):
        shape, dtype = call.tensors["b"]
        grads["b"] = _as_dtype(grad.sum_to_size(shape), dtype)
    return grads


def _as_dtype(grad: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """The gradient of a term of this dtype; that of a real term is the real part."""
    return (grad if dtype.is_complex or not grad.is_complex() else grad.real).to(dtype)


# By op. None: the output has no gradient in torch either. Other ops have no rule.
RULES: dict[str, Rule | None] = {
    "conv": Rule(_conv, frozenset({"x", "weight"})),
    "isin": None,
    "masked-softmax": Rule(_masked_softmax, frozenset({"out"}), frozenset({"slopes"})),
    "permute": Rule(_permute),
    "transpose-add": Rule(_transpose_add),
}
