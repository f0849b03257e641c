// name_tokens: the pruned tokens that a row offers by name. Memory floor: 4 or 8 bytes for each id
// of the window, 5 for each successor, and 4 for each column.

#include <algorithm>
#include <vector>

#include "../common/named_tokens.h"
#include "operators.h"

namespace rdk::cpu {
namespace {

void name_row(const NameTokensParams& params, int64_t row, const TokenTable& named) {
  const NewestFirst text(params, row);
  const Successors following(params, text);
  std::fill_n(named.places, named.size(), -1);
  int32_t* const tokens = params.tokens + row * params.width;
  int64_t count = 0;
  const auto name = [&](int64_t id) {
    if (!params.may_name(id)) return;
    const int32_t token = static_cast<int32_t>(id);
    int32_t& place = named.places[named.find(token)];
    if (place >= 0) return;
    place = tokens[count++] = token;
  };
  const int64_t recent = std::min(params.recent, params.width);
  for (int64_t k = 0; k < std::min(text.count(), params.window) && count < recent; ++k) {
    name(text[k]);
  }
  for (int64_t k = 0; k < following.count && count < params.width; ++k) name(following.tokens[k]);
  std::fill(tokens + count, tokens + params.width, -1);
}

}  // namespace

void name_tokens(const NameTokensParams& params, const Threads& threads) {
  const int bits = table_bits(params.width);
  const int64_t of_row = std::min(params.longest, params.window) + 2 * params.width;
  share_out(threads.for_columns(params.rows * of_row), params.rows, [&](Units& units) {
    std::vector<int32_t> places(size_t{1} << bits);
    for (int64_t row; units.claim(&row);) name_row(params, row, {places.data(), bits});
  });
}

}  // namespace rdk::cpu
