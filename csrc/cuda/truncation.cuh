// Where top-k, top-p and min-p cut a row: the least z that is kept (docs/design.md, "Truncation").
// A block finds it by histograms over the order of z, each of which splits the bin of the boundary
// into 2048, so that three are enough. Counts and masses are integers: their sums depend neither on
// the order of additions nor on the number of threads.
#pragma once

#include "softmax.cuh"

namespace rdk {

// The limits of a row, and what they mean at its temperature; of a row that is not Cut there are
// none.
template <typename C>
struct RowLimits {
  int top_k = 0;
  float top_p = 1.0f;
  float min_p = 0.0f;
  float temperature;

  // As many columns as there are, or more, are no limit.
  RDK_DEVICE RowLimits(const Truncation& given, int64_t row, int columns, float of_row)
      : temperature(of_row) {
    if constexpr (C::kCuts) {
      if (given.top_k != nullptr && given.top_k[row] < columns) top_k = given.top_k[row];
      if (given.top_p != nullptr) top_p = given.top_p[row];
      if (given.min_p != nullptr) min_p = given.min_p[row];
    }
  }
  RDK_DEVICE RowLimits(const Truncation& given, int64_t row, const DraftColumns& draft,
                       float of_row)
      : RowLimits(given, row, static_cast<int>(draft.draft_size + draft.dynamic_size), of_row) {}

  // At temperature 0 they are not read. False for NaN.
  RDK_DEVICE bool usable() const {
    return !C::kCuts || temperature == 0.0f ||
           (top_k >= 0 && top_p > 0.0f && top_p <= 1.0f && min_p >= 0.0f && min_p <= 1.0f);
  }
  // Whether the row has to be searched for a threshold.
  RDK_DEVICE bool any() const {
    return C::kCuts && temperature != 0.0f && (top_k != 0 || top_p != 1.0f || min_p != 0.0f);
  }
  // Of a row whose threshold is not known yet, and once it is.
  RDK_DEVICE C before() const {
    if constexpr (C::kCuts) {
      return any() ? C::below(-infinity(), temperature) : C::nothing();
    } else {
      return {};
    }
  }
  RDK_DEVICE C at(float threshold) const { return C::at(threshold, temperature); }
};

// Floats as integers in the same order. Zeros are two, next to each other: whichever is found, a
// comparison of floats keeps both.
RDK_DEVICE unsigned order_of(float z) {
  const unsigned bits = __float_as_uint(z);
  return (bits & 0x80000000u) != 0 ? ~bits : bits | 0x80000000u;
}
RDK_DEVICE float of_order(unsigned order) {
  return __uint_as_float((order & 0x80000000u) != 0 ? order & 0x7fffffffu : ~order);
}

constexpr float kLowest = -3.40282347e38f;
// exp(-28) < 2^-40, so columns further below the largest have no mass.
constexpr float kMassless = 28.0f;

// floor(2^40 exp(x)) for x <= 0, by the float32 exp of section 5: which columns are kept must not
// depend on how fast an exponential is.
RDK_DEVICE uint64_t mass_of(float x) {
  if (x < -kMassless) return 0;
  const float shift = 12582912.0f + 127.0f;
  const float biased = x * 1.44269504088896341f + shift;
  const float n = biased - shift;
  const float r = x - n * 0.693359375f - n * -2.12194440054690583e-4f;
  float p = 0x1.6a2318p-10f;
  p = p * r + 0x1.123a8ep-7f;
  p = p * r + 0x1.5558f6p-5f;
  p = p * r + 0x1.555490p-3f;
  p = p * r + 0x1.fffffcp-2f;
  const float power = __uint_as_float(__float_as_uint(biased) << 23);
  return static_cast<uint64_t>((p * (r * r) + r + 1.0f) * power * 1099511627776.0f);
}

// In dynamic shared memory.
struct ThresholdScratch {
  static constexpr int kBins = 2048;
  static constexpr int kMaxWarps = 16;
  unsigned low[kBins];  // of 64-bit sums
  unsigned high[kBins];
  uint64_t of_warps[kMaxWarps];
  uint64_t before;  // what is in the bins before the one that was found
  int bin;          // -1: none

  RDK_DEVICE void add(int index, uint64_t amount) {
    const unsigned part = static_cast<unsigned>(amount);
    const unsigned old = shared_add(&low[index], part);
    const unsigned carry = old + part < old ? 1u : 0u;
    const unsigned rest = static_cast<unsigned>(amount >> 32) + carry;
    if (rest != 0) shared_add(&high[index], rest);
  }
  RDK_DEVICE uint64_t amount(int index) const {
    return static_cast<uint64_t>(high[index]) << 32 | low[index];
  }
};
static_assert(sizeof(ThresholdScratch) == kThresholdBytes, "plans leave room for it");

// Columns whose z lies in an interval of its order, cut into bins from the largest z on.
struct OrderRange {
  unsigned least;
  unsigned largest;

  RDK_DEVICE int shift() const {
    constexpr int kBinBits = 11;
    static_assert(1 << kBinBits == ThresholdScratch::kBins, "as many as there are");
    const int bits = 32 - __clz(static_cast<int>(largest - least));
    return bits > kBinBits ? bits - kBinBits : 0;
  }
  RDK_DEVICE OrderRange bin(int index) const {
    const unsigned top = largest - (static_cast<unsigned>(index) << shift());
    const unsigned rest = (1u << shift()) - 1;
    return {top - least > rest ? top - rest : least, top};
  }
};

// What is counted of a row: its columns, or their masses relative to the largest z.
struct Amounts {
  bool of_mass;
  float max;

  RDK_DEVICE uint64_t of(float z) const { return of_mass ? mass_of(z - max) : 1; }
};

// By a block: the histogram of a row's columns in the range. Chunks whose largest z lies below it
// are not read.
template <typename Row>
RDK_DEVICE void fill_histogram(const Row& row, const ChunkSum* chunks, const OrderRange& range,
                               const Amounts& amounts, ThresholdScratch* scratch) {
  constexpr int kAtOnce = 8;
  for (int i = threadIdx.x; i < ThresholdScratch::kBins; i += blockDim.x) {
    scratch->low[i] = 0;
    scratch->high[i] = 0;
  }
  if (threadIdx.x == 0) scratch->bin = -1;
  __syncthreads();
  const int shift = range.shift();
  const float least = of_order(range.least);
  const int warps = static_cast<int>(blockDim.x) / kWarp;
#pragma unroll 1
  for (int chunk = warp_index(); chunk < row.chunks(); chunk += warps) {
    if (!(global_load(&chunks[chunk].max) >= least)) continue;
#pragma unroll 1
    for (int begin = 0; begin < kChunk; begin += kAtOnce * kWarp) {
      float z[kAtOnce];
#pragma unroll
      for (int i = 0; i < kAtOnce; ++i) {
        z[i] = row.column_value(chunk, begin + i * kWarp + lane_index());
      }
#pragma unroll
      for (int i = 0; i < kAtOnce; ++i) {
        const unsigned order = order_of(z[i]);
        if (order < range.least || order > range.largest) continue;
        const uint64_t amount = amounts.of(z[i]);
        if (amount != 0) scratch->add(static_cast<int>((range.largest - order) >> shift), amount);
      }
    }
  }
  __syncthreads();
}

// By a block: the first bin with which the running sum, from `before` on, reaches what `needed` of
// all bins' total says; into the scratch.
template <typename Needed>
RDK_DEVICE void find_bin(uint64_t before, ThresholdScratch* scratch, Needed&& needed) {
  constexpr int kBins = ThresholdScratch::kBins;
  const int threads = static_cast<int>(blockDim.x);  // not always a power of two
  const int each = (kBins + threads - 1) / threads;
  const int first = static_cast<int>(threadIdx.x) * each;
  uint64_t own = 0;
#pragma unroll 1
  for (int i = first; i < min(first + each, kBins); ++i) own += scratch->amount(i);
  const uint64_t running = warp_running_sum(own);
  const int warp = warp_index();
  if (lane_index() == kWarp - 1) scratch->of_warps[warp] = running;
  __syncthreads();
  uint64_t total = 0;
  uint64_t start = before + running - own;
#pragma unroll 1
  for (int other = 0; other < static_cast<int>(blockDim.x) / kWarp; ++other) {
    if (other < warp) start += scratch->of_warps[other];
    total += scratch->of_warps[other];
  }
  const uint64_t amount = needed(total);
  if (start < amount && amount <= start + own) {
    int bin = first;
    while (start + scratch->amount(bin) < amount) start += scratch->amount(bin++);
    scratch->before = start;
    scratch->bin = bin;
  }
  __syncthreads();
}

// By a block: the largest z for which the columns that are at least as large have what is needed,
// and none is below `least`; `least` where all of them together have less. needed(total) is asked
// once, with what all of them have.
template <typename Row, typename Needed>
RDK_DEVICE float boundary(const Row& row, const ChunkSum* chunks, const Amounts& amounts,
                          float least, ThresholdScratch* scratch, Needed&& needed) {
  // Columns of -0 are no less than a least of +0.
  const float lowest = least == 0.0f ? -0.0f : fmaxf(least, kLowest);
  OrderRange range{order_of(lowest), order_of(amounts.max)};
  uint64_t before = 0;
  uint64_t amount = 0;
#pragma unroll 1
  for (bool first = true;; first = false) {
    fill_histogram(row, chunks, range, amounts, scratch);
    find_bin(before, scratch, [&](uint64_t total) {
      if (first) amount = needed(total);
      return amount;
    });
    const int bin = scratch->bin;
    before = scratch->before;
    __syncthreads();
    if (bin < 0) return least;
    range = range.bin(bin);
    if (range.least == range.largest) return of_order(range.largest);
  }
}

// The largest z of a row with a distribution, otherwise -inf; by every warp.
RDK_DEVICE float largest_of(const ChunkSum* chunks, int count) {
  float max = -infinity();
  bool sound = true;
  for (int c = lane_index(); c < count; c += kWarp) {
    max = fmaxf(max, global_load(&chunks[c].max));
    sound = sound && global_load(&chunks[c].sum) < infinity();
  }
  max = warp_max(max) + 0.0f;  // of two zeros, all lanes have the same
  return __all_sync(kAllLanes, sound) && max < infinity() ? max : -infinity();
}

// By a block: where a row is cut, from its values and chunk sums as they are without a cut; -inf
// where nothing is, or where the row has no distribution.
template <typename Row>
RDK_DEVICE float threshold_of(const Row& row, const ChunkSum* chunks, const RowLimits<Cut>& limits,
                              ThresholdScratch* scratch) {
  const float max = largest_of(chunks, row.chunks());
  __syncthreads();  // from here on the sums may change
  if (max == -infinity()) return -infinity();
  float least = -infinity();
  if (limits.min_p > 0.0f) {
    least = max + static_cast<float>(log(static_cast<double>(limits.min_p)));
  }
  if (limits.top_k > 0) {
    const uint64_t wanted = static_cast<uint64_t>(limits.top_k);
    least = fmaxf(least, boundary(row, chunks, {false, max}, least, scratch,
                                  [&](uint64_t) { return wanted; }));
  }
  if (limits.top_p < 1.0f) {
    const float positive = fmaxf(least, fmaxf(max - kMassless, kLowest));
    const auto wanted = [&](uint64_t total) {
      // At least 1, because the largest z alone has a mass of 2^40.
      const double mass = static_cast<double>(limits.top_p) * static_cast<double>(total);
      return static_cast<uint64_t>(ceil(mass));
    };
    least = fmaxf(least, boundary(row, chunks, {true, max}, positive, scratch, wanted));
  }
  return least;
}

// By a block: cuts a row where its limits say. store(chunk, z, what scaled_chunk returned) is
// called for the chunks that keep anything, whose sums were those of the uncut row; the others have
// the sum of nothing.
template <typename Row, typename Store>
RDK_DEVICE void cut_row(const RowLimits<Cut>& limits, ChunkSum* sums, unsigned char* shared,
                        Row* row, Store&& store) {
  auto* scratch = reinterpret_cast<ThresholdScratch*>(shared);
  row->cut = limits.at(threshold_of(*row, sums, limits, scratch));
  const int warps = static_cast<int>(blockDim.x) / kWarp;
#pragma unroll 1
  for (int chunk = warp_index(); chunk < row->chunks(); chunk += warps) {
    const float whole = global_load(&sums[chunk].max);
    __syncwarp(kAllLanes);  // all lanes have loaded what the first one overwrites
    if (whole < row->cut.threshold) {
      store_chunk_sum({-infinity(), 0.0f}, &sums[chunk]);
      continue;
    }
    float z[kPerLane];
    const float largest = row->scaled_chunk(chunk, InMemory{}, z);
    store(chunk, z, largest);
  }
  __syncthreads();
}

}  // namespace rdk
