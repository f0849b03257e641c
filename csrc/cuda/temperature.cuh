// Where a temperature is applied to logits, the target's and the drafter's alike.
#pragma once

#include "logits.cuh"

namespace rdk {

// logit / temperature, as a product with the reciprocal. A division costs about eight operations a
// column, a division by correction three, the product one, of about twelve in all; and 16-bit
// logits arrive so fast that these operations decide the speed. The reciprocal is in two factors
// where one would overflow or be subnormal. A finite logit that would become -inf, and pass as an
// ordinary zero, gives NaN: such a row has no distribution.
struct Scale {
  float factor;
  float rest;    // 1 but for a temperature that is subnormal or above 2^126
  float lowest;  // the least logit whose quotient is finite

  // Temperature 0 compares the logits themselves.
  RDK_DEVICE explicit Scale(float temperature) {
    constexpr float kLargest = 3.40282347e38f;
    constexpr float kSmallestNormal = 1.17549435e-38f;
    constexpr float kTwoTo64 = 1.8446744e19f;
    constexpr float kTwoTo126 = 8.5070592e37f;
    const float divisor = temperature == 0.0f ? 1.0f : temperature;
    rest = divisor < kSmallestNormal ? kTwoTo64 : divisor > kTwoTo126 ? 1.0f / kTwoTo64 : 1.0f;
    factor = 1.0f / (divisor * rest);
    lowest = -kLargest * divisor;
  }

  RDK_DEVICE float operator()(float logit) const {
    const bool overflows = logit < lowest && logit != -infinity();
    return overflows ? not_a_number() : logit * factor * rest;
  }

  // Of a logit of a row that has a distribution.
  RDK_DEVICE float finite(float logit) const { return logit * factor * rest; }

  // All columns of a lane. Rare cases are tested once for all of them, and temperature 1, the most
  // common one, costs nothing: together a sixth of what a column would cost. Takes the largest of
  // them and returns that of the products, because rounding keeps their order.
  RDK_DEVICE float operator()(float largest, float (&z)[kPerLane]) const {
    if (factor == 1.0f && rest == 1.0f) return largest;
    float least = z[0];
#pragma unroll
    for (int v = 1; v < kPerLane; ++v) least = fminf(least, z[v]);
    if (least < lowest || rest != 1.0f) {
#pragma unroll
      for (int v = 0; v < kPerLane; ++v) z[v] = (*this)(z[v]);
      return fmaxf((*this)(largest), -infinity());  // a NaN of theirs is not the largest
    }
#pragma unroll
    for (int v = 0; v < kPerLane; ++v) z[v] *= factor;
    return largest * factor;
  }
  // The same in less code, where one NaN is as good as another: any leaves a row without a
  // distribution.
  RDK_DEVICE float briefly(float largest, float (&z)[kPerLane]) const {
    if (factor == 1.0f && rest == 1.0f) return largest;
    bool overflows = false;
#pragma unroll
    for (int v = 0; v < kPerLane; ++v) {
      overflows = overflows || (z[v] < lowest && z[v] != -infinity());
      z[v] = finite(z[v]);
    }
    if (overflows) z[0] = not_a_number();
    return fmaxf(finite(largest), -infinity());  // a NaN is not the largest
  }
};

}  // namespace rdk
