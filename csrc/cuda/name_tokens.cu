// name_tokens: the pruned tokens that a row offers by name (DESIGN section 4, "Name tokens").
// Memory floor: 4 or 8 bytes for each id of the window, a 32-byte sector for the flag of each, as
// much for each successor, and 4 bytes for each column: 13 KB a row of 256 ids, 64 successors and
// 128 columns, 3 ns of an H200's memory. It waits for chains of loads instead (slot, length, id,
// flag; id, offsets, successor, flag), so a warp has kTogether ids of each lane under way.
//
// A warp takes a row, and 32 ids at a time in their order, so what comes first is named first. What
// is named is in a table in shared memory. A token is new if the table lacks it and no lane below
// has it. All lanes look before any one stores, and those that store have different tokens: in
// whatever order they claim places, the same tokens are there.

#include "../common/named_tokens.h"
#include "launch_kernel.cuh"

namespace rdk {
namespace {

constexpr int kTogether = 4;

struct Named {
  TokenTable table;
  int32_t* tokens;
  int count;
};

// Names what is new of 32 tokens, one of each lane, while fewer than `most` are named.
RDK_DEVICE void name(int32_t token, int most, Named* named) {
  const unsigned below = (1u << lane_index()) - 1;
  const bool first = (__match_any_sync(kAllLanes, token) & below) == 0 && token >= 0;
  uint32_t place = first ? named->table.find(token) : 0;
  const bool is_new = first && named->table.places[place] < 0;
  const unsigned all = __ballot_sync(kAllLanes, is_new);
  __syncwarp(kAllLanes);  // a ballot orders no memory
  const int at = named->count + __popc(all & below);
  if (is_new && at < most) {
    named->tokens[at] = token;
    while (claim(&named->table.places[place], token) >= 0) place = named->table.after(place);
  }
  named->count = min(most, named->count + __popc(all));
  __syncwarp(kAllLanes);
}

__global__ void __launch_bounds__(NameTokensLaunch::kThreads)
    name_tokens_kernel(const NameTokensLaunch launch) {
  RDK_DYNAMIC_SHARED(shared);
  wait_for_earlier_kernels();
  const NameTokensParams& params = launch.params;
  const int64_t row = blockIdx.x;
  int32_t* const places = launch.tables != nullptr ? launch.tables + (row << launch.bits)
                                                   : reinterpret_cast<int32_t*>(shared);
  Named named{{places, launch.bits}, params.tokens + row * params.width, 0};
  for (uint32_t i = lane_index(); i < named.table.size(); i += kWarp) places[i] = -1;
  const NewestFirst text(params, row);
  const Successors following(params, text);
  __syncwarp(kAllLanes);
  const int width = static_cast<int>(params.width);
#pragma unroll 1
  for (int source = 0; source < 2; ++source) {
    const bool lately = source == 0;
    const int64_t count = lately ? min(text.count(), params.window) : following.count;
    const int most = lately ? static_cast<int>(min(params.recent, params.width)) : width;
#pragma unroll 1
    for (int64_t begin = 0; begin < count && named.count < most; begin += kTogether * kWarp) {
      int64_t ids[kTogether];
#pragma unroll
      for (int j = 0; j < kTogether; ++j) {
        const int64_t at = begin + j * kWarp + lane_index();
        ids[j] = at >= count ? -1 : lately ? text[at] : following.tokens[at];
      }
#pragma unroll
      for (int j = 0; j < kTogether; ++j) ids[j] = params.may_name(ids[j]) ? ids[j] : -1;
#pragma unroll
      for (int j = 0; j < kTogether; ++j) name(static_cast<int32_t>(ids[j]), most, &named);
    }
  }
  for (int at = named.count + lane_index(); at < width; at += kWarp) named.tokens[at] = -1;
}

}  // namespace

RDK_START(NameTokens, NAME_TOKENS)

}  // namespace rdk
