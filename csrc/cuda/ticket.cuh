// Which of several blocks goes on when all of them have done their work. No block waits for
// another: the last one to take a ticket finds the work done. The blocks of a thread block cluster
// all run at once, so there the first one can wait for the others.
#pragma once

#include "device.cuh"

namespace rdk {

// Called by all threads of a block, once. Tickets start at zero. True in the last of `blocks`
// blocks, where all stores that they made before by global_store are visible to global_load.
//
// One thread's ticket is enough for the stores of the whole block: the barrier orders them before
// its release, which is cumulative, so a block that sees the ticket sees what came before it. It
// acquires, too, and so keeps the loads of the last block, in all of its threads through the second
// barrier, from moving before the ticket. That is one MEMBAR.ALL, where two fences around an atomic
// are two MEMBAR.SC.
__device__ __forceinline__ bool last_block(unsigned* ticket, int blocks) {
  __shared__ bool last;
  __syncthreads();
  if (threadIdx.x == 0) {
    last = blocks == 1 || acquire_release_add(ticket, 1u) == static_cast<unsigned>(blocks - 1);
  }
  __syncthreads();
  return last;
}

// The same where the blocks are a cluster, which needs no tickets.
__device__ __forceinline__ bool first_block_of_cluster(int blocks) {
  cluster_barrier();
  return blockIdx.x % blocks == 0;
}

}  // namespace rdk
