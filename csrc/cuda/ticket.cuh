// Which of several blocks goes on when all of them have done their work. No block waits for
// another: the last one to take a ticket finds the work done. The blocks of a thread block cluster
// all run at once, so there the first one can wait for the others.
#pragma once

#include "device.cuh"

namespace rdk {

// A ticket is a word of workspace that nobody has cleared: the stamp of its launch, and below that
// how many blocks have taken it. By one thread of each block, well before its block takes it: what
// is no ticket of this launch becomes one that nobody has taken. Who comes second finds it opened,
// if not now then in the swap, which fails; the first word never comes back. So one attempt is
// enough.
RDK_DEVICE void open_ticket(uint64_t* ticket, uint64_t stamp) {
  const uint64_t found = relaxed_load(ticket);
  if ((found ^ stamp) >> 16 != 0) compare_and_swap(ticket, found, stamp);
}

// Called by all threads of a block, once. True in the last of `blocks` blocks, where all stores
// that they made before by global_store are visible to global_load. It leaves no ticket, so that a
// graph, which launches with the same stamp again, does not find one that was taken.
//
// One thread's ticket is enough for the stores of the whole block: the barrier orders them before
// its release, which is cumulative, so a block that sees the ticket sees what came before it. It
// acquires, too, and so keeps the loads of the last block, in all of its threads through the second
// barrier, from moving before the ticket. That is one MEMBAR.ALL, where two fences around an atomic
// are two MEMBAR.SC.
RDK_DEVICE bool last_block(uint64_t* ticket, int blocks) {
  __shared__ bool last;
  __syncthreads();
  if (threadIdx.x == 0) {
    last = blocks == 1 || (acquire_release_add(ticket, 1) & 0xffff) == blocks - 1u;
    if (blocks > 1 && last) relaxed_store(ticket, 0);
  }
  __syncthreads();
  return last;
}

// The same where the blocks are a cluster, which needs no tickets.
RDK_DEVICE bool first_block_of_cluster(int blocks) {
  cluster_barrier();
  return blockIdx.x % blocks == 0;
}

// By all threads of the blocks of a cluster, or of a block that has none.
RDK_DEVICE void meet(int blocks) {
  if (blocks > 1) {
    cluster_barrier();
  } else {
    __syncthreads();
  }
}

}  // namespace rdk
