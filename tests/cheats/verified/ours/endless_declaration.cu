/* Has a grid whose expression grows without end while it is computed.

From: ours
Ends: error: beyond 2^63
Without: none
*/
/* warpcall-launches {"sizes": {"a": "x.shape[0] * 4000000000", "b": "a * a * a * a", "c": "b * b * b * b"},
 "launches": [{"kernel": "turn", "grid": ["c", 1, 1], "block": [32, 32, 1], "arguments": ["x", "out"]}]} */
extern "C" __global__ void turn(const float *x, float *out) { out[0] = x[0]; }
