// The residual max(c p - q, 0) of one position over all tokens, which a block sums and a warp draws
// from: the direct pass, after all proposals have failed.
#pragma once

#include "columns.cuh"
#include "verify_position.cuh"

namespace rdk {

template <typename J>
struct Residual {
  const J& judge;
  const Position& position;
  const typename J::TargetRow& columns;
  float factor;
  int before = 0;  // tokens in front of the row's first column

  // Columns of a lane at once. One after the other, each would cost the time of four loads that
  // wait for each other.
  static constexpr int kTogether = J::kCuts ? 4 : 8;

  RDK_DEVICE float* sums() const {
    return judge.launch.residual_sums + judge.sequence.index * columns.chunks();
  }

  // At the columns of a warp from base on, of which a lane has every kWarp-th.
  RDK_DEVICE void at(int base, float (&masses)[kTogether]) const {
    float q[kTogether] = {};
    if (position.kind == DraftKind::kRow) {
      draft_masses(before + base, q);
    } else if (position.kind == DraftKind::kOneHot) {
#pragma unroll
      for (int j = 0; j < kTogether; ++j) {
        q[j] = token_of(before + base, j) == position.token ? 1.0f : 0.0f;
      }
    }
#pragma unroll
    for (int j = 0; j < kTogether; ++j) {
      const int column = min(token_of(base, j), columns.size - 1);
      masses[j] = expf(columns.value(column) - position.target.max);
    }
    divide(masses, position.target.total);
#pragma unroll
    for (int j = 0; j < kTogether; ++j) {
      const bool there = token_of(base, j) < columns.size;
      masses[j] = there ? fmaxf(factor * masses[j] - q[j], 0.0f) : 0.0f;
    }
  }
  RDK_DEVICE float of_chunk(int chunk) const {
    return warp_total_of<kTogether>(kChunk, in_chunk(chunk));
  }
  RDK_DEVICE int draw_in(int chunk, float u, float total) const {
    return warp_draw_of<kTogether>(kChunk, u, total, in_chunk(chunk));
  }

  // By the whole block, which every warp may then ask for the total.
  RDK_DEVICE void sum() const { sum(0, columns.chunks()); }
  // The chunks [begin, end), two at a time, with half of the warps each.
  RDK_DEVICE void sum(int begin, int end) const {
    constexpr int kHalf = J::kWarps / 2;
    constexpr int kPart = kChunk / kHalf;
    static_assert(kPart % (kTogether * kWarp) == 0);
    const int part = warp_index() % kHalf * kPart;
    // Behind sums that the first warp may have kept in its ring.
    float* totals =
        reinterpret_cast<float*>(judge.shared + kKeptBytes) + warp_index() / kHalf * kWarp;
    static_assert(kKeptBytes + 2 * kWarp * sizeof(float) <= kRingBytes);
#pragma unroll 1
    for (int chunk = begin + warp_index() / kHalf; chunk - warp_index() / kHalf < end; chunk += 2) {
      if (chunk < end) {
#pragma unroll 1
        for (int column = part; column < part + kPart; column += kTogether * kWarp) {
          float running[kTogether];
          at(chunk * kChunk + column, running);
#pragma unroll
          for (int j = 0; j < kTogether; ++j) running[j] = warp_running_sum(running[j]);
#pragma unroll
          for (int j = 0; j < kTogether; ++j) {
            if (lane_index() == kWarp - 1) totals[column / kWarp + j] = running[j];
          }
        }
      }
      __syncthreads();
      if (part == 0 && chunk < end) {  // in the order of warp_total
        float total = 0.0f;
#pragma unroll
        for (int j = 0; j < kChunk / kWarp; ++j) total += totals[j];
        if (lane_index() == 0) global_store(&sums()[chunk], total);
      }
      __syncthreads();
    }
  }
  RDK_DEVICE float total() const { return warp_total_of<kEach>(columns.chunks(), all_summed()); }
  // By one warp; -1 if there is no mass.
  RDK_DEVICE int draw(const PhiloxWords& words, float total) const {
    if (!(total > 0.0f)) return -1;
    const int chunk = draw_chunk(words, total);
    return chunk * kChunk + draw_in(chunk, uniform(words.word[1]), summed(chunk));
  }
  // The same by the block, all of which reads the chunk; its first warp has the result.
  RDK_DEVICE int draw_by_block(const PhiloxWords& words) const {
    constexpr int kBeside = 8;  // of a lane
    __shared__ int drawn;
    float* masses = reinterpret_cast<float*>(judge.shared);
    if (warp_index() == 0) {
      const float all = total();
      const int chunk = all > 0.0f ? draw_chunk(words, all) : -1;
      if (lane_index() == 0) drawn = chunk;
    }
    __syncthreads();
    const int chunk = drawn;
    if (chunk < 0) return -1;
#pragma unroll 1
    for (int begin = warp_index() * kTogether * kWarp; begin < kChunk;
         begin += J::kWarps * kWarp * kTogether) {
      float own[kTogether];
      at(chunk * kChunk + begin, own);
#pragma unroll
      for (int j = 0; j < kTogether; ++j) masses[token_of(begin, j)] = own[j];
    }
    __syncthreads();
    if (warp_index() != 0) return -1;
    const auto in_order = [&](int begin, float (&out)[kBeside]) {
#pragma unroll
      for (int j = 0; j < kBeside; ++j) out[j] = masses[token_of(begin, j)];
    };
    return chunk * kChunk +
           warp_draw_of<kBeside>(kChunk, uniform(words.word[1]), summed(chunk), in_order);
  }

 private:
  static constexpr int kEach = 4;  // sums of a lane at once
  RDK_DEVICE auto all_summed() const {
    return [this](int begin, float (&out)[kEach]) {
#pragma unroll
      for (int j = 0; j < kEach; ++j) out[j] = summed(token_of(begin, j));
    };
  }
  RDK_DEVICE int draw_chunk(const PhiloxWords& words, float total) const {
    return warp_draw_of<kEach>(columns.chunks(), uniform(words.word[0]), total, all_summed());
  }
  RDK_DEVICE auto in_chunk(int chunk) const {
    return [this, chunk](int begin, float (&masses)[kTogether]) {
      at(chunk * kChunk + begin, masses);
    };
  }
  // q of the drafted row.
  RDK_DEVICE void draft_masses(int base, float (&q)[kTogether]) const {
    const AffinityColumns& affinity = judge.launch.params.affinity;
    const int end = static_cast<int>(affinity.target_size);
    const auto row = judge.draft_row(position);
    const float max = position.stats[0];
    const auto weight = [&](int draft) { return expf(row.static_value(draft) - max); };
    add_entries(affinity, load_columns<kTogether>(affinity, base, end), weight, q);
    add_dynamic_columns(row, max, base, q);
    divide(q, position.stats[1]);
#pragma unroll 1
    for (int r = 0; r < affinity.rank; ++r) {
      float prior[kTogether];
      load_tokens(affinity.prior + r * affinity.target_size, base, end, prior);
#pragma unroll
      for (int j = 0; j < kTogether; ++j) {
        q[j] += position.stats[2 + r] * prior[j];
      }
    }
  }
  RDK_DEVICE float summed(int chunk) const {
    return chunk < columns.chunks() ? global_load(&sums()[chunk]) : 0.0f;
  }
};

}  // namespace rdk
