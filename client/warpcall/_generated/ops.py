"""The ops as methods of Client. Written by `python -m tools.generate_sdk`; do not edit."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence

from warpcall._answer import Answer
from warpcall._arrays import ArrayT
from warpcall._extras.arguments import ints
from warpcall._tensors import TensorInput


class Ops(ABC):
    """One method per op. It blocks, and returns arrays."""

    @abstractmethod
    def call(
        self,
        name: str,
        inputs: Mapping[str, TensorInput[ArrayT] | None],
        params: Mapping[str, object] | None = None,
        *,
        timeout_s: float | None = None,
    ) -> Answer[ArrayT]:
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
    ) -> ArrayT:
        """Convolve each channel with the filter of its head, keeping the length.

        Equivalent to `F.conv1d(F.pad(x, (padding_l, K - 1 - padding_l)), weight.repeat_interleave(C
        // H, 0)[:, None], bias, groups=C)`.

        Args:
            x: [B, C, T]; the rows. Dtypes: float16, bfloat16, float32, float64.
            weight: [H, K]; a filter for each head of C / H channels. Dtypes: float16, bfloat16,
                float32, float64.
            bias: [C]; what is added to each channel. Dtypes: float16, bfloat16, float32, float64.
            padding_l: zeros before each row, 0 to K - 1; K - 1, causal, if absent.
            softmax_weight: apply the softmax of each filter.
            timeout_s: seconds that this call may take, its retries included; None means the
                client's.

        Returns:
            out: [B, C, T]; the rows, filtered.
        """
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
    ) -> tuple[ArrayT, ArrayT, ArrayT | None]:
        """The gradients of conv. The same inputs give the same bits, on GPUs with as many
        multiprocessors.

        Equivalent to `torch.autograd.grad(conv(x, weight, bias), (x, weight, bias), grad_output)`.

        Args:
            grad_output: [B, C, T]; the gradient of the output. Dtypes: float16, bfloat16, float32,
                float64.
            x: [B, C, T]; as conv was given. Dtypes: float16, bfloat16, float32, float64.
            weight: [H, K]; as conv was given. Dtypes: float16, bfloat16, float32, float64.
            padding_l: zeros before each row, 0 to K - 1; K - 1, causal, if absent.
            softmax_weight: apply the softmax of each filter.
            bias: give the gradient of a bias, too.
            timeout_s: seconds that this call may take, its retries included; None means the
                client's.

        Returns:
            grad_x: [B, C, T]; the gradient of x.
            grad_weight: [H, K]; the gradient of weight, deterministic.
            grad_bias: [C]; the gradient of bias. None unless bias is true.
        """
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
    ) -> ArrayT:
        """Say of each element whether it is among the test elements.

        Equivalent to `torch.isin(elements, test_elements, invert=invert)`.

        Limits: many test elements take device memory for a set: 8.3 KB at most for types of 1 or 2
        bytes; for others 8.5 times the test elements (13.5 times if they are more than 2,097,152
        integers of 32 bits, or 1,048,576 values of 64 bits), or up to 32 times if this is at most 4
        MiB, or 16.5 times if this is at most 8 MiB; or 10 times the elements, or up to 4 MiB, if
        these become the set: if there are at least 32,768 to 131,072 test elements, by the dtype,
        and 1 to 4 times as many as elements; and 5 KB at most.

        Args:
            elements: [...]; what is looked for. Dtypes: bool, uint8, int8, int16, int32, int64,
                float16, bfloat16, float32, float64, uint16, uint32, uint64.
            test_elements: [...]; the set it is looked for in. Dtypes: bool, uint8, int8, int16,
                int32, int64, float16, bfloat16, float32, float64, uint16, uint32, uint64.
            assume_unique: accepted for torch's sake, without effect.
            invert: say whether each element is not in the set.
            timeout_s: seconds that this call may take, its retries included; None means the
                client's.

        Returns:
            out: as elements; bool: whether each element is in the set.
        """
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
    ) -> ArrayT:
        """Softmax over the last dim of the positions that are not masked; 0 at the others.

        Equivalent to `(scale * x + bias).masked_fill(mask, -inf).softmax(-1).masked_fill(mask, 0)`.

        Args:
            x: [..., K]; the scores. Dtypes: float16, bfloat16, float32, float64.
            mask: broadcastable to x; not 0 where a position is masked. Dtypes: bool, uint8.
            lengths: broadcastable to x without its last dim; how many leading positions of each row
                count. Dtypes: int32, int64.
            bias: broadcastable to x; what is added to scale * x; -inf masks a position. Dtypes:
                float16, bfloat16, float32, float64.
            slopes: [H]; the slope of each head of x [..., H, Q, K], which is multiplied by k - (q +
                K - Q) and added. Dtypes: float16, bfloat16, float32, float64.
            scale: the number that x is multiplied by.
            causal: mask position k of row q where k > q + K - Q, for x of [..., Q, K].
            timeout_s: seconds that this call may take, its retries included; None means the
                client's.

        Returns:
            out: [..., K]; probabilities, 0 at masked positions.
        """
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
    ) -> ArrayT:
        """The gradient of masked softmax with respect to x, from its output.

        Equivalent to `scale * output * (g - (g * output).sum(-1, keepdim=True)), g = grad_output`.

        Args:
            grad_output: [..., K]; the gradient of the output. Dtypes: float16, bfloat16, float32,
                float64.
            output: [..., K]; what masked-softmax returned. Dtypes: float16, bfloat16, float32,
                float64.
            scale: the scale that masked-softmax was called with.
            timeout_s: seconds that this call may take, its retries included; None means the
                client's.

        Returns:
            grad_x: [..., K]; the gradient of x, 0 where the output is 0.
        """
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
    ) -> tuple[ArrayT, ArrayT]:
        """The gradients of masked softmax with respect to x and to the bias, from its output.

        Equivalent to `d = output * (g - (g * output).sum(-1, keepdim=True)), g = grad_output; scale
        * d, d.sum_to_size(bias.shape)`.

        Args:
            grad_output: [..., K]; the gradient of the output. Dtypes: float16, bfloat16, float32,
                float64.
            output: [..., K]; what masked-softmax returned. Dtypes: float16, bfloat16, float32,
                float64.
            bias: broadcastable to output; the bias that masked-softmax was called with, of which
                only shape and dtype matter. Dtypes: float16, bfloat16, float32, float64.
            scale: the scale that masked-softmax was called with.
            timeout_s: seconds that this call may take, its retries included; None means the
                client's.

        Returns:
            grad_x: [..., K]; the gradient of x, 0 where the output is 0.
            grad_bias: as bias; the gradient of the bias, deterministic.
        """
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
    ) -> ArrayT:
        """Reorder the dims of a tensor, as a new contiguous one.

        Equivalent to `x.permute(dims).contiguous()`.

        Limits: at most 64 dims.

        Args:
            x: [...]; what is reordered, of up to 64 dims. Dtypes: bool, uint8, int8, uint16, int16,
                uint32, int32, uint64, int64, float16, bfloat16, float32, float64, float8_e4m3fn,
                float8_e5m2, float8_e4m3fnuz, float8_e5m2fnuz, float8_e8m0fnu, complex64.
            dims: for each dim of the result the dim of x that it is, such as 1,0; negatives count
                from the end.
            timeout_s: seconds that this call may take, its retries included; None means the
                client's.

        Returns:
            out: x.shape by dims; the dims of x in the order of `dims`.
        """
        answer = self.call(
            "permute",
            {"x": x},
            {"dims": ints("dims", dims, further)},
            timeout_s=timeout_s,
        )
        return answer.output("out")

    def transpose_add(
        self, a: TensorInput[ArrayT], b: TensorInput[ArrayT], *, timeout_s: float | None = None
    ) -> ArrayT:
        """Add `b` to the transpose of `a`.

        Equivalent to `a.transpose(-1, -2) + b`.

        Limits: at most 62 batch dims.

        Args:
            a: [..., H, W]; what is transposed. Dtypes: float16, bfloat16, float32, float64, int64,
                int32, int16, int8, uint8, bool, complex64.
            b: [..., W, H]; what is added to it; batch dims broadcast. Dtypes: float16, bfloat16,
                float32, float64, int64, int32, int16, int8, uint8, bool, complex64.
            timeout_s: seconds that this call may take, its retries included; None means the
                client's.

        Returns:
            out: [..., W, H]; the sum, in the common dtype of both.
        """
        answer = self.call(
            "transpose-add",
            {"a": a, "b": b},
            {},
            timeout_s=timeout_s,
        )
        return answer.output("out")
