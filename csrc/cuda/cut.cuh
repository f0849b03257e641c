// How a row that may be truncated differs from one that is whole: it divides by its temperature,
// tokens may be forbidden, and what is below its threshold has z = -inf (docs/design.md,
// "Truncation"). Rows take one of two types, so that kernels for whole rows have no code for this.
#pragma once

#include "temperature.cuh"

namespace rdk {

// Every token is allowed.
struct NoMask {
  RDK_DEVICE static NoMask of(const Rows&, int64_t) { return {}; }
  RDK_DEVICE void advance(int64_t) {}
  RDK_DEVICE bool allows(int) const { return true; }
  RDK_DEVICE void apply(int, int, float (&)[kPerLane]) const {}
};

// One bit for each token of a row.
struct BitMask {
  const uint32_t* words;  // null: every token is allowed

  // Of the row, where there are masks: in two dimensions, as logits of the target are.
  RDK_DEVICE static BitMask of(const Rows& allowed, int64_t row) {
    if (allowed.data == nullptr) return {nullptr};
    return {static_cast<const uint32_t*>(allowed.data) + row * allowed.inner_stride};
  }
  RDK_DEVICE void advance(int64_t by) {
    if (words != nullptr) words += by;
  }
  RDK_DEVICE bool allows(int token) const {
    return words == nullptr || (__ldg(words + token / 32) >> (token % 32) & 1u) != 0;
  }
  // To this lane's logits of a chunk. Whole bytes: a lane's neighbouring columns.
  RDK_DEVICE void apply(int begin, int size, float (&logits)[kPerLane]) const {
    static_assert(kVector == 8, "a vector has a byte of the mask");
    if (words == nullptr) return;
#pragma unroll
    for (int v = 0; v < kPerLane; v += kVector) {
      const int column = begin + column_of(lane_index(), v);
      const uint32_t bits = column < size ? __ldg(words + column / 32) >> (column % 32) : 0;
#pragma unroll
      for (int j = 0; j < kVector; ++j) {
        if ((bits >> j & 1u) == 0) logits[v + j] = -infinity();
      }
    }
  }
};

struct Whole {
  static constexpr bool kCuts = false, kPlain = false, kDrawn = false, kByBlock = false;
  using Rows = Whole;
  using Mask = NoMask;

  RDK_DEVICE static Whole nothing() { return {}; }
  RDK_DEVICE static Whole at(float, float) { return {}; }
  RDK_DEVICE float limit() const { return -infinity(); }

  RDK_DEVICE float scaled(float logit, const Scale& scale) const { return scale(logit); }
  // To logits, whose largest is given; returns the largest z.
  RDK_DEVICE float apply(const Scale& scale, float largest, float (&z)[kPerLane]) const {
    return scale(largest, z);
  }
  RDK_DEVICE float kept(float z) const { return z; }
  RDK_DEVICE void keep(float (&)[kPerLane]) const {}
  // The largest z of this lane, where it was `largest` before masks and cuts.
  RDK_DEVICE float largest_kept(float largest, const float (&)[kPerLane]) const { return largest; }
};

// Of which all chunks are whole, in one run of static columns whose bias, if any, is aligned like
// the logits: what nearly every row is. Code for it has no rare ways between the usual ones, which
// a kernel that runs for some microseconds would wait for: a jump to code that nobody has run
// takes a third of one.
struct Plain : Whole {
  static constexpr bool kPlain = true;

  RDK_DEVICE static Plain nothing() { return {}; }
  RDK_DEVICE float apply(const Scale& scale, float largest, float (&z)[kPerLane]) const {
    return scale.briefly(largest, z);
  }
};

struct Cut {
  static constexpr bool kCuts = true, kPlain = false, kDrawn = false, kByBlock = false;
  using Rows = Cut;
  using Mask = BitMask;
  float threshold;  // -inf: nothing is cut
  float divisor;    // 0: z is a product with the reciprocal, as in a row that is whole

  // A row that is whole.
  RDK_DEVICE static Cut nothing() { return {-infinity(), 0.0f}; }
  // Where a division by the temperature decides what is kept.
  RDK_DEVICE static Cut below(float threshold, float temperature) {
    return {threshold, temperature == 1.0f ? 0.0f : temperature};
  }
  // Of a row whose threshold is known.
  RDK_DEVICE static Cut at(float threshold, float temperature) {
    return threshold > -infinity() ? below(threshold, temperature) : nothing();
  }
  RDK_DEVICE float limit() const { return threshold; }

  // A finite logit whose quotient is -inf gives NaN, as in Scale.
  RDK_DEVICE float divided(float logit) const {
    const float quotient = logit / divisor;
    return quotient == -infinity() && logit != -infinity() ? not_a_number() : quotient;
  }
  RDK_DEVICE float scaled(float logit, const Scale& scale) const {
    return divisor == 0.0f ? scale(logit) : divided(logit);
  }
  RDK_DEVICE float apply(const Scale& scale, float largest, float (&z)[kPerLane]) const {
    if (divisor == 0.0f) return scale(largest, z);
#pragma unroll
    for (int v = 0; v < kPerLane; ++v) z[v] = divided(z[v]);
    return largest;
  }
  // NaN stays, and leaves the row without a distribution.
  RDK_DEVICE float kept(float z) const { return z < threshold ? -infinity() : z; }
  RDK_DEVICE void keep(float (&z)[kPerLane]) const {
    if (threshold == -infinity()) return;
#pragma unroll
    for (int v = 0; v < kPerLane; ++v) z[v] = kept(z[v]);
  }
  RDK_DEVICE float largest_kept(float, const float (&z)[kPerLane]) const { return largest_of(z); }
};

}  // namespace rdk
