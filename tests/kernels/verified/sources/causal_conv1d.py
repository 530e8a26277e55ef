"""A causal depthwise convolution of channels, with an optional bias and SiLU."""

import torch
import triton
import triton.language as tl


@triton.autotune(
    configs=[
        triton.Config({"ROWS": rows, "CHANNELS": channels}, num_warps=warps)
        for rows, channels, warps in ((16, 64, 2), (64, 64, 4), (64, 128, 8))
    ],
    key=["channels", "length"],
)
@triton.heuristics({"HAS_BIAS": lambda args: args["bias"] is not None})
@triton.jit
def causal_conv1d_kernel(
    x,
    weight,
    bias,
    out,
    channels,
    length,
    x_batch,
    x_channel,
    x_row,
    TAPS: tl.constexpr,
    SILU: tl.constexpr,
    HAS_BIAS: tl.constexpr,
    ROWS: tl.constexpr,
    CHANNELS: tl.constexpr,
):
    batch = tl.program_id(2)
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    channel = tl.program_id(1) * CHANNELS + tl.arange(0, CHANNELS)
    total = tl.zeros((CHANNELS, ROWS), dtype=tl.float32)
    for tap in tl.static_range(TAPS):
        at = row - (TAPS - 1 - tap)
        inside = (channel[:, None] < channels) & (at[None, :] >= 0) & (at[None, :] < length)
        source = x + batch * x_batch + channel[:, None] * x_channel + at[None, :] * x_row
        w = tl.load(weight + channel * TAPS + tap, mask=channel < channels, other=0)
        total += w[:, None].to(tl.float32) * tl.load(source, mask=inside, other=0).to(tl.float32)
    if HAS_BIAS:
        total += tl.load(bias + channel, mask=channel < channels, other=0)[:, None].to(tl.float32)
    if SILU:
        total = total * tl.sigmoid(total)
    target = out + (batch * channels + channel[:, None]) * length + row[None, :]
    tl.store(target, total, mask=(channel[:, None] < channels) & (row[None, :] < length))


def causal_conv1d(x, weight, bias=None, activation=None):
    if activation not in (None, "silu", "swish"):
        raise NotImplementedError(f"there is no activation {activation}")
    batches, channels, length = x.shape
    out = torch.empty((batches, channels, length), dtype=x.dtype, device=x.device)
    causal_conv1d_kernel[
        lambda meta: (
            triton.cdiv(length, meta["ROWS"]),
            triton.cdiv(channels, meta["CHANNELS"]),
            batches,
        )
    ](
        *(x, weight, bias, out, channels, length, *x.stride()),
        TAPS=weight.shape[1],
        SILU=activation is not None,
    )
    return out
