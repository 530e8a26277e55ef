"""A product of matrices with an autotuner, blocks in groups, and an activation."""

import torch
import triton
import triton.language as tl


def configurations():
    sizes = [(128, 256, 64), (64, 64, 32)]
    return [
        triton.Config(
            {"M_BLOCK": m, "N_BLOCK": n, "K_BLOCK": k, "GROUP": 8},
            num_stages=stages,
            num_warps=warps,
        )
        for m, n, k in sizes
        for stages, warps in ((3, 8), (5, 4))
    ]


@triton.jit
def leaky_relu(x):
    return tl.where(x >= 0, x, 0.01 * x)


@triton.autotune(configs=configurations(), key=["m", "n", "k"])
@triton.jit
def matmul_kernel(
    a,
    b,
    c,
    m,
    n,
    k,
    stride_am,
    stride_ak,
    stride_bk,
    stride_bn,
    stride_cm,
    stride_cn,
    M_BLOCK: tl.constexpr,
    N_BLOCK: tl.constexpr,
    K_BLOCK: tl.constexpr,
    GROUP: tl.constexpr,
    ACTIVATION: tl.constexpr,
):
    program = tl.program_id(axis=0)
    blocks_m = tl.cdiv(m, M_BLOCK)
    blocks_n = tl.cdiv(n, N_BLOCK)
    in_group = GROUP * blocks_n
    first = program // in_group * GROUP
    group = min(blocks_m - first, GROUP)
    block_m = first + (program % in_group) % group
    block_n = (program % in_group) // group
    at_m = (block_m * M_BLOCK + tl.arange(0, M_BLOCK)) % m
    at_n = (block_n * N_BLOCK + tl.arange(0, N_BLOCK)) % n
    at_k = tl.arange(0, K_BLOCK)
    a_ptrs = a + (at_m[:, None] * stride_am + at_k[None, :] * stride_ak)
    b_ptrs = b + (at_k[:, None] * stride_bk + at_n[None, :] * stride_bn)
    total = tl.zeros((M_BLOCK, N_BLOCK), dtype=tl.float32)
    for step in range(tl.cdiv(k, K_BLOCK)):
        left = k - step * K_BLOCK
        a_block = tl.load(a_ptrs, mask=at_k[None, :] < left, other=0.0)
        b_block = tl.load(b_ptrs, mask=at_k[:, None] < left, other=0.0)
        total = tl.dot(a_block, b_block, total)
        a_ptrs += K_BLOCK * stride_ak
        b_ptrs += K_BLOCK * stride_bk
    if ACTIVATION == "leaky_relu":
        total = leaky_relu(total)
    out_m = block_m * M_BLOCK + tl.arange(0, M_BLOCK)
    out_n = block_n * N_BLOCK + tl.arange(0, N_BLOCK)
    c_ptrs = c + stride_cm * out_m[:, None] + stride_cn * out_n[None, :]
    tl.store(c_ptrs, total.to(c.dtype.element_ty), mask=(out_m[:, None] < m) & (out_n[None, :] < n))


def matmul(a, b, activation=""):
    assert a.shape[1] == b.shape[0], "Incompatible dimensions"
    assert a.is_contiguous(), "Matrix A must be contiguous"
    m, k = a.shape
    k, n = b.shape
    c = torch.empty((m, n), device=a.device, dtype=torch.float16)

    def grid(meta):
        return (triton.cdiv(m, meta["M_BLOCK"]) * triton.cdiv(n, meta["N_BLOCK"]),)

    matmul_kernel[grid](
        *(a, b, c, m, n, k),
        *(a.stride(0), a.stride(1), b.stride(0), b.stride(1), c.stride(0), c.stride(1)),
        ACTIVATION=activation,
    )
    return c
