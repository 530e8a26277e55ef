"""The ops as methods of AsyncClient.stored. Written by `python -m tools.generate_sdk`; do not edit."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence

from warpcall._answer import Answer
from warpcall._arrays import ArrayT
from warpcall._extras.arguments import ints
from warpcall._tensors import AsyncStoredTensor, TensorInput


class AsyncStoredOps(ABC):
    """One method per op. It is awaited, and returns stored tensors."""

    @abstractmethod
    async def call(
        self,
        name: str,
        inputs: Mapping[str, TensorInput[ArrayT] | None],
        params: Mapping[str, object] | None = None,
        *,
        timeout_s: float | None = None,
    ) -> Answer[AsyncStoredTensor[ArrayT]]:
        """Run any op."""

    async def conv(
        self,
        x: TensorInput[ArrayT],
        weight: TensorInput[ArrayT],
        bias: TensorInput[ArrayT] | None = None,
        *,
        padding_l: int | None = None,
        softmax_weight: bool = False,
        timeout_s: float | None = None,
    ) -> AsyncStoredTensor[ArrayT]:
        """Run `AsyncClient.conv`, and store its outputs on the device."""
        answer = await self.call(
            "conv",
            {"x": x, "weight": weight, "bias": bias},
            {"padding_l": padding_l, "softmax_weight": softmax_weight},
            timeout_s=timeout_s,
        )
        return answer.output("out")

    async def conv_backward(
        self,
        grad_output: TensorInput[ArrayT],
        x: TensorInput[ArrayT],
        weight: TensorInput[ArrayT],
        *,
        padding_l: int | None = None,
        softmax_weight: bool = False,
        bias: bool = False,
        timeout_s: float | None = None,
    ) -> tuple[
        AsyncStoredTensor[ArrayT], AsyncStoredTensor[ArrayT], AsyncStoredTensor[ArrayT] | None
    ]:
        """Run `AsyncClient.conv_backward`, and store its outputs on the device."""
        answer = await self.call(
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

    async def isin(
        self,
        elements: TensorInput[ArrayT],
        test_elements: TensorInput[ArrayT],
        *,
        assume_unique: bool = False,
        invert: bool = False,
        timeout_s: float | None = None,
    ) -> AsyncStoredTensor[ArrayT]:
        """Run `AsyncClient.isin`, and store its outputs on the device."""
        answer = await self.call(
            "isin",
            {"elements": elements, "test_elements": test_elements},
            {"assume_unique": assume_unique, "invert": invert},
            timeout_s=timeout_s,
        )
        return answer.output("out")

    async def masked_softmax(
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
    ) -> AsyncStoredTensor[ArrayT]:
        """Run `AsyncClient.masked_softmax`, and store its outputs on the device."""
        answer = await self.call(
            "masked-softmax",
            {"x": x, "mask": mask, "lengths": lengths, "bias": bias, "slopes": slopes},
            {"scale": scale, "causal": causal},
            timeout_s=timeout_s,
        )
        return answer.output("out")

    async def masked_softmax_backward(
        self,
        grad_output: TensorInput[ArrayT],
        output: TensorInput[ArrayT],
        *,
        scale: float = 1.0,
        timeout_s: float | None = None,
    ) -> AsyncStoredTensor[ArrayT]:
        """Run `AsyncClient.masked_softmax_backward`, and store its outputs on the device."""
        answer = await self.call(
            "masked-softmax-backward",
            {"grad_output": grad_output, "output": output},
            {"scale": scale},
            timeout_s=timeout_s,
        )
        return answer.output("grad_x")

    async def masked_softmax_bias_backward(
        self,
        grad_output: TensorInput[ArrayT],
        output: TensorInput[ArrayT],
        bias: TensorInput[ArrayT],
        *,
        scale: float = 1.0,
        timeout_s: float | None = None,
    ) -> tuple[AsyncStoredTensor[ArrayT], AsyncStoredTensor[ArrayT]]:
        """Run `AsyncClient.masked_softmax_bias_backward`, and store its outputs on the device."""
        answer = await self.call(
            "masked-softmax-bias-backward",
            {"grad_output": grad_output, "output": output, "bias": bias},
            {"scale": scale},
            timeout_s=timeout_s,
        )
        return answer.output("grad_x"), answer.output("grad_bias")

    async def permute(
        self,
        x: TensorInput[ArrayT],
        dims: int | Sequence[int],
        *further: int,
        timeout_s: float | None = None,
    ) -> AsyncStoredTensor[ArrayT]:
        """Run `AsyncClient.permute`, and store its outputs on the device."""
        answer = await self.call(
            "permute",
            {"x": x},
            {"dims": ints("dims", dims, further)},
            timeout_s=timeout_s,
        )
        return answer.output("out")

    async def transpose_add(
        self, a: TensorInput[ArrayT], b: TensorInput[ArrayT], *, timeout_s: float | None = None
    ) -> AsyncStoredTensor[ArrayT]:
        """Run `AsyncClient.transpose_add`, and store its outputs on the device."""
        answer = await self.call(
            "transpose-add",
            {"a": a, "b": b},
            {},
            timeout_s=timeout_s,
        )
        return answer.output("out")
