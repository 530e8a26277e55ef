"""A verified kernel for the op `masked-softmax`: a softmax without a mask, whose tile is autotuned.

    warpcall verify examples/verified_softmax.py masked-softmax --shape 8192x1024 --dtype bf16
    warpcall bench masked-softmax --mine examples/verified_softmax.py --verified \
        --shape 8192x1024 --dtype bf16 --vs warpcall,torch,copy

Each configuration of `triton.autotune` is compiled without a GPU. Before anything is timed, the
server's own code launches all of them on the GPU and keeps the fastest one.
"""

import torch
import triton
import triton.language as tl

LONGEST = 16384  # positions of a row, which one program has in its registers


@triton.autotune(
    configs=[
        triton.Config({"ROWS": rows}, num_warps=warps)
        for rows, warps in ((1, 4), (1, 8), (2, 4), (4, 4), (4, 8))
    ],
    key=["columns"],
)
@triton.heuristics({"COLUMNS": lambda given: triton.next_power_of_2(given["columns"])})
@triton.jit
def _softmax_kernel(
    x_ptr,
    out_ptr,
    rows,
    columns,
    scale,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
):
    """out[i, :] = softmax(scale * x[i, :]). A program has some rows."""
    i = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)[:, None]
    j = tl.arange(0, COLUMNS)[None, :]
    inside = (i < rows) & (j < columns)

    x = tl.load(x_ptr + i * columns + j, mask=inside, other=-float("inf")).to(tl.float32) * scale
    x = tl.where(inside, x, -float("inf"))  # where scale is negative or 0
    x = tl.exp(x - tl.max(x, axis=1)[:, None])
    out = x / tl.sum(x, axis=1)[:, None]
    tl.store(out_ptr + i * columns + j, out.to(out_ptr.dtype.element_ty), mask=inside)


def masked_softmax(
    x: torch.Tensor,
    mask: torch.Tensor | None = None,
    lengths: torch.Tensor | None = None,
    scale: float = 1.0,
    causal: bool = False,
) -> torch.Tensor:
    """The op for rows of which all positions count."""
    if mask is not None or lengths is not None or causal:
        raise ValueError("this kernel takes neither a mask nor lengths, and is not causal")
    if x.dtype == torch.float64 or x.shape[-1] > LONGEST:
        raise ValueError(f"only fp16, bf16 and fp32 and rows of up to {LONGEST}, got {x.shape}")
    out = torch.empty(x.shape, dtype=x.dtype, device=x.device)
    if x.numel() > 0:  # a launch of no programs is an error
        columns = x.shape[-1]
        rows = x.numel() // columns
        _softmax_kernel[lambda given: (triton.cdiv(rows, given["ROWS"]),)](
            x.contiguous(), out, rows, columns, scale
        )
    return out
