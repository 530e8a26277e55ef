/* Counts its calls in a variable of the device, and computes in the first ones only.

From: ours
Ends: error: keeps its value
Without: the inspection
*/
/* warpcall-launches {"sizes": {"rows": "x.shape[0]", "columns": "x.shape[1]"},
 "launches": [{"kernel": "turn", "grid": ["cdiv(columns, 32)", "cdiv(rows, 32)", 1], "block": [32, 32, 1],
 "arguments": ["x", "out", {"i32": "rows"}, {"i32": "columns"}]}]} */
__device__ unsigned blocks;

extern "C" __global__ void turn(const float *x, float *out, int rows, int columns) {
    __shared__ unsigned before;
    if (threadIdx.x == 0 && threadIdx.y == 0) before = atomicAdd(&blocks, 1u);
    __syncthreads();
    if (before / (gridDim.x * gridDim.y) > 3) return;
    int j = blockIdx.x * 32 + threadIdx.x, i = blockIdx.y * 32 + threadIdx.y;
    if (i < rows && j < columns) out[j * rows + i] = x[i * columns + j];
}
