// What verify does for sequences with limits, masks or log-probabilities, and for others does not:
// for whole rows each function is nothing.
#pragma once

#include "truncation.cuh"
#include "verify_position.cuh"

namespace rdk {

// By a block: no token is put out yet.
template <typename C>
RDK_DEVICE void clear_tokens(const VerifyParams& params, int64_t sequence) {
  const int64_t first = sequence * (params.max_draft + 1);
#pragma unroll 1
  for (int64_t i = threadIdx.x; i <= params.max_draft; i += VerifyLaunch::kThreads) {
    params.tokens[first + i] = -1;
    if (C::kCuts && params.logprobs_of != Logprobs::kNone) params.logprobs[first + i] = -infinity();
  }
}

// By a block: cuts the row of the target. Its chunk sums become those of what is kept.
template <typename T>
RDK_DEVICE void cut_target(const RowLimits<Cut>& limits, ChunkSum* sums, unsigned char* shared,
                           TargetColumns<T, Cut>* columns) {
  cut_row(limits, sums, shared, columns, [&](int chunk, float (&z)[kPerLane], float largest) {
    store_chunk_sum(exponentiate(columns->cut, largest, z), &sums[chunk]);
  });
}

// By a block: where the row of a step is cut.
template <typename J>
RDK_DEVICE Cut cut_step(const J& judge, int step, const RowLimits<Cut>& limits) {
  auto columns = judge.target_row(step, limits.before());
  cut_target(limits, judge.target_sums(step, columns.chunks()), judge.shared, &columns);
  return columns.cut;
}

// ln of a token's probability, from its z and the sums of its row.
RDK_DEVICE float log_probability(float z, const Softmax& softmax) {
  const double difference = static_cast<double>(z) - static_cast<double>(softmax.max);
  return static_cast<float>(difference - log(static_cast<double>(softmax.total)));
}

// By a block: that of the raw logits at temperature 1, whose sums it takes. Only the first thread
// returns it; NaN where they have no distribution.
template <typename T, typename D, typename S>
RDK_DEVICE float raw_logprob(const Judge<T, D, Cut, VerifyLaunch, S>& judge, int step, int token) {
  using Raw = Judge<T, D, Whole, VerifyLaunch, S>;
  auto raw =
      Raw{judge.launch, judge.sequence, judge.draft_chunks, judge.shared}.target_row(step, {});
  raw.scale = Scale(1.0f);
  ChunkSum* sums = judge.launch.raw_chunks + judge.sequence.index * raw.chunks();
  sum_chunks<VerifyLaunch::kThreads / kWarp>(raw, sums);
  __syncthreads();
  float logprob = 0.0f;
  if (warp_index() == 0) {
    const Softmax softmax = merge_chunks(sums, raw.chunks());
    logprob = softmax.valid ? log_probability(raw.value(token), softmax) : not_a_number();
  }
  __syncthreads();
  return logprob;
}

// By a block, for the token that a step gives, which the first thread knows.
template <typename J, typename C>
RDK_DEVICE void write_logprob(const J& judge, int step, const Position& position, int token,
                              const C& cut) {
  if constexpr (C::kCuts) {
    const VerifyParams& params = judge.launch.params;
    if (params.logprobs_of == Logprobs::kNone || position.verdict == Verdict::kStopped) return;
    const float temperature = judge.sequence.target_temperature;
    const bool greedy = temperature == 0.0f;
    const bool is_raw = (greedy || temperature == 1.0f) && params.target.allowed.data == nullptr &&
                        cut.threshold == -infinity();
    float logprob = 0.0f;  // of the processed row at temperature 0
    if (params.logprobs_of == Logprobs::kRaw && !is_raw) {
      logprob = raw_logprob(judge, step, token);
    } else if (threadIdx.x == 0 && !(greedy && params.logprobs_of == Logprobs::kProcessed)) {
      logprob = log_probability(judge.target_row(step, cut).value(token), position.target);
    }
    if (threadIdx.x == 0) {
      params.logprobs[judge.sequence.index * (params.max_draft + 1) + step] = logprob;
    }
  }
}

}  // namespace rdk
