// The names of all kernels, which NVRTC compiles them by, and what Python is told of them.

#include "plan.h"

namespace rdk {
namespace {

#define RDK_NAME(...) #__VA_ARGS__
constexpr const char* kDraft[] = {RDK_DRAFT_KERNELS(RDK_NAME)};
constexpr const char* kGatherLogits[] = {RDK_GATHER_LOGITS_KERNELS(RDK_NAME)};
constexpr const char* kRedistribute[] = {RDK_REDISTRIBUTE_KERNELS(RDK_NAME)};
constexpr const char* kStepKeys[] = {RDK_STEP_KEYS_KERNELS(RDK_NAME)};
constexpr const char* kVerify[] = {RDK_VERIFY_KERNELS(RDK_NAME)};
constexpr const char* kVerifyTree[] = {RDK_VERIFY_TREE_KERNELS(RDK_NAME)};

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

const char* kernel_name(const DraftLaunch& launch) { return kDraft[launch.kernel()]; }
const char* kernel_name(const GatherLogitsLaunch& launch) { return kGatherLogits[launch.kernel()]; }
const char* kernel_name(const RedistributeLaunch& launch) { return kRedistribute[launch.kernel()]; }
const char* kernel_name(const StepKeysLaunch& launch) { return kStepKeys[launch.kernel()]; }
const char* kernel_name(const VerifyLaunch& launch) { return kVerify[launch.kernel()]; }
const char* kernel_name(const VerifyTreeLaunch& launch) { return kVerifyTree[launch.kernel()]; }

std::string kernels_as_json() {
  return "{" + entry<DraftLaunch>("draft", "DraftLaunch", kDraft) + ", " +
         entry<GatherLogitsLaunch>("gather_logits", "GatherLogitsLaunch", kGatherLogits) + ", " +
         entry<RedistributeLaunch>("redistribute", "RedistributeLaunch", kRedistribute) + ", " +
         entry<StepKeysLaunch>("step_keys", "StepKeysLaunch", kStepKeys) + ", " +
         entry<VerifyLaunch>("verify", "VerifyLaunch", kVerify) + ", " +
         entry<VerifyTreeLaunch>("verify_tree", "VerifyTreeLaunch", kVerifyTree) + "}";
}

}  // namespace rdk
