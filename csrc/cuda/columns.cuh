// The columns of S for several target tokens of a lane at once, whose chains of loads (where a
// column begins, its drafter tokens, their weights) are under way together.
#pragma once

#include "affinity.cuh"

namespace rdk {

RDK_DEVICE void store_vector(float* address, const float* values) {
  *reinterpret_cast<uint4*>(address) = {__float_as_uint(values[0]), __float_as_uint(values[1]),
                                        __float_as_uint(values[2]), __float_as_uint(values[3])};
}

// A chunk's z, for all warps.
RDK_DEVICE void keep_chunk(const float (&z)[kPerLane], int begin, int size, float* kept) {
#pragma unroll
  for (int v = 0; v < kPerLane; v += 4) {
    const int column = begin + column_of(lane_index(), v);
    // What follows the last column is padding of the row, or belongs to no one.
    if (column < size) store_vector(kept + column, z + v);
  }
}

// The tokens of a lane in a warp's from base on: each kWarp after the other, so that a warp's loads
// and stores are coalesced wherever a row begins.
RDK_DEVICE int token_of(int base, int j) { return base + j * kWarp + lane_index(); }

// Of a tensor over target tokens; zero from end on.
template <typename Number, int kCount>
RDK_DEVICE void load_tokens(const Number* values, int base, int end, Number (&out)[kCount]) {
#pragma unroll
  for (int j = 0; j < kCount; ++j) {
    const int token = token_of(base, j);
    out[j] = token < end ? __ldg(values + token) : Number{0};
  }
}

// The entries of the tokens' columns of S.
template <int kCount>
struct Columns {
  int begin[kCount];
  int end[kCount];
};

template <int kCount>
RDK_DEVICE Columns<kCount> load_columns(const AffinityColumns& affinity, int base, int end) {
  Columns<kCount> columns{};
  if (affinity.entries == 0) return columns;
  load_tokens(affinity.offsets, base, end, columns.begin);
  load_tokens(affinity.offsets + 1, base, end, columns.end);
  return columns;
}

// A column that has ended adds zeros, its weights read from an entry of another: they are finite.
template <int kCount, typename Weight>
RDK_DEVICE void add_entries(const AffinityColumns& affinity, const Columns<kCount>& columns,
                            Weight&& weight, float (&masses)[kCount]) {
  const int32_t* __restrict__ all_drafts = affinity.drafts;
  const float* __restrict__ all_shares = affinity.weights;
  const int last = static_cast<int>(affinity.entries) - 1;
  int longest = 0;
#pragma unroll
  for (int j = 0; j < kCount; ++j) longest = max(longest, columns.end[j] - columns.begin[j]);
#pragma unroll 1
  for (int k = 0; k < longest; ++k) {
    int drafts[kCount];
    float shares[kCount];
#pragma unroll
    for (int j = 0; j < kCount; ++j) {
      const int entry = min(columns.begin[j] + k, last);
      drafts[j] = __ldg(all_drafts + entry);
      shares[j] = __ldg(all_shares + entry);
    }
#pragma unroll
    for (int j = 0; j < kCount; ++j) {
      const float share = columns.begin[j] + k < columns.end[j] ? shares[j] : 0.0f;
      masses[j] += weight(drafts[j]) * share;
    }
  }
}

// Adds exp(z - max) of the dynamic columns of a warp's tokens, in the order of the columns.
template <int kCount, typename D, typename C>
RDK_DEVICE void add_dynamic_columns(const DraftRow<D, C>& draft, float max, int base,
                                    float (&masses)[kCount]) {
#pragma unroll 1
  for (int begin = 0; begin < draft.dynamic_size; begin += kWarp) {
    const int c = begin + lane_index();
    const int token = c < draft.dynamic_size && draft.used(c) ? draft.dynamic_tokens[c] : -1;
    const bool here = token >= base && token < base + kCount * kWarp;
    const float weight = here ? expf(draft.dynamic_value(c) - max) : 0.0f;
    unsigned columns = __ballot_sync(kAllLanes, here);
    for (; columns != 0; columns &= columns - 1) {
      const int lane = __ffs(static_cast<int>(columns)) - 1;
      const int added = __shfl_sync(kAllLanes, token, lane);
      const float mass = __shfl_sync(kAllLanes, weight, lane);
#pragma unroll
      for (int j = 0; j < kCount; ++j) {
        if (token_of(base, j) == added) masses[j] += mass;
      }
    }
  }
}

// mass / total for some masses and the rounded reciprocal of a total of at least 1: the same bits
// as divisions, in half the operations. The first correction leaves an error below one unit in the
// last place, and then the second rounds correctly (Markstein, "Computation of elementary functions
// on the IBM RISC System/6000 processor", 1990). It needs remainders without underflow.
template <int kCount>
RDK_DEVICE void divide(float (&masses)[kCount], float total, float reciprocal) {
  constexpr float kTwoToMinus90 = 8.0779357e-28f;
  bool tiny = false;
#pragma unroll
  for (int j = 0; j < kCount; ++j) {
    tiny = tiny || (masses[j] != 0.0f && masses[j] < kTwoToMinus90);
  }
  if (tiny) {
#pragma unroll
    for (int j = 0; j < kCount; ++j) masses[j] = masses[j] / total;
    return;
  }
#pragma unroll
  for (int j = 0; j < kCount; ++j) {
    float quotient = masses[j] * reciprocal;
    quotient = fmaf(fmaf(-total, quotient, masses[j]), reciprocal, quotient);
    masses[j] = fmaf(fmaf(-total, quotient, masses[j]), reciprocal, quotient);
  }
}

// The same of any total.
template <int kCount>
RDK_DEVICE void divide(float (&masses)[kCount], float total) {
  if (total >= 1.0f) return divide(masses, total, 1.0f / total);
#pragma unroll
  for (int j = 0; j < kCount; ++j) masses[j] = masses[j] / total;
}

}  // namespace rdk
