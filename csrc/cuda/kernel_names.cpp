// The instantiations of the kernels, by the names that nvcc, NVRTC and people know them by.

#include "plan.h"

namespace rdk {
namespace {

// By Dtype; verify has one more, for logits of two dtypes.
constexpr const char* kDraft[] = {"draft_kernel<float>", "draft_kernel<Float16Bits>",
                                  "draft_kernel<BFloat16Bits>"};
constexpr const char* kGatherLogits[] = {"gather_logits_kernel<float>",
                                         "gather_logits_kernel<Float16Bits>",
                                         "gather_logits_kernel<BFloat16Bits>"};
constexpr const char* kRedistribute[] = {"redistribute_kernel<float>",
                                         "redistribute_kernel<Float16Bits>",
                                         "redistribute_kernel<BFloat16Bits>"};
constexpr const char* kStepKeys[] = {"step_keys_kernel"};
constexpr const char* kVerify[] = {
    "verify_kernel<float, float>", "verify_kernel<Float16Bits, Float16Bits>",
    "verify_kernel<BFloat16Bits, BFloat16Bits>", "verify_kernel<AnyDtype, AnyDtype>"};
constexpr int kTwoDtypes = 3;

int index(Dtype dtype) { return static_cast<int>(dtype); }

template <typename Launch, size_t kCount>
std::string entry(const char* operator_name, const char* launch,
                  const char* const (&names)[kCount]) {
  std::string list;
  for (const char* name : names) list += (list.empty() ? "\"" : ", \"") + std::string(name) + "\"";
  return "\"" + std::string(operator_name) + "\": {\"launch\": \"" + launch +
         "\", \"launch_bytes\": " + std::to_string(sizeof(Launch)) +
         ", \"static_shared_bytes\": " + std::to_string(Launch::kStaticSharedBytes) +
         ", \"kernels\": [" + list + "]}";
}

}  // namespace

const char* kernel_name(const DraftLaunch& launch) {
  return kDraft[index(launch.params.draft.dtype)];
}

const char* kernel_name(const GatherLogitsLaunch& launch) {
  return kGatherLogits[index(launch.params.dtype)];
}

const char* kernel_name(const RedistributeLaunch& launch) {
  return kRedistribute[index(launch.params.draft.dtype)];
}

const char* kernel_name(const StepKeysLaunch&) { return kStepKeys[0]; }

const char* kernel_name(const VerifyLaunch& launch) {
  const Dtype dtype = launch.params.target_dtype;
  return kVerify[launch.params.draft.dtype == dtype ? index(dtype) : kTwoDtypes];
}

std::string kernels_as_json() {
  return "{" + entry<DraftLaunch>("draft", "DraftLaunch", kDraft) + ", " +
         entry<GatherLogitsLaunch>("gather_logits", "GatherLogitsLaunch", kGatherLogits) + ", " +
         entry<RedistributeLaunch>("redistribute", "RedistributeLaunch", kRedistribute) + ", " +
         entry<StepKeysLaunch>("step_keys", "StepKeysLaunch", kStepKeys) + ", " +
         entry<VerifyLaunch>("verify", "VerifyLaunch", kVerify) + "}";
}

}  // namespace rdk
