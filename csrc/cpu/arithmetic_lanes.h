// `Arithmetic` over lanes.h: included once by each arithmetic_*.cpp, and compiled for its machine.
#pragma once

#include "arithmetic.h"
#include "lanes.h"
#include "temperature.h"
#include "truncation_lanes.h"

namespace rdk::cpu {
namespace {

float exponentiate(float* z, int64_t count, float shift) {
  const Floats shifts = all(shift);
  Floats sums = all(0.0f);
  for (int64_t i = 0; i < count; i += kLanes) {
    const Floats value = exponential(Float32::load(z + i) - shifts);
    store(z + i, value);
    sums = sums + value;
  }
  return add_lanes(sums);
}

template <int kRank>
void spread_sums_of(const float* weights, int64_t count, const float* spread, float* sums) {
  Floats lanes[kRank];
  for (int r = 0; r < kRank; ++r) lanes[r] = all(0.0f);
  for (int64_t i = 0; i < count; i += kLanes) {
    const float* from = spread + i * kRank;
    float padded[kLanes * kRank];
    if (count - i < kLanes) {
      for (int k = 0; k < kLanes * kRank; ++k) padded[k] = k < (count - i) * kRank ? from[k] : 0.0f;
      from = padded;
    }
    const Floats weight = Float32::load(weights + i);
    for (int r = 0; r < kRank; ++r) {
      float column[kLanes];
      for (int k = 0; k < kLanes; ++k) column[k] = from[k * kRank + r];
      lanes[r] = lanes[r] + weight * Float32::load(column);
    }
  }
  for (int r = 0; r < kRank; ++r) sums[r] = add_lanes(lanes[r]);
}

void spread_sums(const float* weights, int64_t count, const float* spread, int64_t rank,
                 float* sums) {
  constexpr decltype(&spread_sums_of<1>) kOfRank[kMaxRank] = {spread_sums_of<1>, spread_sums_of<2>,
                                                              spread_sums_of<3>, spread_sums_of<4>};
  if (rank > 0) kOfRank[rank - 1](weights, count, spread, sums);
}

// Columns of S for kRows rows at once.
template <int kRows>
struct Columns {
  const AffinityColumns& affinity;
  int64_t begin;
  const float* weights[kRows];
  float* masses[kRows];

  // Pointers of its own, which no store through them can change.
  Columns(const AffinityColumns& columns, int64_t first, const float* const* from, float* const* to)
      : affinity(columns), begin(first) {
    for (int row = 0; row < kRows; ++row) {
      weights[row] = from[row];
      masses[row] = to[row];
    }
  }

  // Sixteen columns of one entry each have their entries next to each other. Four at a time: all
  // machines are equally fast at filling a register with four loads.
  void of_single_entries(int64_t x) const {
    typedef float Four __attribute__((vector_size(16)));
    const int64_t first = affinity.offsets[x];
    for (int i = 0; i < kLanes; i += 4) {
      int32_t draft[4];
      Four factor;
      __builtin_memcpy(draft, affinity.drafts + first + i, sizeof draft);
      __builtin_memcpy(&factor, affinity.weights + first + i, sizeof factor);
      for (int row = 0; row < kRows; ++row) {
        const float* from = weights[row];
        Four mass = {from[draft[0]], from[draft[1]], from[draft[2]], from[draft[3]]};
        mass = mass * factor;
        __builtin_memcpy(masses[row] + (x - begin + i), &mass, sizeof mass);
      }
    }
  }

  // Sixteen columns of one entry or none. S is not empty: its last entry is read in place of a
  // missing one, and masked.
  void of_single_or_no_entries(int64_t x) const {
    const int32_t last = affinity.offsets[affinity.target_size] - 1;
    for (int64_t i = x; i < x + kLanes; ++i) {
      const int32_t entry = affinity.offsets[i];
      const int32_t read = entry < last ? entry : last;
      // All bits or none, which is 0.0f, because a branch would be mispredicted.
      const int32_t mask = entry - affinity.offsets[i + 1];
      const int32_t draft = affinity.drafts[read];
      const float factor = affinity.weights[read];
      for (int row = 0; row < kRows; ++row) {
        const float mass = weights[row][draft] * factor;
        int32_t bits;
        __builtin_memcpy(&bits, &mass, sizeof bits);
        bits &= mask;
        __builtin_memcpy(masses[row] + (i - begin), &bits, sizeof bits);
      }
    }
  }

  void of_any(int64_t x, int64_t end) const {
    for (; x < end; ++x) {
      float mass[kRows] = {};
      for (int64_t entry = affinity.offsets[x]; entry < affinity.offsets[x + 1]; ++entry) {
        for (int row = 0; row < kRows; ++row) {
          mass[row] += weights[row][affinity.drafts[entry]] * affinity.weights[entry];
        }
      }
      for (int row = 0; row < kRows; ++row) masses[row][x - begin] = mass[row];
    }
  }

  void until(int64_t end) const {
    const bool empty = affinity.offsets[affinity.target_size] == 0;
    int64_t x = begin;
    for (; x + kLanes <= end; x += kLanes) {
      const Steps steps = steps_between(affinity.offsets + x);
      if (steps.all_one) {
        of_single_entries(x);
      } else if (steps.at_most_one && !empty) {
        of_single_or_no_entries(x);
      } else {
        of_any(x, x + kLanes);
      }
    }
    of_any(x, end);
  }
};

template <int kRows>
void column_masses_of(const AffinityColumns& affinity, const float* const* weights, int64_t begin,
                      int64_t end, float* const* masses) {
  Columns<kRows>(affinity, begin, weights, masses).until(end);
}

void column_masses(const AffinityColumns& affinity, const float* const* weights, int64_t rows,
                   int64_t begin, int64_t end, float* const* masses) {
  constexpr decltype(&column_masses_of<1>) kOfRows[kGroup] = {
      column_masses_of<1>, column_masses_of<2>, column_masses_of<3>, column_masses_of<4>};
  kOfRows[rows - 1](affinity, weights, begin, end, masses);
}

void finish_columns(const AffinityColumns& affinity, float sum, const float* s, int64_t begin,
                    int64_t end, float* masses) {
  for (int64_t i = 0; i < end - begin; ++i) masses[i] = masses[i] / sum;
  for (int64_t r = 0; r < affinity.rank; ++r) {
    const float* prior = affinity.prior + r * affinity.target_size + begin;
    for (int64_t i = 0; i < end - begin; ++i) masses[i] += s[r] * prior[i];
  }
}

float residual(float* p, const float* q, int64_t count) {
  Floats sums = all(0.0f);
  for (int64_t i = 0; i < count; i += kLanes) {
    const Floats value = larger(Float32::load(p + i) - Float32::load(q + i), all(0.0f));
    store(p + i, value);
    sums = sums + value;
  }
  return add_lanes(sums);
}

template <int kRank>
void overlap_of(const float* p_row, const float* q_row, int64_t count, const float* const* priors,
                uint32_t* below, float* sums) {
  const Floats none = all(0.0f);
  Floats lanes[2 + kRank];
  for (Floats& each : lanes) each = none;
  for (int64_t i = 0; i < count; i += kLanes) {
    const Floats p = Float32::load(p_row + i);
    const Floats q = Float32::load(q_row + i);
    const Mask set = q < p;
    const uint32_t bits = bits_of_lanes(set);
    below[i / 32] = i % 32 == 0 ? bits : below[i / 32] | bits << 16;
    lanes[0] = lanes[0] + smaller(p, q);
    lanes[1] = lanes[1] + select(set, q, none);
    for (int r = 0; r < kRank; ++r) {
      const int64_t left = count - i;
      const Floats prior = left >= kLanes ? Float32::load(priors[r] + i)
                                          : load_some<Float32>(priors[r] + i, left, 0.0f);
      lanes[2 + r] = lanes[2 + r] + select(set, prior, none);
    }
  }
  for (int k = 0; k < 2 + kRank; ++k) sums[k] = add_lanes(lanes[k]);
}

void overlap(const float* p, const float* q, int64_t count, const float* const* priors,
             int64_t rank, uint32_t* below, float* sums) {
  constexpr decltype(&overlap_of<0>) kOfRank[kMaxRank + 1] = {
      overlap_of<0>, overlap_of<1>, overlap_of<2>, overlap_of<3>, overlap_of<4>};
  kOfRank[rank](p, q, count, priors, below, sums);
}

template <typename Type, int kRows>
void dots_of(const HeadRows& rows, const void* hidden_data, int64_t size, float* dots) {
  using Element = typename Type::Element;
  const auto* hidden = static_cast<const Element*>(hidden_data);
  const Element* row[kRows];
  const Element* ahead[kRows];
  // Four sums for each row: with one, every addition would wait for the one before.
  Floats sums[kRows][4];
  for (int r = 0; r < kRows; ++r) {
    row[r] = static_cast<const Element*>(rows.row[r]);
    ahead[r] = static_cast<const Element*>(rows.ahead[r]);
    for (int k = 0; k < 4; ++k) sums[r][k] = all(0.0f);
  }
  int64_t i = 0;
  for (; i + 4 * kLanes <= size; i += 4 * kLanes) {
    for (int r = 0; r < kRows; ++r) {
      if (ahead[r] == nullptr) continue;
      const Element* line = ahead[r] + i;
      for (int k = 0; k < 4 * kLanes; k += 64 / sizeof *line) __builtin_prefetch(line + k);
    }
    for (int k = 0; k < 4; ++k) {
      const Floats factor = Type::load(hidden + i + k * kLanes);
      for (int r = 0; r < kRows; ++r) {
        sums[r][k] = sums[r][k] + Type::load(row[r] + i + k * kLanes) * factor;
      }
    }
  }
  for (; i < size; i += kLanes) {
    const Floats factor = load_some<Type>(hidden + i, size - i, 0);
    for (int r = 0; r < kRows; ++r) {
      sums[r][0] = sums[r][0] + load_some<Type>(row[r] + i, size - i, 0) * factor;
    }
  }
  for (int r = 0; r < kRows; ++r) {
    dots[r] = add_lanes((sums[r][0] + sums[r][1]) + (sums[r][2] + sums[r][3]));
  }
}

void dots(Dtype dtype, const HeadRows& rows, const void* hidden, int64_t size, float* dots) {
  with_elements(dtype, [&](auto type) {
    using Type = decltype(type);
    constexpr decltype(&dots_of<Type, 1>) kOfRows[kGroup] = {dots_of<Type, 1>, dots_of<Type, 2>,
                                                             dots_of<Type, 3>, dots_of<Type, 4>};
    kOfRows[rows.count - 1](rows, hidden, size, dots);
  });
}

constexpr Arithmetic arithmetic_named(const char* name) {
  return {name,           scale,    exponentiate, measure,
          split,          weigh,    collect,      exponentiate_kept,
          keep,           cut,      spread_sums,  column_masses,
          finish_columns, residual, overlap,      dots};
}

}  // namespace
}  // namespace rdk::cpu
