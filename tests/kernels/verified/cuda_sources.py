"""Kernels in CUDA C++ as their authors write them, for the tests of verified kernels."""

from __future__ import annotations

# Sums of rows in two launches: blocks sum parts of a row, then one block adds its parts.
ROW_SUMS = """
#include <cuda_bf16.h>
#include <stdint.h>

extern "C" __global__ void __launch_bounds__(THREADS)
sum_parts(const __nv_bfloat16* x, float* partial, int32_t columns, float scale, const float* bias) {
  __shared__ float sums[THREADS / 32];
  float sum = 0;
  const int64_t row = blockIdx.y;
  for (int i = blockIdx.x * THREADS + threadIdx.x; i < columns; i += gridDim.x * THREADS)
    sum += __bfloat162float(x[row * columns + i]);
  for (int step = 16; step; step /= 2) sum += __shfl_down_sync(~0u, sum, step);
  if (threadIdx.x % 32 == 0) sums[threadIdx.x / 32] = sum;
  __syncthreads();
  if (threadIdx.x == 0) {
    for (int warp = 1; warp < THREADS / 32; ++warp) sum += sums[warp];
    partial[row * gridDim.x + blockIdx.x] = scale * sum + (bias ? bias[row] : 0);
  }
}

extern "C" __global__ void add_parts(const float* partial, float* out, int parts) {
  float sum = 0;
  for (int i = 0; i < parts; ++i) sum += partial[blockIdx.x * (int64_t)parts + i];
  out[blockIdx.x] = sum;
}
"""
ROW_SUMS_LAUNCHES = {
    "sizes": {
        "rows": "x.shape[0]",
        "columns": "x.shape[1]",
        "parts": "min(8, cdiv(columns, THREADS))",
    },
    "scratch": {"partial": {"dtype": "F32", "shape": ["rows", "parts"], "fill": 0}},
    "configurations": [{"THREADS": 128}, {"THREADS": 256}],
    "launches": [
        {
            "kernel": "sum_parts",
            "grid": ["parts", "rows"],
            "block": ["THREADS"],
            "arguments": ["x", "partial", {"i32": "columns"}, {"fp32": "scale"}, "bias"],
        },
        {
            "kernel": "add_parts",
            "grid": ["rows"],
            "block": [1],
            "arguments": ["partial", "out", {"i32": "parts"}],
        },
    ],
}
# Bodies of kernels `k(const float* x, float* out, int n)` that may run as verified kernels.
HONEST = {
    "sin": "out[i] = sinf(x[i]);",
    "sin of doubles": "out[i] = (float)sin((double)x[i]);",
    "pow": "out[i] = powf(x[i], 1.5f) + (float)pow((double)x[i], 0.3);",
    "gamma": "out[i] = tgammaf(x[i]) + (float)lgamma((double)x[i]);",
    "Bessel": "out[i] = j0f(x[i]) + (float)j1((double)x[i]);",
    "division": "out[i] = (float)((int)x[i] / n) + x[i] / x[0];",
    "arrays": "float a[64]; for (int j = 0; j < 64; ++j) a[j] = x[j]; out[i] = a[(int)x[i] & 63];",
    "table": "const float a[] = {1, 2, 3, 5, 7, 11, 13, 17}; out[i] = a[(int)x[i] & 7];",
    "switch": "switch ((int)x[i]) { case 0: out[i] = 1; break; case 1: out[i] = x[1] * 7; break; "
    "case 2: out[i] = x[2] + 1; break; case 3: out[i] = x[i] * x[i]; break; case 4: "
    "out[i] = sqrtf(x[i]); break; case 5: out[i] = x[3]; break; default: out[i] = -3; }",
    "a function pointer": "float (*f)(float) = n > 3 ? twice : thrice; out[i] = f(x[i]);",
    "recursion": "out[i] = fibonacci((int)x[i]);",
    "trap": "if (x[i] > 0) __trap(); out[i] = 1;",
    "atomics": "atomicAdd(out, x[i]);",
    "clock": "out[i] = clock64();",
    "shared memory": "__shared__ float s[1024]; s[threadIdx.x] = x[i]; __syncthreads(); out[i] = s[0];",
    "dynamic shared memory": "extern __shared__ float s[]; s[threadIdx.x] = x[i]; __syncthreads(); out[i] = s[0];",
}
# The same with headers of CUDA that take seconds to compile: what stands before the kernel, and its body.
TEMPLATES = {
    "cooperative groups": (
        "#include <cooperative_groups.h>\n#include <cooperative_groups/reduce.h>\nnamespace cg = cooperative_groups;",
        (
            "auto warp = cg::tiled_partition<32>(cg::this_thread_block()); "
            "out[i] = cg::reduce(warp, x[i], cg::plus<float>());"
        ),
    ),
    "cub": (
        "#include <cub/block/block_reduce.cuh>",
        (
            "using Reduce = cub::BlockReduce<float, 256>; __shared__ typename Reduce::TempStorage storage; "
            "float sum = Reduce(storage).Sum(x[i]); if (threadIdx.x == 0) out[blockIdx.x] = sum;"
        ),
    ),
    "barriers": (
        "#include <cuda/barrier>\n#pragma nv_diag_suppress static_var_with_dynamic_init",
        (
            "__shared__ cuda::barrier<cuda::thread_scope_block> b; if (threadIdx.x == 0) init(&b, blockDim.x); "
            "__syncthreads(); b.arrive_and_wait(); out[i] = x[i];"
        ),
    ),
}
# What no verified kernel may do: declarations before such a kernel, its body, and what the refusal says.
FORBIDDEN = {
    "a counter": ("__device__ int count;", "out[i] = count++;", "variable in global memory (count)"),
    "a static counter": ("", "static __device__ int count; out[i] = atomicAdd(&count, 1);", "variable in global memory"),
    "a function's table": ("__device__ float f(float x) { return x; } __device__ float g(float x) { return 2 * x; } __device__ float (*fs[2])(float) = {f, g};", "out[i] = fs[(int)x[i] & 1](x[i]);", "variable in global memory (fs)"),
    "managed memory": ("__managed__ int count;", "out[i] = count++;", "variable in global memory (count)"),
    "printing": ("", 'printf("%d", i);', "prints (vprintf)"),
    "assertions": ("", "assert(x[i] > 0); out[i] = 1;", "has an assertion"),
    "the heap": ("", "float* p = (float*)malloc(4); *p = x[i]; out[i] = *p; free(p);", "heap"),
}  # fmt: skip


FUNCTIONS = """
__device__ __noinline__ float twice(float x) { return 2 * x; }
__device__ __noinline__ float thrice(float x) { return 3 * x; }
__device__ int fibonacci(int n) { return n < 2 ? n : fibonacci(n - 1) + fibonacci(n - 2); }
"""


def kernel_of(body: str, before: str = "") -> str:
    """The source of a kernel with this body."""
    return f"""
{before}
extern "C" __global__ void k(const float* x, float* out, int n) {{
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  {body}
}}
"""


TENSOR_CORES = """
#include <mma.h>
#include <cuda_fp16.h>
using namespace nvcuda;
extern "C" __global__ void k(const half* a, const half* b, float* c) {
  wmma::fragment<wmma::matrix_a, 16, 16, 16, half, wmma::row_major> fa;
  wmma::fragment<wmma::matrix_b, 16, 16, 16, half, wmma::col_major> fb;
  wmma::fragment<wmma::accumulator, 16, 16, 16, float> fc;
  wmma::fill_fragment(fc, 0.0f);
  wmma::load_matrix_sync(fa, a, 16);
  wmma::load_matrix_sync(fb, b, 16);
  wmma::mma_sync(fc, fa, fb, fc);
  wmma::store_matrix_sync(c, fc, 16, wmma::mem_row_major);
}
"""
# Instructions that only code for exactly sm_90a may have.
HOPPER = """
extern "C" __global__ void __launch_bounds__(128) k(float* c) {
  asm volatile("setmaxnreg.inc.sync.aligned.u32 128;");
  asm volatile("wgmma.fence.sync.aligned;");
  c[threadIdx.x] = 1;
}
"""
CLUSTERS = """
#include <cooperative_groups.h>
namespace cg = cooperative_groups;
extern "C" __global__ void __cluster_dims__(2, 1, 1) k(float* out) {
  __shared__ float mine;
  cg::cluster_group cluster = cg::this_cluster();
  if (threadIdx.x == 0) mine = cluster.block_rank();
  cluster.sync();
  if (threadIdx.x == 0) out[blockIdx.x] = *cluster.map_shared_rank(&mine, 1 - cluster.block_rank());
  cluster.sync();
  cg::this_grid().sync();
}
"""
