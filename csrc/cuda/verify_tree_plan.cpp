// How verify_tree is launched on a GPU: a block for each sequence, which reads one row after the
// other, because only the token drawn from a row says which one is next.

#include "workspace.h"

namespace rdk {
namespace {

constexpr int kWarps = VerifyTreeLaunch::kThreads / kWarp;
static_assert(VerifyTreeLaunch::kStaticSharedBytes + kWarps * kRingBytes <= kAlwaysAllowed);
static_assert(kThresholdBytes <= kWarps * kRingBytes, "it lies where the rings were");

}  // namespace

void plan(const Machine&, VerifyTreeLaunch* launch) {
  place(nullptr, launch);
  launch->shape.blocks = launch->params.sequences;
  launch->shape.threads = VerifyTreeLaunch::kThreads;
  launch->shape.shared_bytes = kWarps * kRingBytes;
  launch->shape.allowed_bytes = 0;
}

void place(void* workspace, VerifyTreeLaunch* launch) {
  const VerifyTreeParams& params = launch->params;
  WorkspaceParts parts(workspace);
  launch->shape.zeroed_bytes = 0;
  launch->chunks = parts.take<ChunkSum>(params.sequences * chunks_of(params.target.size));
  launch->shape.workspace_bytes = parts.bytes();
}

}  // namespace rdk
