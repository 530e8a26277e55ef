"""The ops as methods of Client.stored. Written by `python -m tools.generate_sdk`; do not edit."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence

from warpcall._answer import Answer
from warpcall._arrays import ArrayT
from warpcall._extras.arguments import ints
from warpcall._tensors import StoredTensor, TensorInput


class StoredOps(ABC):
    """One method per op. It blocks, and returns stored tensors."""

    @abstractmethod
    def call(
        self,
        name: str,
        inputs: Mapping[str, TensorInput[ArrayT] | None],
        params: Mapping[str, object] | None = None,
        *,
        timeout_s: float | None = None,
    ) -> Answer[StoredTensor[ArrayT]]:
        """Run any op."""

    def conv(
        self,
        x: TensorInput[ArrayT],
        weight: TensorInput[ArrayT],
        bias: TensorInput[ArrayT] | None = None,
        *,
        padding_l: int | None = None,
        softmax_weight: bool = False,
        timeout_s: float | None = None,
    ) -> StoredTensor[ArrayT]:
        """Run `Client.conv`, and store its outputs on the device."""
        answer = self.call(
            "conv",
            {"x": x, "weight": weight, "bias": bias},
            {"padding_l": padding_l, "softmax_weight": softmax_weight},
            timeout_s=timeout_s,
        )
        return answer.output("out")

    def conv_backward(
        self,
        grad_output: TensorInput[ArrayT],
        x: TensorInput[ArrayT],
        weight: TensorInput[ArrayT],
        *,
        padding_l: int | None = None,
        softmax_weight: bool = False,
        bias: bool = False,
        timeout_s: float | None = None,
    ) -> tuple[StoredTensor[ArrayT], StoredTensor[ArrayT], StoredTensor[ArrayT] | None]:
        """Run `Client.conv_backward`, and store its outputs on the device."""
        answer = self.call(
            "conv-backward",
            {"grad_output": grad_output, "x": x, "weight": weight},
            {"padding_l": padding_l, "softmax_weight": softmax_weight, "bias": bias},
            timeout_s=timeout_s,
        )
        return (
            answer.output("grad_x"),
            answer.output("grad_weight"),
            answer.outputs.get("grad_bias"),
        )

    def isin(
        self,
        elements: TensorInput[ArrayT],
        test_elements: TensorInput[ArrayT],
        *,
        assume_unique: bool = False,
        invert: bool = False,
        timeout_s: float | None = None,
    ) -> StoredTensor[ArrayT]:
        """Run `Client.isin`, and store its outputs on the device."""
        answer = self.call(
            "isin",
            {"elements": elements, "test_elements": test_elements},
            {"assume_unique": assume_unique, "invert": invert},
            timeout_s=timeout_s,
        )
        return answer.output("out")

    def masked_softmax(
        self,
        x: TensorInput[ArrayT],
        mask: TensorInput[ArrayT] | None = None,
        lengths: TensorInput[ArrayT] | None = None,
        bias: TensorInput[ArrayT] | None = None,
        slopes: TensorInput[ArrayT] | None = None,
        *,
        scale: float = 1.0,
        causal: bool = False,
        timeout_s: float | None = None,
    ) -> StoredTensor[ArrayT]:
        """Run `Client.masked_softmax`, and store its outputs on the device."""
        answer = self.call(
            "masked-softmax",
            {"x": x, "mask": mask, "lengths": lengths, "bias": bias, "slopes": slopes},
            {"scale": scale, "causal": causal},
            timeout_s=timeout_s,
        )
        return answer.output("out")

    def masked_softmax_backward(
        self,
        grad_output: TensorInput[ArrayT],
        output: TensorInput[ArrayT],
        *,
        scale: float = 1.0,
        timeout_s: float | None = None,
    ) -> StoredTensor[ArrayT]:
        """Run `Client.masked_softmax_backward`, and store its outputs on the device."""
        answer = self.call(
            "masked-softmax-backward",
            {"grad_output": grad_output, "output": output},
            {"scale": scale},
            timeout_s=timeout_s,
        )
        return answer.output("grad_x")

    def masked_softmax_bias_backward(
        self,
        grad_output: TensorInput[ArrayT],
        output: TensorInput[ArrayT],
        bias: TensorInput[ArrayT],
        *,
        scale: float = 1.0,
        timeout_s: float | None = None,
    ) -> tuple[StoredTensor[ArrayT], StoredTensor[ArrayT]]:
        """Run `Client.masked_softmax_bias_backward`, and store its outputs on the device."""
        answer = self.call(
            "masked-softmax-bias-backward",
            {"grad_output": grad_output, "output": output, "bias": bias},
            {"scale": scale},
            timeout_s=timeout_s,
        )
        return answer.output("grad_x"), answer.output("grad_bias")

    def permute(
        self,
        x: TensorInput[ArrayT],
        dims: int | Sequence[int],
        *further: int,
        timeout_s: float | None = None,
    ) -> StoredTensor[ArrayT]:
        """Run `Client.permute`, and store its outputs on the device."""
        answer = self.call(
            "permute",
            {"x": x},
            {"dims": ints("dims", dims, further)},
            timeout_s=timeout_s,
        )
        return answer.output("out")

    def transpose_add(
        self, a: TensorInput[ArrayT], b: TensorInput[ArrayT], *, timeout_s: float | None = None
    ) -> StoredTensor[ArrayT]:
        """Run `Client.transpose_add`, and store its outputs on the device."""
        answer = self.call(
            "transpose-add",
            {"a": a, "b": b},
            {},
            timeout_s=timeout_s,
        )
        return answer.output("out")
