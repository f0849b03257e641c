// One sequence's decoding step, as both methods of verification read it, and what they put out.
#pragma once

#include <algorithm>
#include <limits>
#include <vector>

#include "verify_rows.h"

namespace rdk::cpu {

// Reused from one sequence to the next, for its memory.
struct VerifyScratch {
  Softmax target;
  Softmax draft;
  Softmax raw;
  std::vector<Softmax> targets;  // of every row, by block
};

// The drafts of one sequence that are considered, j = begin, ..., end - 1. In a chain they are all
// of them, from 0 on.
class VerifyStep {
 public:
  VerifyStep(const VerifyParams& params, int64_t sequence)
      : params_(params),
        sequence_(sequence),
        limits_(params.sequences.truncation, sequence),
        drafts_(owned(params.drafts, sequence)),
        end_(std::min(drafts_.count, params.max_draft)) {}

  // In a tree: path[j] is the node at depth j + 1. The walk has come to `begin`, and the nodes from
  // there on were drawn, each as a child of the one before.
  void follow(const int32_t* path, int64_t begin, int64_t end, uint32_t nesting) {
    path_ = path;
    begin_ = begin;
    end_ = end;
    nesting_ = nesting;
  }

  const VerifyParams& params() const { return params_; }
  int64_t begin() const { return begin_; }
  int64_t end() const { return end_; }
  bool greedy() const { return params_.sequences.temperature[sequence_] == 0.0f; }
  bool truncated() const { return limits_.any(); }

  // -1: the draft ends before j.
  int64_t token(int64_t j) const {
    return j < end_ ? params_.drafts.token_ids[drafts_.token + node(j)] : -1;
  }

  PhiloxWords words(int64_t j, Purpose purpose, uint32_t attempt) const {
    return random_words(params_.sequences.step_keys[sequence_],
                        later(params_.sequences.positions[sequence_], j), purpose, attempt,
                        purpose == Purpose::kBlock ? nesting_ : 0);
  }

  // Of the target: that of what follows the drafts before j.
  int64_t row(int64_t j) const {
    if (path_ == nullptr) return drafts_.start + sequence_ + j;
    return drafts_.start + sequence_ + (j == 0 ? 0 : path_[j - 1] + 1);
  }
  TargetDistribution target(int64_t j, const Threads& threads, Softmax* softmax) const {
    return {params_.target,
            row(j),
            params_.sequences.temperature[sequence_],
            limits_,
            threads,
            softmax,
            &threshold_of_thread()};
  }
  DraftDistribution draft(int64_t j, const Threads& threads, Softmax* softmax) const {
    return {params_, sequence_, drafts_.row + node(j), token(j), threads, softmax};
  }

 private:
  int64_t node(int64_t j) const { return path_ == nullptr ? j : path_[j]; }

  const VerifyParams& params_;
  int64_t sequence_;
  RowLimits limits_;
  Owned drafts_;
  const int32_t* path_ = nullptr;
  int64_t begin_ = 0;
  int64_t end_;
  uint32_t nesting_ = 0;  // blocks before this one
};

// The results of one sequence, empty at first.
class VerifyOutput {
 public:
  VerifyOutput(const VerifyParams& params, int64_t sequence, const Threads& threads, Softmax* raw)
      : params_(params),
        threads_(threads),
        raw_(raw),
        tokens_(params.tokens + sequence * (params.max_draft + 1)),
        num_accepted_(params.num_accepted + sequence) {
    if (params.logprobs_of != Logprobs::kNone) {
      logprobs_ = params.logprobs + sequence * (params.max_draft + 1);
    }
    cut(0);
    accept(0);
  }

  // Leaves only the first `count` tokens.
  void cut(int64_t count) {
    const int64_t width = params_.max_draft + 1;
    std::fill(tokens_ + count, tokens_ + width, -1);
    if (logprobs_ != nullptr) std::fill(logprobs_ + count, logprobs_ + width, -kInfinity);
  }

  // The token at place j, which `row` of the target gives.
  void put(int64_t j, int64_t token, const TargetDistribution& target, int64_t row) {
    tokens_[j] = token;
    if (logprobs_ == nullptr) return;
    const bool processed = params_.logprobs_of == Logprobs::kProcessed || target.raw();
    logprobs_[j] = processed ? target.log_p(token) : raw_log_probability(row, token);
  }

  // The tokens before place `count` are drafts.
  void accept(int64_t count) { *num_accepted_ = static_cast<int32_t>(count); }

 private:
  // At temperature 1; NaN where the raw logits have no distribution.
  float raw_log_probability(int64_t row, int64_t token) const {
    const TargetRow raw(params_.target, row, 1.0f, false);
    summarize(raw, threads_, raw_);
    return raw_->valid ? log_probability(raw.value(token), *raw_)
                       : std::numeric_limits<float>::quiet_NaN();
  }

  const VerifyParams& params_;
  const Threads& threads_;
  Softmax* raw_;
  int64_t* tokens_;
  int32_t* num_accepted_;
  float* logprobs_ = nullptr;
};

}  // namespace rdk::cpu
