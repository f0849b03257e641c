// The functions of every `Arithmetic` that this machine has, for ctypes.

#include <algorithm>

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

void spread_sums(int index, const float* weights, int64_t count, const float* spread, int64_t rank,
                 float* sums) {
  arithmetic_of(index).spread_sums(weights, count, spread, rank, sums);
}

void column_masses(int index, const int32_t* offsets, const int32_t* drafts,
                   const float* col_weights, int64_t target_size, const float* const* weights,
                   int64_t rows, int64_t begin, int64_t end, float* const* masses) {
  AffinityColumns affinity{};
  affinity.offsets = offsets;
  affinity.drafts = drafts;
  affinity.weights = col_weights;
  affinity.target_size = target_size;
  arithmetic_of(index).column_masses(affinity, weights, rows, begin, end, masses);
}

float residual(int index, float* p, const float* q, int64_t count) {
  return arithmetic_of(index).residual(p, q, count);
}

void dots(int index, int dtype, const void* const* rows, int64_t count, const void* hidden,
          int64_t size, float* results) {
  HeadRows head{};
  head.count = count;
  std::copy_n(rows, count, head.row);
  std::copy_n(rows + 1, count - 1, head.ahead);  // null behind the last
  arithmetic_of(index).dots(static_cast<Dtype>(dtype), head, hidden, size, results);
}

}  // extern "C"
