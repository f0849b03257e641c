// The chunked softmax on a GPU: a warp sums a chunk, chunks are merged in order against the row's
// maximum, and draws have two levels over the same sums (DESIGN section 5). Every kernel reads
// logits through here, so a row has the same sums, to the bit, whichever block reads it.
#pragma once

#include "../common/philox.h"
#include "cut.cuh"
#include "warp.cuh"

namespace rdk {

// Replaces a chunk's z by exp(z - max), given what scaled_chunk returned. A NaN or +inf among them
// makes the sum NaN.
template <typename C>
RDK_DEVICE ChunkSum exponentiate(const C& cut, float largest, float (&z)[kPerLane]) {
  const float max = warp_max(cut.largest_kept(largest, z));
  const float shift = max == -infinity() ? 0.0f : max;
  float sum = 0.0f;
#pragma unroll
  for (int v = 0; v < kPerLane; ++v) {
    z[v] = fast_exp(z[v] - shift);
    sum += z[v];
  }
  return {max, warp_sum(sum)};
}

// By one warp, for other warps and blocks to read.
RDK_DEVICE void store_chunk_sum(const ChunkSum& sum, ChunkSum* chunk) {
  if (lane_index() == 0) {
    global_store(&chunk->max, sum.max);
    global_store(&chunk->sum, sum.sum);
  }
}

// By the kWarps warps of a block: the sums of a row, whose logits are not asked for ahead.
template <int kWarps, typename Row>
RDK_DEVICE void sum_chunks(const Row& row, ChunkSum* sums) {
#pragma unroll 1
  for (int chunk = warp_index(); chunk < row.chunks(); chunk += kWarps) {
    float z[kPerLane];
    const float largest = row.scaled_chunk(chunk, InMemory{}, z);
    store_chunk_sum(exponentiate(row.cut, largest, z), &sums[chunk]);
  }
}

// The target's row: V_t logits, no bias. C is Whole or Cut.
template <typename T, typename C>
struct TargetColumns {
  using Element = T;
  using Place = int;  // the chunk
  Logits<T> logits;
  int size;
  Scale scale;
  C cut;
  typename C::Mask mask;

  RDK_DEVICE int chunks() const { return chunks_in(size); }
  RDK_DEVICE int place(int chunk) const { return chunk; }
  RDK_DEVICE void advance(int chunks, int* chunk) const { *chunk += chunks; }

  RDK_DEVICE void copy(int chunk, uint4* landing) const {
    copy_chunk(logits, chunk * kChunk, size, landing);
  }
  // Returns the largest z of this lane, before masks and cuts.
  template <typename Source>
  RDK_DEVICE float scaled_chunk(int chunk, Source source, float (&z)[kPerLane]) const {
    float largest = read_chunk(logits, chunk * kChunk, size, source, z);
    mask.apply(chunk * kChunk, size, z);
    largest = cut.apply(scale, largest, z);
    cut.keep(z);
    return largest;
  }

  RDK_DEVICE float logit(int token) const {
    return mask.allows(token) ? logits[token] : -infinity();
  }
  RDK_DEVICE float z(float logit) const { return cut.kept(cut.scaled(logit, scale)); }
  RDK_DEVICE float value(int token) const { return z(logit(token)); }
  RDK_DEVICE float column_value(int chunk, int i) const {
    const int token = chunk * kChunk + i;
    return token < size ? value(token) : -infinity();
  }
};

// A block's dynamic shared memory is its warps' rings.
RDK_DEVICE uint4* ring_of_warp(unsigned char* shared) {
  return reinterpret_cast<uint4*>(shared + warp_index() * kRingBytes);
}

// Calls use(chunk, z, what scaled_chunk returned) for the chunks first, first + stride, ... below
// count, by one warp, while later chunks are on their way into its ring. A multiprocessor needs
// some 40 KB in flight to draw the whole bandwidth of an H200 (4.8 TB/s over 132 of them, about a
// microsecond away); 16 warps have 64 KB. Row is a row, or anything that is read in chunks; it
// counts them in a Place of its own.
//
// cp.async.wait_group makes a thread's own copies visible to that thread. Lanes read what others
// copied, too, so a __syncwarp follows the wait, and another one the reads, because a slot is
// filled again only after its values are in registers. Where nothing is copied, the commit is an
// empty group, so that waiting for all but the last kInFlight - 1 groups stays right.
//
// ready() is asked once, when the first chunks are on their way, and may still change the row;
// where it says no, nothing is read.
template <typename Row, typename Ready, typename Use>
RDK_DEVICE void stream_chunks(const Row& row, uint4* ring, int first, int stride, int count,
                              Ready&& ready, Use&& use) {
  constexpr int kInFlight = kChunksInFlight<typename Row::Element>;
  constexpr int kSlot = kRingBytes / kInFlight / static_cast<int>(sizeof(uint4));
  typename Row::Place ahead = row.place(first);
  typename Row::Place place = ahead;
#pragma unroll
  for (int i = 0; i < kInFlight; ++i) {
    if (first + i * stride < count) row.copy(ahead, ring + i * kSlot);
    async_commit();
    row.advance(stride, &ahead);
  }
  if (!ready()) return async_wait<0>();
  int slot = 0;
#pragma unroll 1
  for (int chunk = first; chunk < count; chunk += stride) {
    async_wait<kInFlight - 1>();
    __syncwarp(kAllLanes);
    float z[kPerLane];
    const float largest = row.scaled_chunk(place, ring + slot * kSlot, z);
    __syncwarp(kAllLanes);
    const int next = chunk + kInFlight * stride;
    if (next < count) row.copy(ahead, ring + slot * kSlot);
    async_commit();
    row.advance(stride, &ahead);
    row.advance(stride, &place);
    slot = slot + 1 == kInFlight ? 0 : slot + 1;
    use(chunk, z, largest);
  }
}
template <typename Row, typename Use>
RDK_DEVICE void stream_chunks(const Row& row, uint4* ring, int first, int stride, int count,
                              Use&& use) {
  stream_chunks(row, ring, first, stride, count, [] { return true; }, use);
}

// Of chunk sums in global memory.
RDK_DEVICE float max_of(const ChunkSum* chunks, int chunk) {
  return global_load(&chunks[chunk].max);
}
RDK_DEVICE float sum_of(const ChunkSum* chunks, int chunk) {
  return global_load(&chunks[chunk].sum);
}

// A row's chunk sums, merged. Every lane holds the same. Sums are where max_of and sum_of find
// them.
template <typename Sums>
struct SoftmaxOf {
  Sums chunks;
  int count;
  float max;
  float total;  // of exp(z - max)
  bool valid;

  RDK_DEVICE float weight(int chunk) const {
    if (chunk >= count) return 0.0f;
    const float chunk_max = max_of(chunks, chunk);
    return chunk_max == -infinity() ? 0.0f : sum_of(chunks, chunk) * expf(chunk_max - max);
  }
};

// By one warp. A NaN in any sum means that the row has no distribution.
template <typename Sums>
RDK_DEVICE SoftmaxOf<Sums> merge_sums(const Sums& chunks, int count) {
  SoftmaxOf<Sums> softmax{chunks, count, -infinity(), 0.0f, false};
  bool sound = true;
  for (int c = lane_index(); c < count; c += kWarp) {
    softmax.max = fmaxf(softmax.max, max_of(chunks, c));
    sound = sound && sum_of(chunks, c) < infinity();
  }
  softmax.max = warp_max(softmax.max);
  sound = __all_sync(kAllLanes, sound) && softmax.max > -infinity() && softmax.max < infinity();
  if (!sound) return softmax;
  softmax.total = warp_total(count, [&](int c) { return softmax.weight(c); });
  softmax.valid = true;
  return softmax;
}

using Softmax = SoftmaxOf<const ChunkSum*>;
RDK_DEVICE Softmax merge_chunks(const ChunkSum* chunks, int count) {
  return merge_sums(chunks, count);
}

// Draws from a chunk's exponentials in the order of its columns.
RDK_DEVICE int draw_in_chunk(const float (&weights)[kPerLane], float u) {
  const int lane = made_here(lane_index());
  float running[kPerLane / kVector];  // before this lane's vector of each step
  float carry = 0.0f;
#pragma unroll
  for (int step = 0; step < kPerLane / kVector; ++step) {
    float sum = 0.0f;
#pragma unroll
    for (int j = 0; j < kVector; ++j) sum += weights[step * kVector + j];
    const float inclusive = warp_running_sum(sum);
    running[step] = carry + (inclusive - sum);
    carry += __shfl_sync(kAllLanes, inclusive, kWarp - 1);
  }
  const float threshold = u * carry;
  int found = kChunk;
  int last_positive = -1;
#pragma unroll
  for (int step = 0; step < kPerLane / kVector; ++step) {
    float sum = running[step];
#pragma unroll
    for (int j = 0; j < kVector; ++j) {
      const float weight = weights[step * kVector + j];
      const int column = column_of(lane, step * kVector + j);
      sum += weight;
      if (weight > 0.0f) {
        last_positive = max(last_positive, column);
        if (sum > threshold) found = min(found, column);
      }
    }
  }
  found = warp_min(found);
  return found < kChunk ? found : -warp_min(-last_positive);
}

// Two-level draw of a column by one warp: the first word picks the chunk, the second the column in
// it.
template <typename Sums>
RDK_DEVICE int draw_chunk(const SoftmaxOf<Sums>& softmax, const PhiloxWords& words) {
  return warp_draw(softmax.count, uniform(words.word[0]), softmax.total,
                   [&](int c) { return softmax.weight(c); });
}
// The column's index in the chunk, which is counted in the row.
template <typename Row>
RDK_DEVICE int draw_in_chunk(const Row& row, int chunk, const PhiloxWords& words) {
  float z[kPerLane];
  const float largest = row.scaled_chunk(chunk, InMemory{}, z);
  exponentiate(row.cut, largest, z);
  return draw_in_chunk(z, uniform(words.word[1]));
}
template <typename Row>
RDK_DEVICE int draw_column(const Row& row, const Softmax& softmax, const PhiloxWords& words) {
  const int chunk = draw_chunk(softmax, words);
  return chunk * kChunk + draw_in_chunk(row, chunk, words);
}

// The first column of a chunk whose z is the largest, by one warp.
RDK_DEVICE int column_of_largest(const float (&z)[kPerLane], float largest) {
  const int lane = made_here(lane_index());
  int column = kChunk;
#pragma unroll
  for (int v = 0; v < kPerLane; ++v) {
    if (z[v] == largest) column = min(column, column_of(lane, v));
  }
  return warp_min(column);
}

// Temperature 0: the first column of the largest value, by one warp. The sums of a greedy row were
// taken at temperature 1, so its chunk is known and only that is read again.
template <typename Sums>
RDK_DEVICE int chunk_of_largest(const SoftmaxOf<Sums>& softmax) {
  int chunk = lane_index();
  while (chunk < softmax.count && max_of(softmax.chunks, chunk) != softmax.max) chunk += kWarp;
  return warp_min(chunk);
}
template <typename Row>
RDK_DEVICE int largest_in_chunk(const Row& row, int chunk, float max) {
  float z[kPerLane];
  row.scaled_chunk(chunk, InMemory{}, z);
  return chunk * kChunk + column_of_largest(z, max);
}
template <typename Row, typename Sums>
RDK_DEVICE int argmax_column(const Row& row, const SoftmaxOf<Sums>& softmax) {
  return largest_in_chunk(row, chunk_of_largest(softmax), softmax.max);
}

// A row's chunk sums, merged, by one warp. Each is loaded once, several of a lane at a time,
// because a load takes as long as all else that is done with it; from then on they are in shared
// memory, where a weight replaces its sum. Lanes read only what they have written, other warps draw
// behind a barrier. In a row of more chunks than are kept, those behind are loaded again.
constexpr int kMostKept = 256;  // of 262,144 columns
constexpr int kKeptBytes = kMostKept * sizeof(ChunkSum);
static_assert(kKeptBytes <= kRingBytes, "they lie where a ring was");
struct KeptSums : Softmax {
  static constexpr int kKept = kMostKept;
  static constexpr int kEach = 4;  // of a lane
  static_assert(kKept % (kEach * kWarp) == 0);
  ChunkSum* kept;

  KeptSums() = default;
  // Of which none is kept.
  RDK_DEVICE explicit KeptSums(const Softmax& merged) : Softmax(merged), kept(nullptr) {}
  RDK_DEVICE KeptSums(const ChunkSum* sums, int sums_count, ChunkSum* shared)
      : Softmax{sums, sums_count, -infinity(), 0.0f, false}, kept(shared) {
    bool sound = true;
#pragma unroll 1
    for (int begin = 0; begin < count; begin += kEach * kWarp) {
      ChunkSum loaded[kEach];
#pragma unroll
      for (int j = 0; j < kEach; ++j) loaded[j] = load(begin + j * kWarp + lane_index());
#pragma unroll
      for (int j = 0; j < kEach; ++j) {
        max = fmaxf(max, loaded[j].max);
        sound = sound && loaded[j].sum < infinity();
        if (begin < kKept) kept[begin + j * kWarp + lane_index()] = loaded[j];
      }
    }
    max = warp_max(max);
    valid = __all_sync(kAllLanes, sound) && max > -infinity() && max < infinity();
    if (!valid) return;
    total = warp_total_of<kEach>(count, [&](int begin, float (&out)[kEach]) {
#pragma unroll
      for (int j = 0; j < kEach; ++j) {
        const int c = begin + j * kWarp + lane_index();
        const ChunkSum sum = begin < kKept ? kept[c] : load(c);
        out[j] = sum.max == -infinity() ? 0.0f : sum.sum * expf(sum.max - max);
        if (begin < kKept) kept[c].sum = out[j];
      }
    });
  }

  RDK_DEVICE ChunkSum load(int c) const {
    if (c >= count) return {-infinity(), 0.0f};
    return {global_load(&chunks[c].max), global_load(&chunks[c].sum)};
  }

  // As draw_column and argmax_column.
  template <typename Row>
  RDK_DEVICE int draw(const Row& row, const PhiloxWords& words) const {
    const auto weights = [&](int begin, float (&out)[kEach]) {
#pragma unroll
      for (int j = 0; j < kEach; ++j) {
        const int c = begin + j * kWarp + lane_index();
        out[j] = begin < kKept ? kept[c].sum : weight(c);
      }
    };
    const int chunk = warp_draw_of<kEach>(count, uniform(words.word[0]), total, weights);
    return chunk * kChunk + draw_in_chunk(row, chunk, words);
  }
  // Of a target's row, whose z at temperature 0 are its logits. Little code, because others jump
  // over it.
  template <typename Row>
  RDK_DEVICE int argmax(const Row& row) const {
    constexpr int kTogether = 8;
    int chunk = lane_index();
    while (chunk < count && (chunk < kKept ? kept[chunk] : load(chunk)).max != max) chunk += kWarp;
    const int begin = warp_min(chunk) * kChunk + lane_index();
    int column = begin + kChunk;
#pragma unroll 1
    for (int first = begin; first < begin + kChunk; first += kTogether * kWarp) {
#pragma unroll
      for (int j = 0; j < kTogether; ++j) {
        const int own = first + j * kWarp;
        if (own < row.size && row.logit(own) == max) column = min(column, own);
      }
    }
    return warp_min(column);
  }
};

}  // namespace rdk
