// How drafts are judged, for CPU operators and CUDA kernels alike.
#pragma once

#include "validity.h"

namespace rdk {

// The q of a draft: 0 everywhere, 1 at the draft, or that of a row.
enum class DraftKind : int32_t { kUnusable, kOneHot, kRow };

// By the arguments alone: a row may still turn out to have no distribution. The temperature is read
// where it decides, which leaves kernels the load for later.
RDK_HOST_DEVICE DraftKind kind_of_draft(const VerifyParams& params, int64_t token, int row,
                                        const float& temperature) {
  if (token < 0 || token >= params.affinity.target_size) return DraftKind::kUnusable;
  if (row == -1) return DraftKind::kOneHot;
  if (row < 0 || row >= params.draft_rows.available) return DraftKind::kUnusable;
  if (temperature == 0.0f) return DraftKind::kOneHot;
  return usable_temperature(temperature) ? DraftKind::kRow : DraftKind::kUnusable;
}

// By block: how much of p a prefix claims, from c p at its last draft, c of the one before.
RDK_HOST_DEVICE float next_factor(float mass, float q) {
  if (mass == 0.0f) return 0.0f;
  return mass >= q ? 1.0f : mass / q;
}

}  // namespace rdk
