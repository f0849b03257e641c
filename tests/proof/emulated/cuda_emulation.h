// What a CUDA kernel needs of CUDA, so that g++ compiles its source as C++17 and it runs on the CPU
// (docs/contributing.md, "Tests"). One block runs at a time, to its end, or blocks take
// turns, at barriers, as those of a cluster do; each of its threads is a fiber that runs until a
// barrier or a warp collective and then gives way to another, in an order that depends on a seed.
// What would be undefined on a GPU is an emulation::Error here.
//
// Beyond CUDA's own names there are
//   emulation::launch(kernel, grid, block, dynamic_shared_bytes, params, attributes)
//   emulation::introduce(kernel, name, static_bytes)   what a compiled kernel says by itself
//   emulation::dynamic_shared()           in place of extern __shared__
//   global_store(p, v), global_load(p)    for global memory that blocks exchange: weak, so that a
//                                         race within a warp, or with an atomic, is an error
//   emulation::cluster_barrier(site)      in place of barrier.cluster; cluster_arrive and
//   cluster_wait for one in two parts, which orders no memory
//   emulation::cluster_store(p, block, v), cluster_load(p)   for shared memory that the blocks of a
//                                         cluster exchange, in place of mapa and st.shared::cluster
//   emulation::wait_for_earlier_kernels() in place of griddepcontrol
//   emulation::async_copy, async_commit, async_wait    in place of cp.async
#pragma once

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <functional>
#include <stdexcept>
#include <string>
#include <type_traits>

#include "cuda_types.h"

#define __global__
#define __device__
#define __host__
#define __forceinline__ inline __attribute__((always_inline))
#define __launch_bounds__(...)
#define __align__(bytes) __attribute__((aligned(bytes)))
// noinit gathers them in one section, also where a template declares them, for poisoning.
#define __shared__ static __attribute__((noinit))

constexpr int warpSize = 32;
extern uint3 threadIdx;
extern uint3 blockIdx;
extern dim3 blockDim;
extern dim3 gridDim;

cudaError_t cudaGetDevice(int* device);
cudaError_t cudaFuncSetAttribute(const void* kernel, cudaFuncAttribute attribute, int value);

namespace emulation {

// What went wrong in a kernel: its name, block, thread and place are in what().
struct Error : std::runtime_error {
  using std::runtime_error::runtime_error;
};

enum class BlockOrder { kShuffled, kForward, kReverse };

// A launch depends on nothing else: the same options give the same schedule.
struct Options {
  uint64_t seed = 0;
  bool shuffle = true;  // the threads; false runs them in the order of their index
  BlockOrder block_order = BlockOrder::kShuffled;
  unsigned resident = 1;  // blocks that take turns
};
extern Options options;

// What a launch may have besides its shape.
struct Attributes {
  unsigned cluster = 1;  // 0: the same
  bool early = false;    // kernels before it in the stream may still run
};

// Where a kernel calls the emulator.
struct Site {
  const char* file;
  int line;
  static constexpr Site here(const char* file = __builtin_FILE(), int line = __builtin_LINE()) {
    return {file, line};
  }
};

enum class Collective { kSyncwarp, kShfl, kShflUp, kShflXor, kBallot, kAll, kMatch };

void block_barrier(Site site);
// Of a cluster; like hardware's, it does not wait for blocks that have returned.
void cluster_barrier(Site site);
void cluster_arrive(Site site);
void cluster_wait(Site site);
// In an early launch each thread comes here before it copies anything or returns.
void wait_for_earlier_kernels();

// The bits of value of the source lane; for votes, one bit of each lane whose value is not 0.
uint64_t warp_collective(Collective kind, unsigned mask, uint64_t value, unsigned source,
                         Site site);

unsigned lane();
[[noreturn]] void fail(const std::string& what, Site site);

void introduce(const void* kernel, const char* name, int64_t static_shared_bytes);
void* dynamic_shared();

void pause();  // other blocks may take a turn
void fence();
void access(const void* address, bool stores, Site site);  // before a load or a store
void store(void* address, const void* value, size_t size);
void store_atomic(void* address, const void* value, size_t size);

void store_in_block(void* shared, unsigned block, const void* value, size_t size, Site site);
void load_of_cluster(const void* shared, size_t size, Site site);

void async_copy(void* shared, const void* global, Site site = Site::here());  // 16 bytes
void async_commit();
void async_wait(unsigned groups_under_way);

cudaError_t launch_threads(const void* kernel, const std::function<void()>& thread, dim3 grid,
                           dim3 block, size_t dynamic_shared_bytes, Attributes attributes);

template <typename T>
struct Identity {
  using type = T;
};

template <typename Params>
cudaError_t launch(void (*kernel)(Params), dim3 grid, dim3 block, size_t dynamic_shared_bytes,
                   const typename Identity<Params>::type& params, Attributes attributes = {}) {
  return launch_threads(
      reinterpret_cast<const void*>(kernel), [&] { kernel(params); }, grid, block,
      dynamic_shared_bytes, attributes);
}

template <typename T>
void require_alignment(const T* address, Site site) {
  if (reinterpret_cast<uintptr_t>(address) % alignof(T) != 0) {
    fail("an access of " + std::to_string(sizeof(T)) + " bytes is not aligned", site);
  }
}

template <typename T>
T shuffle(Collective kind, unsigned mask, T value, unsigned source, Site site) {
  static_assert(std::is_arithmetic_v<T> && sizeof(T) <= sizeof(uint64_t));
  uint64_t bits = 0;
  std::memcpy(&bits, &value, sizeof(T));
  bits = warp_collective(kind, mask, bits, source, site);
  std::memcpy(&value, &bits, sizeof(T));
  return value;
}

}  // namespace emulation

// ---- launches ----

template <typename Params>
cudaError_t cudaLaunchKernelEx(const cudaLaunchConfig_t* config, void (*kernel)(Params),
                               const typename emulation::Identity<Params>::type& params) {
  emulation::Attributes attributes;
  for (unsigned i = 0; i < config->numAttrs; ++i) {
    const cudaLaunchAttribute& given = config->attrs[i];
    if (given.id == cudaLaunchAttributeClusterDimension) {
      attributes.cluster = given.val.clusterDim.x;
    } else {
      attributes.early = given.val.programmaticStreamSerializationAllowed != 0;
    }
  }
  return emulation::launch(kernel, config->gridDim, config->blockDim, config->dynamicSmemBytes,
                           params, attributes);
}

template <typename Kernel>
cudaError_t cudaFuncGetAttributes(cudaFuncAttributes* attributes, Kernel*) {
  attributes->ptxVersion = 90;
  return cudaSuccess;
}

// ---- barriers and warp collectives ----

inline void __syncthreads(emulation::Site site = emulation::Site::here()) {
  emulation::block_barrier(site);
}

inline void __syncwarp(unsigned mask = 0xffffffffu,
                       emulation::Site site = emulation::Site::here()) {
  emulation::warp_collective(emulation::Collective::kSyncwarp, mask, 0, emulation::lane(), site);
}

template <typename T>
T __shfl_sync(unsigned mask, T value, int source, emulation::Site site = emulation::Site::here()) {
  return emulation::shuffle(emulation::Collective::kShfl, mask, value, source % warpSize, site);
}

template <typename T>
T __shfl_up_sync(unsigned mask, T value, unsigned delta,
                 emulation::Site site = emulation::Site::here()) {
  const unsigned lane = emulation::lane(), from = delta <= lane ? lane - delta : lane;
  return emulation::shuffle(emulation::Collective::kShflUp, mask, value, from, site);
}

template <typename T>
T __shfl_xor_sync(unsigned mask, T value, unsigned lane_mask,
                  emulation::Site site = emulation::Site::here()) {
  const unsigned from = (emulation::lane() ^ lane_mask) % warpSize;
  return emulation::shuffle(emulation::Collective::kShflXor, mask, value, from, site);
}

inline unsigned __ballot_sync(unsigned mask, int predicate,
                              emulation::Site site = emulation::Site::here()) {
  return static_cast<unsigned>(emulation::warp_collective(emulation::Collective::kBallot, mask,
                                                          predicate != 0, emulation::lane(), site));
}
inline int __all_sync(unsigned mask, int predicate,
                      emulation::Site site = emulation::Site::here()) {
  return emulation::warp_collective(emulation::Collective::kAll, mask, predicate == 0,
                                    emulation::lane(), site) == 0;
}
inline unsigned __match_any_sync(unsigned mask, int value,
                                 emulation::Site site = emulation::Site::here()) {
  return static_cast<unsigned>(emulation::warp_collective(
      emulation::Collective::kMatch, mask, static_cast<unsigned>(value), emulation::lane(), site));
}

// ---- memory ----

template <typename T>
T __ldg(const T* address, emulation::Site site = emulation::Site::here()) {
  emulation::require_alignment(address, site);
  return *address;
}
// The block itself sees the value at once, other blocks only as fences allow.
template <typename T>
void global_store(T* address, const typename emulation::Identity<T>::type& value,
                  emulation::Site site = emulation::Site::here()) {
  static_assert(sizeof(T) <= 16, "no GPU stores more at once");
  emulation::require_alignment(address, site);
  emulation::access(address, true, site);
  emulation::store(address, &value, sizeof(T));
}

template <typename T>
T global_load(const T* address, emulation::Site site = emulation::Site::here()) {
  emulation::access(address, false, site);
  return __ldg(address, site);
}

namespace emulation {

// Into the shared memory of a block of the cluster, where this address would be its own.
template <typename T>
void cluster_store(T* shared, unsigned block, const typename Identity<T>::type& value,
                   Site site = Site::here()) {
  require_alignment(shared, site);
  store_in_block(shared, block, &value, sizeof(T), site);
}
template <typename T>
T cluster_load(const T* shared, Site site = Site::here()) {
  load_of_cluster(shared, sizeof(T), site);
  return __ldg(shared, site);
}

}  // namespace emulation

inline void __threadfence() { emulation::fence(); }

template <typename T>
T atomicAdd(T* address, typename emulation::Identity<T>::type value,
            emulation::Site site = emulation::Site::here()) {
  static_assert(std::is_integral_v<T>, "a sum of floats would depend on the order of threads");
  emulation::require_alignment(address, site);
  const T old = *address, sum = old + value;
  emulation::store_atomic(address, &sum, sizeof(T));
  return old;
}
