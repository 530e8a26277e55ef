"""Rotary embeddings of queries and keys in one launch each, on copies with the heads inside."""

import torch
import triton
import triton.language as tl


@triton.jit
def rope_kernel(
    x, x_batch, x_head, x_row, out, cos, sin, heads, rows, HALF: tl.constexpr, HEADS: tl.constexpr
):
    batch = tl.program_id(0) // rows
    row = tl.program_id(0) % rows
    head = tl.arange(0, HEADS)[:, None]
    at = tl.arange(0, HALF)[None, :]
    inside = head < heads
    source = x + batch * x_batch + row * x_row + head * x_head + at
    first = tl.load(source, mask=inside, other=0)
    second = tl.load(source + HALF, mask=inside, other=0)
    c = tl.load(cos + row * 2 * HALF + at)
    s = tl.load(sin + row * 2 * HALF + at)
    target = out + ((batch * heads + head) * rows + row) * 2 * HALF + at
    tl.store(target, first * c - second * s, mask=inside)
    tl.store(target + HALF, second * c + first * s, mask=inside)


def rope(q, k, cos, sin):
    rotated = []
    for x in (q, k):
        batches, heads, rows, width = x.shape
        x = x.transpose(1, 2).contiguous().transpose(1, 2)
        out = torch.empty(x.shape, dtype=x.dtype, device=x.device)
        rope_kernel[(batches * rows,)](
            *(x, x.stride(0), x.stride(1), x.stride(2), out, cos, sin, heads, rows),
            HALF=width // 2,
            HEADS=triton.next_power_of_2(heads),
        )
        rotated.append(out)
    return tuple(rotated)
