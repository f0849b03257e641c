// verify on a GPU: its launch, for the torch side, NVRTC and the emulated tests.
#pragma once

#include "launch.h"

namespace rdk {

struct ChunkSum;

struct VerifyLaunch {
  using Params = VerifyParams;
  Params params;
  LaunchShape shape;
  int splits;         // blocks that share a sequence; 1: positions in order to the first rejection
  unsigned* tickets;  // [B], zero at the start
  // Sums are kept by sequence and step, not by row: offsets out of order can give a row to two
  // sequences, each with a temperature of its own.
  int slots;                // steps that a sequence may take
  ChunkSum* target_chunks;  // [B, slots, chunks of V_t]
  ChunkSum* draft_chunks;   // [B, slots, chunks of V_d and C]; none where stats are given
  float* spread_sums;       // [B, slots, R, chunks]
  float* residual_sums;     // [B, chunks of V_t]
};

#if !defined(__CUDACC_RTC__)
void plan_verify(const Machine& machine, VerifyLaunch* launch);
void place_verify(void* workspace, VerifyLaunch* launch);
cudaError_t launch_verify(const VerifyLaunch& launch, cudaStream_t stream);
#endif

}  // namespace rdk
