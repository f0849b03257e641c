// The arguments of kernels, and what kernels and the plans of their launches agree on. NVRTC
// compiles this too.
#pragma once

#include "../params.h"

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

enum class DraftKind : int32_t { kUnusable, kOneHot, kRow };

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
// into the list RDK_NAME_KERNELS of its header. And it says what they take of a multiprocessor:
//   kBlocks             blocks of kThreads (or kMaxThreads) that fit on one at once, at least; the
//                       kernel's launch bounds hold the compiler to it
//   kStaticSharedBytes  static shared memory of a block; CUDA's limits are on static and dynamic
//                       bytes together
// tests/proof/packaging compares the latter with what compilers made of the kernels.
struct LaunchShape {
  int64_t blocks;
  int64_t threads;
  int64_t shared_bytes;  // dynamic
  int64_t workspace_bytes;
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

}  // namespace rdk
