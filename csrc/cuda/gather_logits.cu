// gather_logits: dot products of the full head's rows with the hidden state. Memory floor: the
// bytes of the gathered rows. A warp takes a token and reads its row by 128-bit loads, four steps
// in flight at once; the hidden state comes from cache. Each of few tokens has a block of four
// warps: 16 steps in flight, a whole row of 4096 columns. A step of a bfloat16 row is 512
// bytes and 40 instructions. While an H200 brings these bytes (4.8 TB/s over 132 multiprocessors
// at 1.7 GHz), a multiprocessor issues 96 instructions, so products and sums can be rounded one by
// one.

#include "launch_kernel.cuh"
#include "logits.cuh"
#include "warp.cuh"

namespace rdk {
namespace {

constexpr int kMaxThreads = GatherLogitsLaunch::kMaxThreads;
// Without this bound the compiler saves registers, and waits for each pair of loads.
constexpr int kBlocks = GatherLogitsLaunch::kBlocks;

// A step is what a warp reads at once, eight columns a lane. Step s belongs to part s mod kParts.
// Each part is added up by itself and then all of them, so that it makes no difference whether one
// warp takes all parts or each has a warp of its own.
constexpr int kParts = GatherLogitsLaunch::kParts;
constexpr int kStep = kWarp * kVector;

RDK_DEVICE float sum_of(float (&values)[kVector]) {
#pragma unroll
  for (int width = kVector / 2; width > 0; width /= 2) {
#pragma unroll
    for (int j = 0; j < width; ++j) values[j] += values[j + width];
  }
  return values[0];
}

// This lane's products of a step: of a whole one by vectors, from column `own` on.
template <typename T>
RDK_DEVICE float whole_step(const Logits<T>& row, const Logits<T>& hidden, int own) {
  float a[kVector];
  float b[kVector];
  row.load_vector(own, a);
  hidden.load_vector(own, b);
#pragma unroll
  for (int j = 0; j < kVector; ++j) a[j] *= b[j];
  return sum_of(a);
}
template <typename T>
RDK_DEVICE float any_step(const Logits<T>& row, const Logits<T>& hidden, int own, int size) {
  float products[kVector];
#pragma unroll
  for (int j = 0; j < kVector; ++j) {
    products[j] = own + j < size ? row[own + j] * hidden[own + j] : 0.0f;
  }
  return sum_of(products);
}

// This lane's sums of the kCount parts from `first` on, four steps in flight at once.
template <int kCount, typename T>
RDK_DEVICE void sum_parts(const Logits<T>& row, const Logits<T>& hidden, int size, int first,
                          float (&sums)[kCount]) {
  const int whole = row.aligned() && hidden.aligned() ? size / kStep * kStep : 0;
  const int own = lane_index() * kVector;
  const int rounds = (whole / kStep - first + kParts - kCount) / kParts;
  int begin = first * kStep;
#pragma unroll kParts / kCount
  for (int round = 0; round < rounds; ++round, begin += kParts * kStep) {
#pragma unroll
    for (int i = 0; i < kCount; ++i) sums[i] += whole_step(row, hidden, begin + i * kStep + own);
  }
#pragma unroll 1
  for (; begin < size; begin += kParts * kStep) {  // the end of a row, or one not aligned
#pragma unroll
    for (int i = 0; i < kCount; ++i) {
      const int step = begin + i * kStep;
      sums[i] += step < whole ? whole_step(row, hidden, step + own)
                              : any_step(row, hidden, step + own, size);
    }
  }
}

// By one warp, or together by the kParts warps of a block, which calls this once.
template <typename T>
RDK_DEVICE float dot(const Logits<T>& row, const Logits<T>& hidden, int size, bool together) {
  __shared__ float of_warps[kParts][kWarp];
  float parts[kParts] = {};
  if (together) {
    float sum[1] = {};
    sum_parts(row, hidden, size, warp_index(), sum);
    of_warps[warp_index()][lane_index()] = sum[0];
    __syncthreads();
#pragma unroll
    for (int part = 0; part < kParts; ++part) parts[part] = of_warps[part][lane_index()];
  } else {
    sum_parts(row, hidden, size, 0, parts);
  }
  static_assert(kParts == 4, "added in pairs");
  return warp_sum((parts[0] + parts[1]) + (parts[2] + parts[3]));
}

template <typename T>
__global__ void __launch_bounds__(kMaxThreads, kBlocks)
    gather_logits_kernel(const GatherLogitsLaunch launch) {
  wait_for_earlier_kernels();
  const GatherLogitsParams& params = launch.params;
  const int row = blockIdx.x / launch.splits;
  const int split = blockIdx.x % launch.splits;
  const int tokens_per_row = static_cast<int>(params.tokens_per_row);
  const Logits<T> hidden(params.dtype, params.hidden.data, params.hidden.offset(row));
  const int at_once = launch.together ? 1 : blockDim.x / kWarp;  // tokens of a block
  const int warp = warp_index();
  const int own = launch.together ? 0 : warp;
  for (int c = split * at_once + own; c < tokens_per_row; c += launch.splits * at_once) {
    const int64_t index = row * params.tokens_per_row + c;
    const int64_t token = params.tokens[index];
    float logit = -infinity();
    if (token >= 0 && token < params.vocabulary) {
      logit = dot(Logits<T>(params.dtype, params.weight, token * params.weight_stride), hidden,
                  static_cast<int>(params.hidden_size), launch.together);
      if (params.bias != nullptr) logit += to_float(static_cast<const T*>(params.bias)[token]);
    }
    if (lane_index() == 0 && warp == own) {
      store_rounded(logit, static_cast<T*>(params.logits) + index);
    }
  }
}

}  // namespace

RDK_START(GatherLogits, GATHER_LOGITS)

}  // namespace rdk
