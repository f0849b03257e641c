// The arithmetic on whole chunks of a row, once for each instruction set and the same to the bit in
// all of them. Everything else in this folder is compiled for any machine.
#pragma once

#include <cstdint>
#include <limits>

#include "../params.h"

namespace rdk::cpu {

constexpr float kInfinity = std::numeric_limits<float>::infinity();

// The columns of one chunk as they lie in memory.
struct ChunkColumns {
  Dtype dtype;
  const void* logits;
  int64_t count;                      // at most kChunk
  float temperature;                  // positive
  const float* bias;                  // null: none
  bool bias_only_masks;               // a finite bias counts as 0
  const uint32_t* allowed = nullptr;  // a bit for each column, others get -inf; null: all
};

// The columns of a chunk that are at least a threshold: how many, and the sum of their masses in
// units of 2^-40 (docs/design.md, "Truncation").
struct Measure {
  int64_t count = 0;
  int64_t mass = 0;
};

// Where columns are split: counted, or with `of_mass` weighed, and those of a band collected.
struct Split {
  float low;  // the band, from low on and below high
  float high;
  bool of_mass;    // then also:
  float least;     // columns below have no mass
  float massless;  // nor have those below this one, by their exponential
  float largest;   // of the row, which masses are relative to
};

struct SplitColumns {
  int64_t all = 0;     // the mass of all columns; not counted
  int64_t above = 0;   // the mass or the number of those from `high` on
  int64_t inside = 0;  // how many are in the band
};

// The columns of a chunk outside of a band, by their sums of exp(z - shift), and how many are in
// it.
struct WeighedColumns {
  float below = 0.0f;
  float above = 0.0f;
  int64_t inside = 0;
};

// How far such a sum, scaled, may be from that of the float32 exponentials of z less another shift,
// relative to it, where every z is at most `range` <= 28 below both: two differences are rounded,
// then two exponentials, and at most 20 additions follow one another.
constexpr double weighing_error(double range) {
  const double differences = range < 16.0 ? range * 0x1p-23 : 0x1p-19;
  return differences + 0x1p-22 + 20 * 0x1p-24;
}
// Coarse ones have a polynomial (2^-18.5) and an argument (2^-19) of their own.
constexpr double kCoarseError = 0x1p-16;

// Rows that are redistributed, or dotted with a hidden state, together.
constexpr int64_t kGroup = 4;

// Rows of a head, anywhere in memory. Several are read at once, because that hides more latency
// than one row after the other.
struct HeadRows {
  int64_t count;  // at most kGroup
  const void* row[kGroup];
  const void* ahead[kGroup];  // rows to prefetch meanwhile; null: none
};

// Of columns that were collected.
struct Range {
  int64_t count;
  float least;
  float largest;
};

struct Arithmetic {
  const char* name;

  // Writes z = logit / temperature + bias, padded with -inf to a multiple of 16. Returns the
  // largest z, or NaN if the row has no distribution: a logit is NaN or +inf, a quotient overflows,
  // or a z is NaN or +inf. Logits of -inf are ordinary zeros.
  float (*scale)(const ChunkColumns& columns, float* z);

  // Replaces z, with its padding, by exp(z - shift), and returns the sum.
  float (*exponentiate)(float* z, int64_t count, float shift);

  // Of the columns with z >= threshold. weights are exp(z - m), m the row's largest z, padded with
  // 0; null: masses are not asked for.
  Measure (*measure)(const float* z, const float* weights, int64_t count, float threshold);

  // Copies the columns of the band to the front of `out`, which has as much room as z.
  SplitColumns (*split)(const float* z, int64_t count, const Split& split, float* out);

  // Copies the columns of the band to the front of `out`, and weighs the others. `weights` gets the
  // same bits as from exponentiate; where it is null, weights are coarse and high is +inf.
  WeighedColumns (*weigh)(const float* z, int64_t count, float low, float high, float shift,
                          float* weights, float* out);

  // Copies the columns with low <= z < high, and their weights if there are any, to the front of
  // the two outputs, which may be the inputs and have room for 16 more.
  Range (*collect)(const float* z, const float* weights, int64_t count, float low, float high,
                   float* z_out, float* weights_out);

  // The same bits as cut and exponentiate, sooner where most z are below the threshold.
  float (*exponentiate_kept)(const float* z, int64_t count, float threshold, float shift,
                             float* out);

  // The same from weights that are known, exp(z - shift).
  float (*keep)(const float* z, const float* weights, int64_t count, float threshold, float* out);

  // Copies z, with -inf in place of what is below the threshold; z may be the output.
  void (*cut)(const float* z, int64_t count, float threshold, float* out);

  // sums[r] = sum_i weights[i] * spread[i * rank + r]. weights are padded with 0.
  void (*spread_sums)(const float* weights, int64_t count, const float* spread, int64_t rank,
                      float* sums);

  // For each of `rows` rows, at most kGroup: masses[row][x - begin] = sum over column x of S, in
  // order, of weights[row][draft] * col_weights. The columns are read once for all rows.
  void (*column_masses)(const AffinityColumns& affinity, const float* const* weights, int64_t rows,
                        int64_t begin, int64_t end, float* const* masses);

  // masses[x - begin] becomes masses[x - begin] / sum + s[0] * P[0, x] + s[1] * P[1, x] + ...
  void (*finish_columns)(const AffinityColumns& affinity, float sum, const float* s, int64_t begin,
                         int64_t end, float* masses);

  // Replaces p by max(p - q, 0), and returns the sum. Both are padded with 0 to a multiple of 16.
  float (*residual)(float* p, const float* q, int64_t count);

  // Of p and q, both padded with 0 to a multiple of 16: sets the bit of each column with q < p in
  // `below`, and sums min(p, q), then of the columns whose bit is set q and each prior, over fixed
  // lanes. Priors begin at the first of these columns.
  void (*overlap)(const float* p, const float* q, int64_t count, const float* const* priors,
                  int64_t rank, uint32_t* below, float* sums);

  // dots[r] = row[r] . hidden, all of this dtype. A result does not depend on the other rows.
  void (*dots)(Dtype dtype, const HeadRows& rows, const void* hidden, int64_t size, float* dots);
};

// The best that this machine has, or the one that RDK_CPU_CAPABILITY names: default, avx2 or
// avx512. The variable is read once. Throws std::runtime_error if it has another value, or names
// what this machine lacks.
const Arithmetic& arithmetic();

// exp of one column, with the same bits as in its chunk.
inline float exponential(float z) {
  alignas(64) float padded[16] = {z};
  arithmetic().exponentiate(padded, 1, 0.0f);
  return padded[0];
}

}  // namespace rdk::cpu
