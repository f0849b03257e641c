// What kernels are launched with, and what they and the plans of their launches (plans.cpp) agree
// on. NVRTC compiles this too.
#pragma once

#include "../common/drafts.h"

namespace rdk {

constexpr int kWarp = 32;

// Bytes of shared memory for the chunks that a warp has asked for but not yet used: two of a 16-bit
// type or one of float32, with 16 bytes more each for rows that are not aligned.
constexpr int kRingBytes = 4096 + 2 * 16;

// Bytes of shared memory that finding a row's threshold takes of a block (truncation.cuh).
constexpr int kThresholdBytes = 16528;

// Chunk sums of a row that every block of the cluster which shares it holds in its shared memory
// (row_sums.cuh), at most: those of 131,072 columns.
constexpr int kMostHeld = 128;
constexpr int kHeldBytes = kMostHeld * (8 + 4 * kMaxRank);

struct ChunkSum {
  float max;
  float sum;  // of exp(z - max); NaN or infinite where the row has no distribution
};

// What is known of a draft before its row of the target is summed.
struct Draft {
  int64_t token;
  int row;  // of draft_logits
  DraftKind kind;
  float stats[3 + kMaxRank];  // the last that are given: the threshold of truncated drafts
  float logit;                // of the target
  float q;
  float coin;  // on which its acceptance depends
};

// Bytes of what a block posts of a direct pass (verify_passes.cuh).
constexpr int kPostBytes = 176;

// Every launch struct says which of its kernel's instantiations is launched: kernel() is an index
// into the list RDK_NAME_KERNELS before it. And it says what they take of a multiprocessor:
//   kBlocks             blocks of kThreads (or kMaxThreads) that fit on one at once, at least; the
//                       kernel's launch bounds hold the compiler to it
//   kStaticSharedBytes  static shared memory of a block; CUDA's limits are on static and dynamic
//                       bytes together
// tests/proof/packaging compares the latter with what compilers made of the kernels.
struct LaunchShape {
  int64_t blocks;
  int64_t threads;
  int64_t shared_bytes;  // dynamic
  int64_t ticket_bytes;  // of the workspace, from its start: words that ticket.cuh makes tickets
  // Dynamic shared memory that the kernel must be allowed on its device before the first launch:
  // the most that any launch there may need, so that it never has to change. 0: nothing to allow.
  int64_t allowed_bytes;
  // Consecutive blocks that are a thread block cluster: they run at once and may wait for each
  // other. 0 or 1: none.
  int32_t cluster;
  // 1: the launch may begin while kernels before it in the stream still run, and its kernel waits
  // for them.
  int32_t early;
  uint64_t stamp;  // of the tickets: bits that no other data has, above 16 zeros
};

// Of a kernel, the instantiations for each Dtype, in its order; then with further arguments. A list
// of kernels is made of such, one after the other.
#define RDK_EACH_DTYPE(kernel, name) \
  kernel(name<float>), kernel(name<Float16Bits>), kernel(name<BFloat16Bits>)
#define RDK_EACH_DTYPE_AND(kernel, name, ...)                               \
  kernel(name<float, __VA_ARGS__>), kernel(name<Float16Bits, __VA_ARGS__>), \
      kernel(name<BFloat16Bits, __VA_ARGS__>)
RDK_HOST_DEVICE int kernel_of(Dtype dtype, int part) { return 3 * part + static_cast<int>(dtype); }

// For rows that are whole, then for rows that may be cut.
#define RDK_DRAFT_KERNELS(kernel) \
  RDK_EACH_DTYPE_AND(kernel, draft_kernel, Whole), RDK_EACH_DTYPE_AND(kernel, draft_kernel, Cut)

struct DraftLaunch {
  using Params = DraftParams;
  static constexpr int kMaxThreads = 256;  // of a block
  static constexpr int kBlocks = 2;
  static constexpr int kSmallThreads = 64;  // of a block where several share a row
  static constexpr int kSmallBlocks = 4;    // of these for a multiprocessor; 8 would fit
  static constexpr int kStaticSharedBytes = 3088;
  Params params;
  LaunchShape shape;
  int splits;          // blocks that share a row
  bool holds;          // they hold its chunk sums in shared memory (row_sums.cuh)
  bool plain;          // and all chunks are whole (cut.cuh)
  uint64_t* tickets;   // [rows]; none if a row's blocks are a cluster
  ChunkSum* chunks;    // [rows, chunks]
  float* spread_sums;  // [rows, R, chunks]

  RDK_HOST_DEVICE int kernel() const {
    return kernel_of(params.draft.dtype, params.truncation.given ? 1 : 0);
  }
};

// In the same order.
#define RDK_REDISTRIBUTE_KERNELS(kernel)                  \
  RDK_EACH_DTYPE_AND(kernel, redistribute_kernel, Whole), \
      RDK_EACH_DTYPE_AND(kernel, redistribute_kernel, Cut)

struct RedistributeLaunch {
  using Params = RedistributeParams;
  static constexpr int kThreads = 512;  // of a block
  static constexpr int kBlocks = 1;
  static constexpr int kStaticSharedBytes = 144;
  static constexpr int kMaxGroup = 4;  // rows
  static constexpr int kTokens = 8;    // of a lane at once; tiles are multiples of it
  // Of a block whose rows may be cut, before its other dynamic shared memory.
  static constexpr int kCutBytes = kThresholdBytes + kMaxGroup * 8 + 48;
  Params params;
  LaunchShape shape;
  int tiles;            // blocks that share a group of rows
  int tile;             // target tokens of each
  int group;            // rows that a block takes in one pass over the sparse structure
  bool shared_weights;  // exp(z - max) of the group's rows is kept in shared memory
  ChunkSum* chunks;     // [blocks, group, chunks]
  float* spread_sums;   // [blocks, group, R, chunks]

  RDK_HOST_DEVICE int kernel() const {
    return kernel_of(params.draft.dtype, params.truncation.given ? 1 : 0);
  }
  // Of a row's shared weights: whole vectors.
  RDK_HOST_DEVICE int64_t weights_stride() const { return (params.draft.draft_size + 3) / 4 * 4; }
};

// For rows that are whole, for rows that may be cut, which have log-probabilities too, and by
// block, where rows may be cut. The target's logits are most of the bytes, so they are always read
// by vectors. Where rows are whole, kernels for a drafter of the same dtype come first, and it is
// read by vectors, too.
#define RDK_VERIFY_KERNELS(kernel)                                \
  kernel(verify_kernel<float, float, Whole>),                     \
      kernel(verify_kernel<Float16Bits, Float16Bits, Whole>),     \
      kernel(verify_kernel<BFloat16Bits, BFloat16Bits, Whole>),   \
      RDK_EACH_DTYPE_AND(kernel, verify_kernel, AnyDtype, Whole), \
      RDK_EACH_DTYPE_AND(kernel, verify_kernel, AnyDtype, Cut),   \
      RDK_EACH_DTYPE_AND(kernel, verify_kernel, AnyDtype, Block)

struct VerifyLaunch {
  using Params = VerifyParams;
  static constexpr int kThreads = 256;  // of a block
  static_assert(kResidualTries % (kThreads / kWarp) == 0, "warps share the tries evenly");
  static constexpr int kBlocks = 2;
  static constexpr bool kSharesPasses = true;
  static constexpr bool kSumsDrafts = true;
  static constexpr int kSplitsOfScout = 16;
  static constexpr int kStaticSharedBytes = 1344;
  Params params;
  LaunchShape shape;
  // Blocks that share a sequence, each a part of all its rows, of which the last one decides; or 1,
  // which reads a row, decides, and goes on until a rejection. Tokens are the same.
  int splits;
  uint64_t* tickets;  // [B]; none where splits is 1
  // Sums are kept by sequence and step, not by row: offsets out of order can give a row to two
  // sequences, each with a temperature of its own.
  int slots;                // steps of a sequence that are kept at once
  ChunkSum* target_chunks;  // [B, slots, chunks of V_t]
  ChunkSum* draft_chunks;   // [B, slots, chunks of V_d and C]; none where stats are given
  float* spread_sums;       // [B, slots, R, chunks]
  float* residual_sums;     // [B, chunks of V_t]
  ChunkSum* raw_chunks;     // [B, chunks of V_t]; none where no raw log-probabilities are asked for
  float* factors;           // [B, slots], c of each prefix; none but by block
  float* thresholds;        // [B, slots], of rows that are cut; none but by block
  Draft* drafts;            // [B, slots]; none if it does not look ahead
  // Direct passes that blocks share; none by block.
  uint64_t* next;        // [B]
  uint64_t* done;        // [B], batches that have been summed, as tickets count
  unsigned char* posts;  // [B, kPostBytes]
  int batch;             // chunks that a block takes at once, an even number
  int at_once;           // blocks of the launch that run at once, at least

  RDK_HOST_DEVICE int kernel() const {
    const bool same = params.draft.dtype == params.target.dtype;
    return kernel_of(params.target.dtype, by_block() ? 3 : !whole() ? 2 : same ? 0 : 1);
  }
  RDK_HOST_DEVICE bool by_block() const { return params.method == Method::kBlock; }
  // Whether drafts are looked up while rows are summed, which needs no sums of their own rows.
  RDK_HOST_DEVICE bool looks_ahead() const {
    return !by_block() && params.draft_rows.stats != nullptr;
  }
  RDK_HOST_DEVICE const Draft* looked_up(int64_t slot) const {
    return looks_ahead() ? drafts + slot : nullptr;
  }
  // Whether a block of its own looks them up: among many it costs the others less than a warp of
  // each that comes later.
  RDK_HOST_DEVICE bool has_scout() const { return looks_ahead() && splits >= kSplitsOfScout; }
  // Whether the call has nothing that changes a row, or that asks for more than tokens.
  RDK_HOST_DEVICE bool whole() const {
    return !params.sequences.truncation.given && params.target.allowed.data == nullptr &&
           params.logprobs_of == Logprobs::kNone &&
           !(params.draft_rows.stats != nullptr &&
             params.draft_rows.stats_width > 2 + params.affinity.rank);
  }
};

// Of fixed nodes for rows that are whole, then for rows that may be cut; of drawn and fixed nodes,
// whose rows may be cut, by token and by block.
#define RDK_VERIFY_TREE_KERNELS(kernel)                      \
  RDK_EACH_DTYPE_AND(kernel, verify_tree_kernel, Whole),     \
      RDK_EACH_DTYPE_AND(kernel, verify_tree_kernel, Cut),   \
      RDK_EACH_DTYPE_AND(kernel, verify_tree_kernel, Drawn), \
      RDK_EACH_DTYPE_AND(kernel, verify_tree_kernel, DrawnBlock)

struct VerifyTreeLaunch {
  using Params = VerifyTreeParams;
  static constexpr int kThreads = 256;  // of a block
  static_assert(kResidualTries % (kThreads / kWarp) == 0, "warps share the tries evenly");
  static constexpr int kBlocks = 2;
  static constexpr bool kSharesPasses = false;
  static constexpr bool kSumsDrafts = true;
  static constexpr int kStaticSharedBytes = 992;  // at most: of drawn nodes by block
  Params params;
  LaunchShape shape;
  // As in VerifyLaunch. Of fixed nodes there are the target's sums alone.
  int slots;  // by block one for each depth, otherwise 1
  ChunkSum* target_chunks;
  ChunkSum* draft_chunks;
  float* spread_sums;
  float* residual_sums;
  float* factors;
  float* thresholds;

  RDK_HOST_DEVICE int kernel() const {
    const bool whole = !params.sequences.truncation.given && params.target.allowed.data == nullptr;
    return kernel_of(params.target.dtype, by_block() ? 3 : params.mixed() ? 2 : whole ? 0 : 1);
  }
  // Then even a block without a drawn node has words of its own.
  RDK_HOST_DEVICE bool by_block() const { return params.method == Method::kBlock; }
  RDK_HOST_DEVICE const Draft* looked_up(int64_t) const { return nullptr; }
};

// The drafter is read element by element.
#define RDK_VERIFY_SHARD_KERNELS(kernel) RDK_EACH_DTYPE(kernel, verify_shard_kernel)

struct VerifyShardLaunch {
  using Params = VerifyShardParams;
  static constexpr int kThreads = 256;  // of a block
  static_assert(kResidualTries % (kThreads / kWarp) == 0, "warps share the tries evenly");
  static constexpr int kBlocks = 2;
  static constexpr bool kSumsDrafts = false;  // all stats are passed
  static constexpr int kStaticSharedBytes = 960;
  Params params;
  LaunchShape shape;

  RDK_HOST_DEVICE int kernel() const { return static_cast<int>(params.target.dtype); }
};

#define RDK_SUM_SHARD_KERNELS(kernel) RDK_EACH_DTYPE(kernel, sum_shard_kernel)

struct SumShardLaunch {
  using Params = SumShardParams;
  static constexpr int kThreads = 256;  // of a block
  static constexpr int kBlocks = 2;
  static constexpr int kStaticSharedBytes = 0;
  Params params;
  LaunchShape shape;
  int splits;  // blocks that share a row

  RDK_HOST_DEVICE int kernel() const { return static_cast<int>(params.target.dtype); }
};

#define RDK_GATHER_LOGITS_KERNELS(kernel) RDK_EACH_DTYPE(kernel, gather_logits_kernel)

struct GatherLogitsLaunch {
  using Params = GatherLogitsParams;
  static constexpr int kMaxThreads = 256;  // of a block; fewer where that makes too few blocks
  static constexpr int kBlocks = 2;
  static constexpr int kParts = 4;  // warps that can share a token
  static constexpr int kSmallBlocks = kBlocks * kMaxThreads / (kParts * kWarp);
  static constexpr int kStaticSharedBytes = 4 * kParts * kWarp;
  Params params;
  LaunchShape shape;
  int splits;     // blocks that share a row of hidden states
  bool together;  // a token has a block of its own, otherwise a warp takes it

  RDK_HOST_DEVICE int kernel() const { return static_cast<int>(params.dtype); }
};

// For a drafter of the target's dtype, which is read by vectors, too, then for any.
#define RDK_OVERLAP_KERNELS(kernel)                                                       \
  kernel(overlap_kernel<float, float>), kernel(overlap_kernel<Float16Bits, Float16Bits>), \
      kernel(overlap_kernel<BFloat16Bits, BFloat16Bits>),                                 \
      RDK_EACH_DTYPE_AND(kernel, overlap_kernel, AnyDtype)

struct OverlapLaunch {
  using Params = OverlapParams;
  static constexpr int kThreads = 768;  // of a block
  static constexpr int kBlocks = 1;
  static constexpr int kStaticSharedBytes = 624;
  Params params;
  LaunchShape shape;
  bool shared_weights;      // the row's exp(z - max) is kept in shared memory
  ChunkSum* target_chunks;  // [rows, chunks of V_t]
  ChunkSum* draft_chunks;   // [rows, chunks of V_d and C]
  float* spread_sums;       // [rows, R, chunks of V_d and C]

  RDK_HOST_DEVICE int kernel() const {
    return kernel_of(params.target.dtype, params.draft.dtype == params.target.dtype ? 0 : 1);
  }
};

#define RDK_OVERLAP_BACKWARD_KERNELS(kernel) RDK_EACH_DTYPE(kernel, overlap_backward_kernel)

struct OverlapBackwardLaunch {
  using Params = OverlapBackwardParams;
  static constexpr int kThreads = 512;  // of a block
  static constexpr int kBlocks = 2;
  static constexpr int kGroup = 4;      // rows of a block
  static constexpr int kWindow = 1024;  // times 32 columns, between which the block waits
  static constexpr int kStaticSharedBytes = 4160;
  Params params;
  LaunchShape shape;
  bool shared_below;  // the rows' bits are kept in shared memory
  int splits;         // blocks that share a group of rows

  RDK_HOST_DEVICE int kernel() const { return static_cast<int>(params.draft.dtype); }
};

#define RDK_NAME_TOKENS_KERNELS(kernel) kernel(name_tokens_kernel)

struct NameTokensLaunch {
  using Params = NameTokensParams;
  static constexpr int kThreads = kWarp;  // of a block
  static constexpr int kStaticSharedBytes = 0;
  static constexpr int kMostSharedBits = 13;  // of a table in shared memory, which may always be
  Params params;
  LaunchShape shape;
  int bits;         // of a row's table
  int32_t* tables;  // [rows, 2^bits]; none if each is in shared memory

  RDK_HOST_DEVICE int kernel() const { return 0; }
};

#define RDK_STEP_KEYS_KERNELS(kernel) kernel(step_keys_kernel)

struct StepKeysLaunch {
  using Params = StepKeysParams;
  static constexpr int kThreads = 256;  // of a block
  static constexpr int kStaticSharedBytes = 0;
  Params params;
  LaunchShape shape;

  RDK_HOST_DEVICE int kernel() const { return 0; }
};

}  // namespace rdk
