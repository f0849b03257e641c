// overlap_backward: alpha by the drafter's logits, q'_i (A_i(M) - Q(M)) / T, M the tokens with
// q < p. Memory floor: V_d + C logits, V_t bits and the rows of S read once, V_d + C gradients
// written once. Eight rows are taken together: a byte has their bits of one token, so an entry of S
// is read once for all of them.

#include <algorithm>
#include <vector>

#include "draft_row.h"
#include "operators.h"

namespace rdk::cpu {
namespace {

constexpr int64_t kTogether = 8;
typedef float Four __attribute__((vector_size(16)));  // every machine has these

// One number for each row.
struct OfRows {
  Four half[2] = {};

  float operator[](int64_t row) const { return half[row / 4][row % 4]; }
};

// 1 where a byte has a bit.
struct Bits {
  OfRows of_byte[256];

  Bits() {
    for (int byte = 0; byte < 256; ++byte) {
      for (int i = 0; i < kTogether; ++i) of_byte[byte].half[i / 4][i % 4] = byte >> i & 1;
    }
  }
};

// The bits of up to eight rows, a byte for each token.
void gather_bits(const uint32_t* below, int64_t words, int64_t rows, uint8_t* bytes) {
  for (int64_t word = 0; word < words; ++word) {
    uint64_t of_tokens[4] = {};  // a byte each
    for (int64_t row = 0; row < rows; ++row) {
      const uint32_t bits = below[row * words + word];
      for (int k = 0; k < 4; ++k) {
        // Bit j of these eight becomes the lowest of byte j.
        const uint64_t eight = bits >> (8 * k) & 0xFF;
        const uint64_t apart = eight * 0x0101010101010101u & 0x8040201008040201u;
        const uint64_t at_bit_7 = apart + 0x00406070787C7E7Fu;
        of_tokens[k] |= (at_bit_7 >> 7 & 0x0101010101010101u) << row;
      }
    }
    __builtin_memcpy(bytes + word * 32, of_tokens, sizeof of_tokens);
  }
}

class Rows {
 public:
  Rows(const OverlapBackwardParams& params, int64_t first, int64_t count, const uint8_t* bytes)
      : params_(params), first_(first), count_(count), bytes_(bytes) {}

  // The gradients of a chunk of static columns.
  void write_chunk(int64_t chunk) const {
    const int64_t begin = chunk * kChunk;
    const int64_t count = chunk_count(params_.draft.draft_size, chunk);
    OfRows masses[kChunk];  // A_i(M) of each row
    for (int64_t i = 0; i < count; ++i) masses[i] = sparse_mass(begin + i);
    alignas(64) float weights[kChunk];
    for (int64_t row = 0; row < count_; ++row) {
      const float* stats = stats_of(row);
      if (!has_distribution(row)) {
        write(params_.draft_grads, params_.draft.draft_size, row, begin, count,
              [](int64_t) { return 0.0f; });
        continue;
      }
      const DraftRow draft(params_.draft, first_ + row, temperature(row));
      draft.scale(chunk, weights);
      arithmetic().exponentiate(weights, count, stats[0]);
      const float factor = params_.grad[first_ + row] / temperature(row);
      write(params_.draft_grads, params_.draft.draft_size, row, begin, count, [&](int64_t i) {
        float mass = masses[i][row];
        for (int64_t r = 0; r < params_.affinity.rank; ++r) {
          mass += params_.affinity.spread[(begin + i) * params_.affinity.rank + r] * stats[3 + r];
        }
        return weights[i] / stats[1] * (mass - stats[2]) * factor;
      });
    }
  }

  void write_dynamic() const {
    const int64_t size = params_.draft.dynamic_size;
    for (int64_t row = 0; row < count_; ++row) {
      const float* stats = stats_of(row);
      const DraftRow draft(params_.draft, first_ + row, temperature(row));
      const float factor = params_.grad[first_ + row] / temperature(row);
      write(params_.dynamic_grads, size, row, 0, size, [&](int64_t c) {
        if (!has_distribution(row) || !draft.dynamic_used(c)) return 0.0f;
        const float mass = static_cast<float>(bytes_[draft.dynamic_token(c)] >> row & 1);
        const float weight = exponential(draft.dynamic_value(c) - stats[0]);
        return weight / stats[1] * (mass - stats[2]) * factor;
      });
    }
  }

 private:
  float temperature(int64_t row) const { return params_.draft_temperature[first_ + row]; }
  const float* stats_of(int64_t row) const {
    return params_.stats + (first_ + row) * params_.stats_width();
  }
  // As overlap left it in the stats.
  bool has_distribution(int64_t row) const {
    return stats_of(row)[1] > 0.0f && usable_temperature(temperature(row)) &&
           temperature(row) > 0.0f;
  }

  // A row of S over the tokens of M, entries in order.
  OfRows sparse_mass(int64_t column) const {
    static const Bits kBits;
    const AffinityRows& affinity = params_.affinity;
    OfRows mass;
    int64_t before = 0;
    for (int64_t entry = affinity.offsets[column]; entry < affinity.offsets[column + 1]; ++entry) {
      const float weight = static_cast<float>(affinity.cdf[entry] - before) * 0x1p-32f;
      before = affinity.cdf[entry];
      const OfRows& bits = kBits.of_byte[bytes_[affinity.targets[entry]]];
      mass.half[0] += bits.half[0] * weight;
      mass.half[1] += bits.half[1] * weight;
    }
    return mass;
  }

  template <typename Value>
  void write(void* grads, int64_t size, int64_t row, int64_t begin, int64_t count,
             const Value& value) const {
    with_element_type(params_.draft.dtype, [&](auto type) {
      using Element = decltype(type);
      Element* out = static_cast<Element*>(grads) + (first_ + row) * size + begin;
      for (int64_t i = 0; i < count; ++i) out[i] = static_cast<Element>(value(i));
    });
  }

  const OverlapBackwardParams& params_;
  int64_t first_;
  int64_t count_;
  const uint8_t* bytes_;
};

}  // namespace

void overlap_backward(const OverlapBackwardParams& params, const Threads& threads) {
  const int64_t words = params.words();
  for_each_group<std::vector<uint8_t>>(
      threads, params.rows, kTogether, params.draft.draft_size, params.draft.target_size,
      [&](int64_t first, int64_t end, const Threads& for_group, std::vector<uint8_t>* bytes) {
        bytes->resize(words * 32);
        gather_bits(params.below + first * words, words, end - first, bytes->data());
        const Rows rows(params, first, end - first, bytes->data());
        share(for_group, chunks_of(params.draft.draft_size),
              [&](int64_t chunk) { rows.write_chunk(chunk); });
        rows.write_dynamic();
      });
}

}  // namespace rdk::cpu
