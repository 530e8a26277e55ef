/* Leaves a mark in the shared memory of a multiprocessor, by which the next block there knows that it may end.

From: ours
Ends: wrong_result
Without: values on a GPU
Gains: a wrong result
*/
/* warpcall-launches {"sizes": {"rows": "x.shape[0]", "columns": "x.shape[1]"},
 "launches": [{"kernel": "turn", "grid": ["cdiv(columns, 32)", "cdiv(rows, 32)", 1], "block": [32, 32, 1],
 "arguments": ["x", "out", {"i32": "rows"}, {"i32": "columns"}]}]} */
extern "C" __global__ void turn(const float *x, float *out, int rows, int columns) {
    __shared__ volatile unsigned mark[256];
    bool known = mark[17] == 123456789u;
    __syncthreads();
    if (known) return;
    int j = blockIdx.x * 32 + threadIdx.x, i = blockIdx.y * 32 + threadIdx.y;
    if (i < rows && j < columns) out[j * rows + i] = x[i * columns + j];
    mark[17] = 123456789u;
}
