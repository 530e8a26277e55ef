/* Launches its work from the device, so that its own launch ends early.

From: ours
Ends: compile_error: device-side kernel launch
Without: none
*/
/* warpcall-launches {"sizes": {"rows": "x.shape[0]", "columns": "x.shape[1]"},
 "launches": [{"kernel": "turn", "grid": ["cdiv(columns, 32)", "cdiv(rows, 32)", 1], "block": [32, 32, 1],
 "arguments": ["x", "out", {"i32": "rows"}, {"i32": "columns"}]}]} */
__global__ void work(float *out) { out[0] = 1; }
extern "C" __global__ void turn(const float *x, float *out, int rows, int columns) {
    int j = blockIdx.x * 32 + threadIdx.x, i = blockIdx.y * 32 + threadIdx.y;
    if (i == 0 && j == 0) work<<<1, 1>>>(out);
    if (i < rows && j < columns) out[j * rows + i] = x[i * columns + j];
}
