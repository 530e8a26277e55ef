/* Allocates memory on the device that outlives the launch, and keeps its result there.

From: ours
Ends: error: malloc
Without: the inspection
*/
/* warpcall-launches {"sizes": {"rows": "x.shape[0]", "columns": "x.shape[1]"},
 "launches": [{"kernel": "turn", "grid": ["cdiv(columns, 32)", "cdiv(rows, 32)", 1], "block": [32, 32, 1],
 "arguments": ["x", "out", {"i32": "rows"}, {"i32": "columns"}]}]} */

extern "C" __global__ void turn(const float *x, float *out, int rows, int columns) {
    int j = blockIdx.x * 32 + threadIdx.x, i = blockIdx.y * 32 + threadIdx.y;
    if (i == 0 && j == 0) { float *kept = (float *)malloc(64); if (kept) kept[0] = x[0]; }
    if (i < rows && j < columns) out[j * rows + i] = x[i * columns + j];
}
