// redistribute on a GPU: its launch, for the torch side, NVRTC and the emulated tests.
#pragma once

#include "launch.h"

namespace rdk {

struct ChunkSum;

struct RedistributeLaunch {
  using Params = RedistributeParams;
  Params params;
  LaunchShape shape;
  int tiles;            // blocks that share a group of rows
  int tile;             // target tokens of each
  int group;            // rows that a block takes in one pass over the sparse structure
  bool shared_weights;  // exp(z - max) of the group's rows fits into shared memory
  ChunkSum* chunks;     // [blocks, chunks]
  float* spread_sums;   // [blocks, R, chunks]
};

#if !defined(__CUDACC_RTC__)
void plan_redistribute(const Machine& machine, RedistributeLaunch* launch);
void place_redistribute(void* workspace, RedistributeLaunch* launch);
cudaError_t launch_redistribute(const RedistributeLaunch& launch, cudaStream_t stream);
#endif

}  // namespace rdk
