// The functions of every `Arithmetic` that this machine has, for ctypes.

#include "cpu/capabilities.h"

using namespace rdk;
using namespace rdk::cpu;

namespace {

const Arithmetic& arithmetic_of(int index) { return *available_arithmetic()[index]; }

}  // namespace

extern "C" {

int available() { return static_cast<int>(available_arithmetic().size()); }

const char* name(int index) { return arithmetic_of(index).name; }

float scale(int index, int dtype, const void* logits, int64_t count, float temperature,
            const float* bias, bool bias_only_masks, float* z) {
  return arithmetic_of(index).scale(
      {static_cast<Dtype>(dtype), logits, count, temperature, bias, bias_only_masks}, z);
}

float exponentiate(int index, float* z, int64_t count, float shift) {
  return arithmetic_of(index).exponentiate(z, count, shift);
}

void measure(int index, const float* z, const float* weights, int64_t count, float threshold,
             int64_t* found) {
  const Measure measure = arithmetic_of(index).measure(z, weights, count, threshold);
  found[0] = measure.count;
  found[1] = measure.mass;
}

}  // extern "C"
