// Reductions, scans and searches by a warp, each in one fixed order, so that every kernel gets the
// same result.
#pragma once

#include "device.cuh"

namespace rdk {

RDK_DEVICE float warp_sum(float value) {
#pragma unroll
  for (int offset = kWarp / 2; offset > 0; offset /= 2) {
    value += __shfl_xor_sync(kAllLanes, value, offset);
  }
  return value;
}

RDK_DEVICE float warp_max(float value) {
#pragma unroll
  for (int offset = kWarp / 2; offset > 0; offset /= 2) {
    value = fmaxf(value, __shfl_xor_sync(kAllLanes, value, offset));
  }
  return value;
}

RDK_DEVICE int warp_min(int value) {
#pragma unroll
  for (int offset = kWarp / 2; offset > 0; offset /= 2) {
    value = min(value, __shfl_xor_sync(kAllLanes, value, offset));
  }
  return value;
}

// Sum of the lanes up to this one.
template <typename Number>
RDK_DEVICE Number warp_running_sum(Number value) {
  const int lane = lane_index();
#pragma unroll
  for (int offset = 1; offset < kWarp; offset *= 2) {
    const Number below = __shfl_up_sync(kAllLanes, value, offset);
    if (lane >= offset) value += below;
  }
  return value;
}

// The first index whose entry exceeds the word, or count if there is none. Each step has 32 probes.
RDK_DEVICE int warp_first_above(const int64_t* sums, int count, uint32_t word) {
  int begin = 0;
  while (count > 0) {
    const int stride = (count + kWarp - 1) / kWarp;
    const int last = (lane_index() + 1) * stride - 1;  // of this lane's share
    const int probe = last < count ? last : count - 1;
    const unsigned above =
        __ballot_sync(kAllLanes, sums[begin + probe] > static_cast<int64_t>(word));
    if (above == 0) return begin + count;
    const int share = (__ffs(above) - 1) * stride;
    if (stride == 1) return begin + share;
    begin += share;
    count = stride < count - share ? stride : count - share;
  }
  return begin;
}

// The sum of weights in the order in which warp_draw adds them. weight(index) is called by all
// lanes, and has to be zero from count on. weights(begin, out) of warp_total_of gives a lane
// kTogether of them at once, each kWarp after the other.
template <int kTogether, typename Weights>
RDK_DEVICE float warp_total_of(int count, Weights&& weights) {
  float carry = 0.0f;
  for (int begin = 0; begin < count; begin += kTogether * kWarp) {
    float running[kTogether];
    weights(begin, running);
#pragma unroll
    for (int j = 0; j < kTogether; ++j) running[j] = warp_running_sum(running[j]);
#pragma unroll
    for (int j = 0; j < kTogether; ++j) carry += __shfl_sync(kAllLanes, running[j], kWarp - 1);
  }
  return carry;
}
template <typename Weight>
RDK_DEVICE float warp_total(int count, Weight&& weight) {
  return warp_total_of<1>(
      count, [&](int begin, float (&out)[1]) { out[0] = weight(begin + lane_index()); });
}

// The first index whose running sum exceeds u * total and whose weight is not zero. If rounding
// leaves none, the last index of positive weight; if the total is zero, -1.
template <int kTogether, typename Weights>
RDK_DEVICE int warp_draw_of(int count, float u, float total, Weights&& weights) {
  const float threshold = u * total;
  float carry = 0.0f;
  int last_positive = -1;
  for (int begin = 0; begin < count; begin += kTogether * kWarp) {
    float values[kTogether];
    weights(begin, values);
#pragma unroll
    for (int j = 0; j < kTogether; ++j) {
      const bool weighs = values[j] > 0.0f;
      const float running = warp_running_sum(values[j]);
      const unsigned positive = __ballot_sync(kAllLanes, weighs);
      const unsigned above = __ballot_sync(kAllLanes, weighs && carry + running > threshold);
      const int first = begin + j * kWarp;
      if (above != 0) return first + __ffs(above) - 1;
      if (positive != 0) last_positive = first + 31 - __clz(positive);
      carry += __shfl_sync(kAllLanes, running, kWarp - 1);
    }
  }
  return last_positive;
}
template <typename Weight>
RDK_DEVICE int warp_draw(int count, float u, float total, Weight&& weight) {
  return warp_draw_of<1>(
      count, u, total, [&](int begin, float (&out)[1]) { out[0] = weight(begin + lane_index()); });
}

}  // namespace rdk
