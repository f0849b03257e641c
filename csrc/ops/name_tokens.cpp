#include "arguments.h"
#include "backend.h"
#include "registration.h"

namespace rdk::ops {

Tensor name_tokens(Given contexts, Maybe pruned, Maybe successor_offsets, Maybe successors,
                   int64_t recent, int64_t window, int64_t width, Maybe decided, Maybe drafts,
                   int64_t place, Maybe lengths, Maybe slots, Maybe place_id) {
  const Checks checks("name_tokens", "contexts", contexts);
  NameTokensParams params{};
  checks.dimensions("contexts", contexts, 2, "[S, L], the newest id last");
  checks.dtype("contexts", contexts, {ScalarType::Long, ScalarType::Int});
  params.contexts = token_ids(contexts);
  params.context_stride = checks.rows("contexts", contexts).inner_stride;
  params.slots = params.rows = contexts.size(0);
  params.longest = contexts.size(1);
  params.recent = longest(checks, "recent", recent);
  params.window = longest(checks, "window", window);
  params.place = longest(checks, "place", place);
  if (width < 0 || width > kMaxColumns) {
    checks.refuse("width", "is " + std::to_string(width), "0 to 2^28");
  }
  params.width = width;

  const char* const size_of = pruned ? "pruned" : "successor_offsets";
  constexpr int64_t kEvery = int64_t{1} << 31;  // ids that fit the result
  params.target_size = kEvery;
  if (pruned) checks.dimensions("pruned", *pruned, 1, "[V_t]");
  checks.together("successor_offsets", successor_offsets, "successors", successors);
  if (successors) {
    checks.dimensions("successor_offsets", *successor_offsets, 1, "[V_t + 1]");
    checks.dimensions("successors", *successors, 1, "[nnz]");
    params.entries = successors->size(0);
    params.target_size = successor_offsets->size(0) - 1;
  }
  if (pruned) params.target_size = pruned->size(0);
  if (params.target_size < 1 || params.target_size > kEvery) {
    checks.refuse(size_of, "is of " + std::to_string(params.target_size) + " tokens",
                  "V_t from 1 to 2^31");
  }
  if (pruned) {
    checks.plain("pruned", *pruned, {ScalarType::Bool}, {params.target_size}, "[V_t]");
    params.pruned = static_cast<const bool*>(pruned->const_data_ptr());
  }
  params.offsets = checks.data<int32_t>("successor_offsets", successor_offsets,
                                        {params.target_size + 1}, "[V_t + 1]");
  params.successors = checks.data<int32_t>("successors", successors, {params.entries}, "[nnz]");

  if (slots) {
    checks.dimensions("slots", *slots, 1, "[B]");
    params.rows = slots->size(0);
    params.slot_ids = checks.integers("slots", *slots, {params.rows}, "[B]");
  }
  if (decided) {
    checks.dimensions("decided", *decided, 2, "[B, n]");
    if (!slots) params.rows = decided->size(0);
    params.decided_size = decided->size(1);
    params.decided = checks.integers("decided", *decided, {params.rows, params.decided_size},
                                     "[B, n], a row for each of slots");
  }
  if (drafts) {
    checks.dimensions("drafts", *drafts, 2, "[M, K]");
    params.draft_slots = drafts->size(0);
    params.places = drafts->size(1);
    params.drafts = checks.data<int64_t>("drafts", drafts, shape_of(*drafts), "[M, K]");
  }
  if (lengths) params.lengths = checks.integers("lengths", *lengths, {params.slots}, "[S]");
  if (place_id) params.place_id = checks.integers("place_id", *place_id, {1}, "[1], the place");
  if (params.rows > kMaxRows) {
    checks.refuse("slots", "has " + std::to_string(params.rows) + " entries", "fewer than 2^31");
  }
  const Tensor tokens = output(contexts, {params.rows, width}, &params.tokens);
  run(params, contexts);
  return tokens;
}

}  // namespace rdk::ops

RDK_REGISTER(name_tokens,
             "name_tokens(Tensor contexts, Tensor? pruned, Tensor? successor_offsets, "
             "Tensor? successors, SymInt recent, SymInt window, SymInt width, "
             "Tensor? decided=None, Tensor? drafts=None, SymInt place=0, Tensor? lengths=None, "
             "Tensor? slots=None, Tensor? place_id=None) -> Tensor tokens")
