#include "emulator_kernels.h"

#include <climits>

#include "cuda_emulation.h"

namespace {

constexpr unsigned kFullMask = 0xffffffffu;

using emulation::Site;

// ---- misuse ----

__device__ __attribute__((noinline)) float* as_pointer(float* values) { return values; }

// Two blocks, which begin by a barrier but for what is wrong.
__device__ float misuse_of_cluster(Misuse misuse, float* values) {
  const unsigned thread = threadIdx.x, other = 1 - blockIdx.x % 2;
  const Site here = Site::here();
  switch (misuse) {
    case Misuse::store_before_a_block_runs:
      if (thread == 0) emulation::cluster_store(values, other, 1.0f);
      break;
    case Misuse::arrival_without_a_wait:
      emulation::cluster_arrive(here);
      return 0.0f;
    case Misuse::arrival_twice:
      emulation::cluster_arrive(here);
      emulation::cluster_arrive(here);
      break;
    case Misuse::wait_without_an_arrival:
      emulation::cluster_wait(here);
      break;
    case Misuse::store_before_the_wait:
      emulation::cluster_barrier(here);
      emulation::cluster_arrive(here);
      if (thread == 0) emulation::cluster_store(values, other, 1.0f);
      emulation::cluster_wait(here);
      break;
    default:
      emulation::cluster_arrive(here);
      emulation::cluster_wait(here);
  }
  switch (misuse) {
    case Misuse::store_after_a_block_has_left:
      if (other == 0) return 0.0f;
      if (thread == 0) emulation::cluster_store(values, other, 1.0f);
      break;
    case Misuse::store_in_no_block:
      emulation::cluster_store(values, 2, 1.0f);
      break;
    case Misuse::load_of_another_blocks_store:
      if (thread == 0) emulation::cluster_store(values, other, 1.0f);
      __syncthreads();
      if (thread == 0) emulation::cluster_load(values);
      break;
    case Misuse::load_of_another_warps_store:
      if (thread == 0) emulation::cluster_store(values, 1 - other, 1.0f);
      if (thread == 32) emulation::cluster_load(values);
      break;
    case Misuse::load_behind_a_relaxed_barrier:
      if (thread == 0) emulation::cluster_store(values, other, 1.0f);
      emulation::cluster_arrive(here);
      emulation::cluster_wait(here);
      emulation::cluster_load(values);
      break;
    case Misuse::two_stores_to_one_place:
      if (thread == 0) emulation::cluster_store(values, 0, 1.0f);
      break;
    case Misuse::store_behind_a_load:
      if (thread == 0) emulation::cluster_load(values);
      if (thread == 0) emulation::cluster_store(values, other, 1.0f);
      break;
    default:
      break;
  }
  emulation::cluster_barrier(here);
  return 0.0f;
}

__global__ void misuse_kernel(MisuseParams params) {
  __shared__ float values[8];
  auto* dynamic = static_cast<float*>(emulation::dynamic_shared());
  const unsigned thread = threadIdx.x, lane = thread % 32;
  float x = static_cast<float>(thread);
  switch (params.misuse) {
    case Misuse::barrier_in_branch:
      if (thread < 16) __syncthreads();
      break;
    case Misuse::cluster_barrier_in_branch:
      if (thread < 16) emulation::cluster_barrier(emulation::Site::here());
      break;
    case Misuse::barriers_of_two_branches:
      if (thread % 2 == 0) {
        __syncthreads();
      } else {
        __syncthreads();
      }
      break;
    case Misuse::return_before_barrier:
      if (thread == 3) return;
      __syncthreads();
      break;
    case Misuse::shuffle_without_a_lane:
      if (lane != 5) x = __shfl_xor_sync(kFullMask, x, 1);
      break;
    case Misuse::shuffle_names_returned_lane:
      if (lane == 5) return;
      __syncwarp(kFullMask & ~(1u << 5));
      x = __shfl_sync(kFullMask, x, 0);
      break;
    case Misuse::shuffle_outside_mask:
      x = __shfl_sync(0x0000ffffu, x, 0);
      break;
    case Misuse::shuffle_reads_lane_outside_mask:
      if (lane < 16) x = __shfl_sync(0x0000ffffu, x, 16);
      break;
    case Misuse::shuffle_against_ballot:
      if (lane < 16) {
        x = __shfl_sync(kFullMask, x, 0);
      } else {
        x = static_cast<float>(__ballot_sync(kFullMask, 1));
      }
      break;
    case Misuse::barrier_against_shuffle:
      if (lane < 16) {
        __syncthreads();
      } else {
        __syncwarp();
      }
      break;
    case Misuse::circular_wait:  // lane 0 waits for 1, 1 for 2, 2 for 0
      if (lane < 3) __syncwarp(1u << lane | 1u << (lane + 1) % 3);
      break;
    case Misuse::dynamic_overrun:
      dynamic[thread + 1] = x;
      break;
    case Misuse::static_overrun:  // by one, for the sanitizer's red zone
      if (thread <= 8) as_pointer(values)[thread] = x;
      break;
    case Misuse::global_overrun:
      x = params.out[thread + 1];
      break;
    case Misuse::misaligned:
      x = __ldg(reinterpret_cast<const uint4*>(params.out + 1)).x;
      break;
    case Misuse::signed_overflow:
      x = static_cast<float>(INT_MAX - 8 + static_cast<int>(thread));
      break;
    case Misuse::mixed_stores:
      global_store(&params.out[thread], x);
      x += 1;
      break;
    case Misuse::load_against_store:
      x = global_load(&params.out[0]);
      if (lane == 0) global_store(&params.out[0], x);
      break;
    case Misuse::store_before_shuffle:
      if (thread == 0) global_store(&params.out[0], x);
      x = __shfl_sync(kFullMask, x, 0);
      if (thread < 32) x += global_load(&params.out[0]);
      break;
    case Misuse::load_before_shuffle:
      if (thread < 32) x = global_load(&params.out[0]);
      x = __shfl_sync(kFullMask, x, 0);
      if (thread == 0) global_store(&params.out[0], x + 1.0f);
      break;
    case Misuse::weak_load_of_a_counter:
      atomicAdd(reinterpret_cast<unsigned*>(params.out), 1u);
      x = global_load(&params.out[0]);
      break;
    case Misuse::return_before_copy:
      emulation::async_copy(dynamic + 4 * thread, params.out);
      emulation::async_commit();
      break;
    case Misuse::copy_to_global:
      emulation::async_copy(params.out + 4 * thread, params.out);
      break;
    case Misuse::early_without_a_wait:
      break;
    case Misuse::early_copy_before_the_wait:
      emulation::async_copy(dynamic + 4 * thread, params.out);
      emulation::async_wait(0);
      emulation::wait_for_earlier_kernels();
      break;
    case Misuse::none:
      break;
    default:
      x = misuse_of_cluster(params.misuse, &values[0]);
  }
  params.out[blockIdx.x * blockDim.x + thread] = x;
}

// ---- every collective against what CUDA says it does ----

__global__ void primitives_kernel(PrimitivesParams params) {
  const unsigned thread = threadIdx.x, lane = thread % 32;
  unsigned* out = params.out + thread;
  const auto write = [&](unsigned value) {
    *out = value;
    out += blockDim.x;
  };
  write(__shfl_sync(kFullMask, lane, static_cast<int>(lane) + 3));
  write(__shfl_up_sync(kFullMask, lane, 3u));
  write(__shfl_xor_sync(kFullMask, lane, 5));
  write(static_cast<unsigned>(__shfl_xor_sync(kFullMask, lane + 0.5f, 1) * 2));
  write(__ballot_sync(kFullMask, lane % 3 == 0));
  write(__all_sync(kFullMask, lane < 31));
  write(lane < 12 ? __ballot_sync(0x00000fffu, lane > 4) : __ballot_sync(0xfffff000u, lane < 20));
  write(__all_sync(kFullMask, lane < 32));
  write(__match_any_sync(kFullMask, static_cast<int>(lane % 5)));
  write(100 * __ffs(static_cast<int>(thread)) + __clz(static_cast<int>(thread)));
}

// ---- shared memory of a cluster ----

__global__ void exchange_kernel(ExchangeParams params, unsigned cluster) {
  __shared__ float values[32];
  auto* dynamic = static_cast<float*>(emulation::dynamic_shared());
  const unsigned thread = threadIdx.x, rank = blockIdx.x % cluster;
  values[thread] = static_cast<float>(100 * blockIdx.x + thread);
  emulation::cluster_arrive(Site::here());
  emulation::cluster_wait(Site::here());
  for (unsigned round = 0; round < cluster; ++round) {
    emulation::cluster_store(&dynamic[thread], (rank + 1) % cluster, values[thread]);
    emulation::cluster_barrier(Site::here());
    emulation::cluster_store(&values[thread], rank, emulation::cluster_load(&dynamic[thread]));
    emulation::cluster_barrier(Site::here());
  }
  params.out[blockIdx.x * blockDim.x + thread] = emulation::cluster_load(&values[thread]);
}

}  // namespace

void launch_exchange(const ExchangeParams& params, int blocks, int cluster) {
  emulation::launch_threads(reinterpret_cast<const void*>(exchange_kernel),
                            [&] { exchange_kernel(params, static_cast<unsigned>(cluster)); },
                            blocks, 32, 128, {static_cast<unsigned>(cluster), false});
}

void launch_misuse(const MisuseParams& params, int blocks, int threads, size_t dynamic_bytes,
                   int allowed_bytes) {
  const auto* kernel = reinterpret_cast<const void*>(misuse_kernel);
  emulation::introduce(kernel, "misuse_kernel", 128);
  if (allowed_bytes > 0 && cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                                allowed_bytes) != cudaSuccess) {
    throw emulation::Error("the driver refuses " + std::to_string(allowed_bytes) + " bytes");
  }
  const bool in_clusters =
      params.misuse >= Misuse::store_before_a_block_runs && params.misuse < Misuse::none;
  const bool early = params.misuse == Misuse::early_without_a_wait ||
                     params.misuse == Misuse::early_copy_before_the_wait;
  emulation::launch(misuse_kernel, blocks, threads, dynamic_bytes, params,
                    {in_clusters ? 2u : 1u, early});
}

void launch_primitives(const PrimitivesParams& params, int threads) {
  emulation::launch(primitives_kernel, 1, threads, 0, params);
}
