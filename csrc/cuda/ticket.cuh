// No block waits for another: the last one to take a ticket finds the work of all of them done, and
// goes on alone.
#pragma once

#include "device.cuh"

namespace rdk {

// Called by all threads of a block, once. Tickets start at zero. True in the last of `blocks`
// blocks, where all stores that they made before by global_store are visible to global_load.
//
// One thread's fence is enough for the stores of the whole block: the barrier orders them before
// the fence, and fences are cumulative, so a block that sees the ticket sees what came before it.
// The second fence keeps the loads of the last block, in all of its threads through the second
// barrier, from moving before the ticket.
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
