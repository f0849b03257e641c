// What name_tokens does alike on the CPU and in its kernel: it reads a row's text from its end, and
// knows which tokens are named already.
#pragma once

#include "../params.h"

namespace rdk {

RDK_HOST_DEVICE int64_t within(int64_t count, int64_t most) {
  return count < 0 ? 0 : count < most ? count : most;
}

// The ids before a row's next token, the newest first: drafts, what is decided, contexts.
struct NewestFirst {
  const NameTokensParams& params;
  int64_t row;
  int64_t slot;
  int64_t drafted = 0;
  int64_t decided = 0;
  int64_t known = 0;

  RDK_HOST_DEVICE NewestFirst(const NameTokensParams& given, int64_t of_row)
      : params(given), row(of_row), slot(of_row) {
    if (params.slot_ids.data != nullptr) slot = params.slot_ids[row];
    if (slot >= 0 && slot < params.draft_slots) {
      const bool on_device = params.place_id.data != nullptr;
      drafted = within(on_device ? params.place_id[0] : params.place, params.places);
    }
    const int64_t first = row * params.decided_size;
    while (decided < params.decided_size && params.decided[first + decided] >= 0) ++decided;
    if (slot >= 0 && slot < params.slots) {
      const bool whole = params.lengths.data == nullptr;
      known = within(whole ? params.longest : params.lengths[slot], params.longest);
    }
  }
  RDK_HOST_DEVICE int64_t count() const { return drafted + decided + known; }
  RDK_HOST_DEVICE int64_t operator[](int64_t back) const {
    TokenIds ids = params.contexts;
    int64_t end = slot * params.context_stride + known + decided + drafted;
    if (back < decided + drafted) {
      ids = params.decided;
      end = row * params.decided_size + decided + drafted;
    }
    if (back < drafted) {
      ids = {params.drafts, true};
      end = slot * params.places + drafted;
    }
    return ids[end - 1 - back];
  }
};

// Those of a text's last token.
struct Successors {
  const int32_t* tokens;
  int64_t count = 0;

  RDK_HOST_DEVICE Successors(const NameTokensParams& params, const NewestFirst& text)
      : tokens(params.successors) {
    const int64_t last = text.count() > 0 ? text[0] : -1;
    if (params.offsets == nullptr || last < 0 || last >= params.target_size) return;
    const int64_t begin = within(params.offsets[last], params.entries);
    tokens += begin;
    count = within(params.offsets[last + 1], params.entries) - begin;
  }
};

// How many bits an index into a table has that is at most half full of so many tokens.
RDK_HOST_DEVICE int table_bits(int64_t tokens) {
  int bits = 5;
  while (int64_t{1} << bits < 2 * tokens) ++bits;
  return bits;
}

// Tokens that are named: 2^bits places, -1 where there is none.
struct TokenTable {
  int32_t* places;
  int bits;

  RDK_HOST_DEVICE uint32_t size() const { return uint32_t{1} << bits; }
  RDK_HOST_DEVICE uint32_t after(uint32_t place) const { return (place + 1) & (size() - 1); }
  // Where the token is, or the free place that it would take.
  RDK_HOST_DEVICE uint32_t find(int32_t token) const {
    uint32_t place = static_cast<uint32_t>(token) * 2654435769u >> (32 - bits);
    while (places[place] >= 0 && places[place] != token) place = after(place);
    return place;
  }
};

}  // namespace rdk
