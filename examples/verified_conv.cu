// A verified kernel for the op `conv` in CUDA C++: a lightweight convolution of bf16.
//
//     warpcall verify examples/verified_conv.cu conv --shape 8x512x4096 --dtype bf16 --size taps=7
//     warpcall bench conv --mine examples/verified_conv.cu --shape 8x512x4096 --dtype bf16 \
//         --size taps=7 --vs warpcall,torch,copy
//
// out[b, c, t] = bias[c] + the sum over j of weight[head(c), j] * x[b, c, t + j - padding_l]
//
// The server compiles the file with NVRTC. What a call launches is declared in the comment below. Each
// configuration is compiled with its names as macros, and the fastest one is timed. A case for which a
// condition of `requires` is false is refused.
/* warpcall-launches
{
  "requires": ["x.dtype == BF16", "taps <= 4096"],
  "sizes": {
    "channels": "x.shape[1]",
    "length": "x.shape[2]",
    "taps": "weight.shape[1]",
    "padding": "taps - 1 if padding_l == null else padding_l"
  },
  "configurations": [
    {"THREADS": 128, "TILE": 1024},
    {"THREADS": 256, "TILE": 2048},
    {"THREADS": 512, "TILE": 4096}
  ],
  "launches": [
    {
      "kernel": "light_conv",
      "grid": ["x.shape[0] * channels * cdiv(length, TILE)"],
      "block": ["THREADS"],
      "shared_bytes": "4 * (taps + TILE + taps - 1)",
      "arguments": [
        "x", "weight", "bias", "out",
        {"i32": "channels"}, {"i32": "channels // weight.shape[0]"}, {"i32": "length"},
        {"i32": "taps"}, {"i32": "padding"}, {"i32": "1 if softmax_weight else 0"},
        {"i64": "x.stride[0]"}, {"i64": "x.stride[1]"}, {"i64": "x.stride[2]"},
        {"i64": "weight.stride[0]"}, {"i64": "weight.stride[1]"},
        {"i64": "0 if bias == null else bias.stride[0]"}
      ]
    }
  ]
}
*/

#include <cuda_bf16.h>

// A block computes TILE outputs of one row. It reads their window of x and the filter of the row once,
// and keeps both in shared memory as floats.
extern "C" __global__ void __launch_bounds__(THREADS) light_conv(
    const __nv_bfloat16* __restrict__ x, const __nv_bfloat16* __restrict__ weight,
    const __nv_bfloat16* __restrict__ bias, __nv_bfloat16* __restrict__ out,
    int channels, int channels_of_head, int length, int taps, int padding, int normalise,
    long long x_batch, long long x_channel, long long x_position,
    long long weight_head, long long weight_tap, long long bias_channel)
{
    extern __shared__ float shared[];
    float* filter = shared;         // taps floats
    float* window = shared + taps;  // TILE + taps - 1 floats
    const int tiles = (length + TILE - 1) / TILE;
    const int row = blockIdx.x / tiles;
    const int begin = blockIdx.x % tiles * TILE;
    const int channel = row % channels;

    const __nv_bfloat16* taps_of_head = weight + channel / channels_of_head * weight_head;
    for (int j = threadIdx.x; j < taps; j += THREADS)
        filter[j] = __bfloat162float(taps_of_head[j * weight_tap]);
    const __nv_bfloat16* row_of_x = x + row / channels * x_batch + channel * x_channel;
    for (int i = threadIdx.x; i < TILE + taps - 1; i += THREADS) {
        const long long t = (long long)begin + i - padding;
        window[i] = t >= 0 && t < length ? __bfloat162float(row_of_x[t * x_position]) : 0.0f;
    }
    __syncthreads();

    if (normalise) {  // a softmax over the taps, the same in all threads
        float most = filter[0], sum = 0.0f;
        for (int j = 1; j < taps; ++j) most = fmaxf(most, filter[j]);
        for (int j = 0; j < taps; ++j) sum += expf(filter[j] - most);
        __syncthreads();
        for (int j = threadIdx.x; j < taps; j += THREADS) filter[j] = expf(filter[j] - most) / sum;
        __syncthreads();
    }

    const float added = bias ? __bfloat162float(bias[channel * bias_channel]) : 0.0f;
    for (int i = threadIdx.x; i < TILE && begin + i < length; i += THREADS) {
        float sum = 0.0f;
        for (int j = 0; j < taps; ++j) sum += filter[j] * window[i + j];
        out[(long long)row * length + begin + i] = __float2bfloat16(sum + added);
    }
}
