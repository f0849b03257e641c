// The arguments of an operator, free of torch: ops/ fills these structs, and cpu/ and cuda/ read
// them. Strides are in elements. Absent optional tensors are null.
#pragma once

#include "common/host_device.h"

namespace rdk {

// Columns of a softmax are cut into chunks of this many by index; draws are two-level over them
// (docs/design.md, "Random numbers"). Part of the contract: tokens depend on it.
constexpr int kChunk = 1024;
RDK_HOST_DEVICE int64_t chunks_of(int64_t columns) { return (columns + kChunk - 1) / kChunk; }

// Proposals from p before the residual is drawn by a direct pass.
constexpr int kResidualTries = 32;

// Kernels count columns and rows in 32 bits. These limits leave room for a factor of R + 2, and for
// rounding up to whole chunks.
constexpr int64_t kMaxColumns = int64_t{1} << 28;
constexpr int64_t kMaxRows = (int64_t{1} << 31) - 1;

// R, the number of priors of an affinity, is small by design.
constexpr int kMaxRank = 4;

enum class Dtype : int32_t { kFloat32, kFloat16, kBFloat16 };

// Rows of any leading shape that folds into two strides, the last dimension contiguous.
struct Rows {
  const void* data;
  int64_t inner;
  int64_t outer_stride;
  int64_t inner_stride;

  // At most kMaxRows: 64-bit division would cost a GPU a subroutine.
  RDK_HOST_DEVICE int64_t offset(int64_t row) const {
    const uint32_t outer = static_cast<uint32_t>(row) / static_cast<uint32_t>(inner);
    const uint32_t rest = static_cast<uint32_t>(row) - outer * static_cast<uint32_t>(inner);
    return outer * outer_stride + rest * inner_stride;
  }
};

// Contiguous, of either integer type.
struct TokenIds {
  const void* data;
  bool are_int64;  // or int32

  RDK_HOST_DEVICE int64_t operator[](int64_t i) const {
    return are_int64 ? static_cast<const int64_t*>(data)[i] : static_cast<const int32_t*>(data)[i];
  }
};

// The target's rows of logits, and which tokens each of them allows.
struct TargetRows {
  Dtype dtype;
  Rows logits;
  Rows allowed;  // of 32-bit words; no data: every token
  int64_t size;  // V_t
};

// The columns of the drafter's softmax: V_d static ones with a bias, C dynamic ones of the row's
// own.
struct DraftColumns {
  Dtype dtype;
  Rows logits;
  const float* bias;  // null: none
  int64_t draft_size;
  int64_t target_size;
  int64_t dynamic_size;
  Rows dynamic_tokens;
  Rows dynamic_logits;
};

// A = S + U P by target token: what q(x) at one token needs.
struct AffinityColumns {
  const int32_t* offsets;
  const int32_t* drafts;
  const float* weights;
  const float* spread;
  const float* prior;
  int64_t entries;  // of S
  int64_t rank;
  int64_t target_size;
};

// A = S + U P by drafter token, as running sums in units of 2^-32: what drawing needs.
struct AffinityRows {
  const int32_t* offsets;
  const int32_t* targets;
  const int64_t* cdf;
  const int32_t* top;
  const float* spread;
  const int64_t* spread_cdf;
  const int64_t* prior_cdf;
  int64_t rank;
  int64_t target_size;
};

// Which tokens each row keeps (docs/design.md, "Truncation"); null: all of them.
struct Truncation {
  const int32_t* top_k;
  const float* top_p;
  const float* min_p;
  bool given;  // whether there is any of them, also where no row is
};

// B sequences under verification, each with its own of these; temperature and truncation are the
// target's.
struct Sequences {
  int64_t count;  // B
  const float* temperature;
  const int64_t* step_keys;
  const int64_t* positions;
  Truncation truncation;
};

// What is proposed for all sequences: drafts, or nodes of trees. Packed, or the rows of a step, of
// which each sequence has the first `each` places.
struct Proposed {
  TokenIds token_ids;
  int64_t count;           // N
  const int32_t* offsets;  // null: the rows of a step
  int64_t each;
  int64_t token_stride;  // between sequences in token_ids
  int64_t places;        // between sequences in the drafter's rows
};

// Which row of the drafter's each draft was drawn from.
struct DraftRows {
  int64_t available;     // M
  const int32_t* index;  // null: draft n owns row n
  const float* stats;    // null: computed here
  int64_t stats_width;   // 2 + R, and one more if the drafts were truncated
  const float* temperature;

  RDK_HOST_DEVICE int row(int64_t draft) const {
    return index != nullptr ? index[draft] : static_cast<int>(draft);
  }
};

// Whose log-probabilities verify returns.
enum class Logprobs : int32_t { kNone, kProcessed, kRaw };

// How a step's drafts are judged (docs/design.md, "Verification", "Block verification").
enum class Method : int32_t { kToken, kBlock };

struct RedistributeParams {
  DraftColumns draft;
  AffinityColumns affinity;
  const int32_t* row_top;
  const float* temperature;
  Truncation truncation;
  float* probs;
  int64_t rows;
};

// Where a step keeps what it drafts from (docs/design.md, "Rows of a step"): K places in each of S
// slots, of which a call fills one place.
struct StepRows {
  int64_t slots;
  int64_t places;  // 0: the call is not part of a step
  int64_t place;
  TokenIds place_id;     // [1], where a GPU knows it; no data: place
  TokenIds slot_ids;     // no data: row b has slot b
  const int64_t* seeds;  // of the rows, from which their keys are made
  int64_t* step_keys;    // [S]
  int64_t* tokens;       // [S, K], as all that follows
  void* logits;
  int32_t* dynamic_tokens;
  void* dynamic_logits;

  RDK_HOST_DEVICE int64_t at() const { return place_id.data == nullptr ? place : place_id[0]; }
};

struct DraftParams {
  DraftColumns draft;
  AffinityRows affinity;
  const float* temperature;
  const int64_t* step_keys;  // null in a step
  const int64_t* positions;  // in a step those of its first place
  const int32_t* branches;   // null: 0 for every row
  Truncation truncation;
  StepRows step;
  int64_t* tokens;
  float* stats;         // in a step [S, K, stats_width]
  int64_t stats_width;  // 2 + R, and one more for the threshold if rows are truncated
  int64_t rows;

  // -1: the row has no slot or no place, and nothing of it is kept.
  RDK_HOST_DEVICE int64_t slot(int64_t row) const {
    if (step.places == 0) return row;
    if (step.at() < 0 || step.at() >= step.places) return -1;
    const int64_t slot = step.slot_ids.data == nullptr ? row : step.slot_ids[row];
    return 0 <= slot && slot < step.slots ? slot : -1;
  }
  // Where stats, logits and dynamic columns of a row are kept.
  RDK_HOST_DEVICE int64_t kept_at(int64_t slot) const {
    return step.places == 0 ? slot : slot * step.places + step.at();
  }
};

struct VerifyParams {
  TargetRows target;
  Sequences sequences;
  Proposed drafts;
  DraftColumns draft;
  DraftRows draft_rows;
  AffinityColumns affinity;
  int64_t max_draft;
  int64_t* tokens;
  int32_t* num_accepted;
  Logprobs logprobs_of;
  float* logprobs;
  Method method;
};

// The drafts are the nodes, and max_draft is max_depth. Without a drafter the draft's rows have no
// index, and all nodes are fixed.
struct VerifyTreeParams : VerifyParams {
  const int32_t* parents;
  int32_t* path;

  RDK_HOST_DEVICE bool mixed() const { return draft_rows.index != nullptr; }
};

// A rank's columns of the target: whole chunks, of which it is given `count` from `first` on. What
// lies beyond the vocabulary is padding; TargetRows::size is without it.
struct Shard {
  int64_t first;
  int64_t count;
};

struct SumShardParams {
  TargetRows target;
  Shard shard;
  const float* temperature;
  Proposed drafts;
  int64_t sequences;  // B
  int64_t max_draft;
  float* sums;  // [B, max_draft + 1, chunks + 1, 2]
};

// What a rank returns where the token that follows is not in its chunks: more than any other.
constexpr int64_t kNotHere = 0x7fffffffffffffff;

// Nothing of the target's rows but the shard is here, and the sums of all chunks.
struct VerifyShardParams : VerifyParams {
  Shard shard;
  const float* sums;
  const int64_t* drawn;    // null: not yet known
  const float* residuals;  // [B, chunks of V_t, 2]; null: not yet known
  int64_t* found;
  float* residual;  // [B, chunks of the shard, 2]
};

struct OverlapParams {
  TargetRows target;
  const float* target_temperature;
  DraftColumns draft;
  const float* draft_temperature;
  AffinityColumns affinity;
  float* alpha;
  uint32_t* below;  // [rows, words]
  float* stats;     // [rows, 3 + R]
  int64_t rows;

  RDK_HOST_DEVICE int64_t words() const { return (target.size + 31) / 32; }
  RDK_HOST_DEVICE int64_t stats_width() const { return 3 + affinity.rank; }
};

struct OverlapBackwardParams {
  const float* grad;  // of alpha
  const uint32_t* below;
  const float* stats;
  DraftColumns draft;
  const float* draft_temperature;
  AffinityRows affinity;
  void* draft_grads;    // [rows, V_d], of the dtype of the logits
  void* dynamic_grads;  // [rows, C]
  int64_t rows;

  RDK_HOST_DEVICE int64_t words() const { return (draft.target_size + 31) / 32; }
  RDK_HOST_DEVICE int64_t stats_width() const { return 3 + affinity.rank; }
};

struct GatherLogitsParams {
  Dtype dtype;
  Rows hidden;
  const void* weight;
  int64_t weight_stride;
  const void* bias;
  TokenIds tokens;
  void* logits;
  int64_t rows;
  int64_t tokens_per_row;
  int64_t vocabulary;
  int64_t hidden_size;
};

// A row's text, and what it names (docs/design.md, "Name tokens").
struct NameTokensParams {
  TokenIds contexts;  // [slots, longest]
  int64_t context_stride;
  int64_t slots;
  int64_t longest;
  TokenIds lengths;   // null: rows are whole
  TokenIds slot_ids;  // null: row b has slot b
  TokenIds decided;   // [rows, decided_size]
  int64_t decided_size;
  const int64_t* drafts;  // [draft_slots, places]
  int64_t draft_slots;
  int64_t places;
  int64_t place;
  TokenIds place_id;   // null: place
  const bool* pruned;  // null: every token may be named
  int64_t target_size;
  const int32_t* offsets;  // null: no token has successors
  const int32_t* successors;
  int64_t entries;
  int64_t recent;
  int64_t window;
  int64_t width;
  int32_t* tokens;
  int64_t rows;

  RDK_HOST_DEVICE bool may_name(int64_t id) const {
    return id >= 0 && id < target_size && (pruned == nullptr || pruned[id]);
  }
};

struct StepKeysParams {
  const int64_t* seeds;
  const int64_t* positions;
  int64_t* step_keys;
  int64_t count;
  uint32_t stage;
};

}  // namespace rdk
