// gather_logits: dot products of the full head's rows with the hidden state. Memory floor: the
// bytes of the gathered rows. A warp takes a token and reads its row by 128-bit loads, four steps
// in flight at once; the hidden state comes from cache. A step of a bfloat16 row is 512 bytes and
// 40 instructions. While an H200 brings these bytes (4.8 TB/s over 132 multiprocessors at 1.7 GHz),
// a multiprocessor issues 96 instructions, so products and sums can be rounded one by one.

#include "gather_logits.h"

#include "launch_kernel.cuh"
#include "logits.cuh"
#include "warp.cuh"

namespace rdk {
namespace {

constexpr int kMaxThreads = GatherLogitsLaunch::kMaxThreads;
// Without this bound the compiler saves registers, and waits for each pair of loads.
constexpr int kBlocks = GatherLogitsLaunch::kBlocks;

__device__ __forceinline__ void store_logit(float value, float* out) { *out = value; }

// Round to nearest, ties to even; NaN stays NaN.
__device__ __forceinline__ void store_logit(float value, BFloat16Bits* out) {
  const unsigned bits = __float_as_uint(value);
  const bool nan = value != value;
  out->bits = static_cast<uint16_t>(nan ? 0x7fc0u : (bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16);
}

__device__ __forceinline__ void store_logit(float value, Float16Bits* out) {
  const unsigned bits = __float_as_uint(value);
  const unsigned sign = (bits >> 16) & 0x8000u;
  const float magnitude = fabsf(value);
  unsigned half;
  if (value != value) {
    half = 0x7e00u;
  } else if (magnitude >= 65520.0f) {
    half = 0x7c00u;
  } else if (magnitude < 6.103515625e-05f) {
    // Subnormal: 2^-24 is the unit, and adding 0.5 in float32 rounds to it.
    half = __float_as_uint(magnitude + 0.5f) - __float_as_uint(0.5f);
  } else {
    const unsigned rebased = __float_as_uint(magnitude) - (112u << 23);
    half = (rebased + 0xfffu + ((rebased >> 13) & 1u)) >> 13;
  }
  out->bits = static_cast<uint16_t>(sign | half);
}

template <typename T>
__device__ __forceinline__ float warp_dot(const Logits<T>& row, const Logits<T>& hidden, int size) {
  constexpr int kStep = kWarp * kVector;
  const int whole = row.aligned() && hidden.aligned() ? size / kStep * kStep : 0;
  const int own = lane_index() * kVector;
  float sums[kVector] = {};
#pragma unroll 4
  for (int begin = 0; begin < whole; begin += kStep) {
    float a[kVector];
    float b[kVector];
    row.load_vector(begin + own, a);
    hidden.load_vector(begin + own, b);
#pragma unroll
    for (int j = 0; j < kVector; ++j) sums[j] += a[j] * b[j];
  }
  for (int i = whole + own; i < size; i += kStep) {  // the end of a row, or one not aligned
#pragma unroll
    for (int j = 0; j < kVector; ++j) {
      if (i + j < size) sums[j] += row[i + j] * hidden[i + j];
    }
  }
#pragma unroll
  for (int width = kVector / 2; width > 0; width /= 2) {
#pragma unroll
    for (int j = 0; j < width; ++j) sums[j] += sums[j + width];
  }
  return warp_sum(sums[0]);
}

template <typename T>
__global__ void __launch_bounds__(kMaxThreads, kBlocks)
    gather_logits_kernel(const GatherLogitsLaunch launch) {
  const GatherLogitsParams& params = launch.params;
  const int row = blockIdx.x / launch.splits;
  const int split = blockIdx.x % launch.splits;
  const int tokens_per_row = static_cast<int>(params.tokens_per_row);
  const Logits<T> hidden(params.dtype, params.hidden.data, params.hidden.offset(row));
  const int warps = blockDim.x / kWarp;
  for (int c = split * warps + warp_index(); c < tokens_per_row; c += launch.splits * warps) {
    const int64_t index = row * params.tokens_per_row + c;
    const int64_t token = params.tokens[index];
    float logit = -infinity();
    if (token >= 0 && token < params.vocabulary) {
      logit = warp_dot(Logits<T>(params.dtype, params.weight, token * params.weight_stride), hidden,
                       static_cast<int>(params.hidden_size));
      if (params.bias != nullptr) logit += to_float(static_cast<const T*>(params.bias)[token]);
    }
    if (lane_index() == 0) store_logit(logit, static_cast<T*>(params.logits) + index);
  }
}

}  // namespace

#if !defined(__CUDACC_RTC__)

cudaError_t start(const GatherLogitsLaunch& launch, cudaStream_t stream) {
  return launch_one_of<GatherLogitsLaunch>({RDK_GATHER_LOGITS_KERNELS(RDK_FUNCTION)}, launch,
                                           stream);
}

#endif

}  // namespace rdk
