// No kernel waits for another block: the last block to take a ticket finds everybody's work done
// and goes on alone.
#pragma once

#include "device.cuh"

namespace rdk {

// By all threads of a block, once. tickets start at zero. True in the last of `blocks` blocks,
// where all their earlier global stores are visible.
__device__ __forceinline__ bool last_block(unsigned* ticket, int blocks) {
  __shared__ bool last;
  __syncthreads();
  if (threadIdx.x == 0) {
    if (blocks > 1) {
      __threadfence();
      last = atomicAdd(ticket, 1u) == static_cast<unsigned>(blocks - 1);
      __threadfence();
    } else {
      last = true;
    }
  }
  __syncthreads();
  return last;
}

}  // namespace rdk
