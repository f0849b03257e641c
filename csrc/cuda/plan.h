// What the host decides about a launch, the same for all ways to start it: kernels compiled by
// nvcc, by NVRTC, or run by the emulator.
#pragma once

#include <string>

#include "draft.h"
#include "gather_logits.h"
#include "redistribute.h"
#include "step_keys.h"
#include "verify.h"
#include "verify_tree.h"

namespace rdk {

// The facts of a device that decide a launch.
struct Machine {
  int64_t multiprocessors;
  int64_t shared_bytes;  // that a block may have, static and dynamic, once its kernel is allowed it
  int64_t cluster;       // the most blocks of one; 1 where the device or the starter has none
  bool early;            // whether it can launch kernels early
};

// Blocks of a thread block cluster that every device with clusters takes: CUDA's portable size.
constexpr int64_t kMostCluster = 8;

// Once a launch has its workspace.
inline bool may_be_early(const Machine& machine, const LaunchShape& shape) {
  return machine.early && shape.zeroed_bytes == 0;
}

// Decides how work is cut into blocks and how much workspace that takes: fills everything but
// params, from them.
void plan(const Machine& machine, DraftLaunch* launch);
void plan(const Machine& machine, GatherLogitsLaunch* launch);
void plan(const Machine& machine, RedistributeLaunch* launch);
void plan(const Machine& machine, StepKeysLaunch* launch);
void plan(const Machine& machine, VerifyLaunch* launch);
void plan(const Machine& machine, VerifyTreeLaunch* launch);

// Hands out the parts of the workspace; the caller clears its first zeroed_bytes. With a null
// pointer it only counts the bytes.
void place(void* workspace, DraftLaunch* launch);
void place(void* workspace, GatherLogitsLaunch* launch);
void place(void* workspace, RedistributeLaunch* launch);
void place(void* workspace, StepKeysLaunch* launch);
void place(void* workspace, VerifyLaunch* launch);
void place(void* workspace, VerifyTreeLaunch* launch);

// The kernel that is launched, as in "draft_kernel<float, Whole>": for those who compile and start
// it by name.
const char* kernel_name(const DraftLaunch& launch);
const char* kernel_name(const GatherLogitsLaunch& launch);
const char* kernel_name(const RedistributeLaunch& launch);
const char* kernel_name(const StepKeysLaunch& launch);
const char* kernel_name(const VerifyLaunch& launch);
const char* kernel_name(const VerifyTreeLaunch& launch);

// All of them, as JSON: by operator, which is the stem of the kernel's file, the struct that it is
// launched with, that struct's bytes, the static shared memory of a block, and the names.
std::string kernels_as_json();

}  // namespace rdk
