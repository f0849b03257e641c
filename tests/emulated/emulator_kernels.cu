#include "emulator_kernels.h"

#include <climits>

#include "cuda_emulation.h"

namespace {

constexpr unsigned kFullMask = 0xffffffffu;

// ---- softmax of a row by a block ----

template <bool kIsMax>
__device__ float combine(float x, float y) {
  return kIsMax ? fmaxf(x, y) : x + y;
}

template <bool kIsMax, bool kAllBarriers>
__device__ float block_reduce(float value) {
  __shared__ float partial[32];
  const unsigned lane = threadIdx.x % 32, warp = threadIdx.x / 32, warps = blockDim.x / 32;
  for (int step = 16; step > 0; step /= 2) {
    value = combine<kIsMax>(value, __shfl_xor_sync(kFullMask, value, step));
  }
  if (lane == 0) partial[warp] = value;
  if (kAllBarriers) __syncthreads();
  value = partial[lane % warps];
  for (int step = static_cast<int>(warps) / 2; step > 0; step /= 2) {
    value = combine<kIsMax>(value, __shfl_xor_sync(kFullMask, value, step));
  }
  return value;
}

template <bool kAllBarriers>
__global__ void __launch_bounds__(1024) softmax_kernel(const SoftmaxParams params) {
  const int64_t offset = static_cast<int64_t>(blockIdx.x) * params.columns;
  const float* __restrict__ logits = params.logits + offset;
  float* __restrict__ probs = params.probs + offset;
  float max = -INFINITY;
  for (int i = threadIdx.x; i < params.columns; i += blockDim.x)
    max = fmaxf(max, __ldg(&logits[i]));
  max = block_reduce<true, kAllBarriers>(max);
  float sum = 0.0f;
  for (int i = threadIdx.x; i < params.columns; i += blockDim.x) {
    probs[i] = expf(logits[i] - max);
    sum += probs[i];
  }
  sum = block_reduce<false, kAllBarriers>(sum);
  for (int i = threadIdx.x; i < params.columns; i += blockDim.x) probs[i] /= sum;
}

// ---- softmax of a row by as many threads, with one array for everything ----

template <bool kAllBarriers>
__global__ void shared_softmax_kernel(const SoftmaxParams params) {
  __shared__ float values[1024];
  const float logit = params.logits[blockIdx.x * params.columns + threadIdx.x];
  values[threadIdx.x] = logit;
  __syncthreads();
  float max = -INFINITY;
  for (int i = 0; i < params.columns; ++i) max = fmaxf(max, values[i]);
  if (kAllBarriers) __syncthreads();
  values[threadIdx.x] = expf(logit - max);
  __syncthreads();
  float sum = 0.0f;
  for (int i = 0; i < params.columns; ++i) sum += values[i];
  params.probs[blockIdx.x * params.columns + threadIdx.x] = values[threadIdx.x] / sum;
}

// ---- the last block adds up ----

__device__ bool is_clustered(Publication publication) {
  return publication == Publication::cluster || publication == Publication::cluster_of_lone_blocks;
}

__device__ bool take_last_ticket(unsigned* ticket) {
  return atomicAdd(ticket, 1u) == gridDim.x - 1;
}

__global__ void reduction_kernel(ReductionParams params) {
  __shared__ bool last;
  const Publication publication = params.publication;
  const bool every_thread_fences = publication == Publication::fence_by_every_thread ||
                                   publication == Publication::no_barrier_after_fences;
  const bool barrier = publication != Publication::no_barrier_before_fence &&
                       publication != Publication::no_barrier_after_fences;
  const bool warps_fence = publication == Publication::fence_by_warps;
  const bool one_thread_fences =
      !every_thread_fences && !warps_fence && publication != Publication::no_fence;
  const bool clustered = is_clustered(publication);
  const bool ticket_first = publication == Publication::ticket_first;
  const unsigned i = blockIdx.x * blockDim.x + threadIdx.x, threads = gridDim.x * blockDim.x;

  if (threadIdx.x == 0 && ticket_first) last = take_last_ticket(params.ticket);
  int sum = 0;
  for (int at = static_cast<int>(i); at < params.size; at += static_cast<int>(threads)) {
    sum += params.values[at];
  }
  global_store(&params.partials[i], sum);
  if (every_thread_fences) __threadfence();
  if (warps_fence) {
    __syncwarp();
    if (threadIdx.x % warpSize == 0) __threadfence();
  }
  if (barrier) __syncthreads();
  if (publication == Publication::cluster) emulation::cluster_barrier(emulation::Site::here());
  if (threadIdx.x == 0 && clustered) last = blockIdx.x == 0;
  if (threadIdx.x == 0 && !clustered) {
    if (one_thread_fences) __threadfence();
    if (!ticket_first) last = take_last_ticket(params.ticket);
  }
  __syncthreads();
  if (!last || threadIdx.x != 0) return;
  __threadfence();
  int total = 0;
  for (unsigned at = 0; at < threads; ++at) total += global_load(&params.partials[at]);
  *params.sum = total;
}

// ---- misuse ----

int guards = 0;

struct Guard {
  Guard() { ++guards; }
  ~Guard() { --guards; }
};

template <typename T>
__device__ float unwritten() {
  __shared__ T values[8];
  if (threadIdx.x == 1000) values[0] = 1;
  return static_cast<float>(values[threadIdx.x % 8]);
}

__device__ __attribute__((noinline)) float* as_pointer(float* values) { return values; }

__global__ void misuse_kernel(MisuseParams params) {
  __shared__ float values[8];
  auto* dynamic = static_cast<float*>(emulation::dynamic_shared());
  const Guard guard;
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
    case Misuse::uninitialised_static:
      if (thread > 8) values[0] = x;
      x = values[thread % 8];
      break;
    case Misuse::uninitialised_dynamic:
      x = dynamic[thread];
      break;
    case Misuse::uninitialised_in_template:
      x = unwritten<float>();
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
    case Misuse::throws:
      __syncthreads();
      if (thread == 7) throw std::out_of_range("thrown by thread 7");
      __syncthreads();
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
    case Misuse::weak_load_of_a_counter:
      atomicAdd(reinterpret_cast<unsigned*>(params.out), 1u);
      x = global_load(&params.out[0]);
      break;
    case Misuse::copy_not_waited_for:
    case Misuse::copy_of_the_last_group_not_waited_for:
      for (int group = 0; group < 2; ++group) {
        emulation::async_copy(dynamic + 4 * thread, params.out);
        emulation::async_commit();
        emulation::async_wait(params.misuse == Misuse::copy_not_waited_for ? 2 : group);
        x = dynamic[4 * thread];
      }
      emulation::async_wait(0);
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
    case Misuse::copy_of_17_bytes:
      emulation::async_copy_part(dynamic + 4 * thread, params.out, 17);
      break;
    case Misuse::none:
      break;
  }
  params.out[blockIdx.x * blockDim.x + thread] = x;
}

// ---- schedules ----

__global__ void order_kernel(OrderParams params) {
  params.order[blockIdx.x * blockDim.x + threadIdx.x] = atomicAdd(params.counter, 1u);
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
  write(100 * __ffs(static_cast<int>(thread)) + __clz(static_cast<int>(thread)));
}

}  // namespace

void launch_softmax(const SoftmaxParams& params, int rows, int threads, bool all_barriers) {
  emulation::launch(all_barriers ? softmax_kernel<true> : softmax_kernel<false>, rows, threads, 0,
                    params);
}

void launch_shared_softmax(const SoftmaxParams& params, int rows, bool all_barriers) {
  emulation::launch(all_barriers ? shared_softmax_kernel<true> : shared_softmax_kernel<false>, rows,
                    params.columns, 0, params);
}

void launch_reduction(const ReductionParams& params, int blocks, int threads) {
  const unsigned cluster = is_clustered(params.publication) ? blocks : 1;
  emulation::launch(reduction_kernel, blocks, threads, 0, params, {cluster, false});
}

void launch_misuse(const MisuseParams& params, int blocks, int threads, size_t dynamic_bytes,
                   int allowed_bytes) {
  const auto* kernel = reinterpret_cast<const void*>(misuse_kernel);
  emulation::introduce(kernel, "misuse_kernel", 128);
  if (allowed_bytes > 0 && cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                                allowed_bytes) != cudaSuccess) {
    throw emulation::Error("the driver refuses " + std::to_string(allowed_bytes) + " bytes");
  }
  const bool early = params.misuse == Misuse::early_without_a_wait ||
                     params.misuse == Misuse::early_copy_before_the_wait;
  emulation::launch(misuse_kernel, blocks, threads, dynamic_bytes, params, {1, early});
}

int live_guards() { return guards; }

void launch_order(const OrderParams& params, int blocks, int threads) {
  emulation::launch(order_kernel, blocks, threads, 0, params);
}

void launch_primitives(const PrimitivesParams& params, int threads) {
  emulation::launch(primitives_kernel, 1, threads, 0, params);
}
