// What ranks hand each other of a row that they share, for CPU operators and CUDA kernels alike.
#pragma once

#include "../params.h"

namespace rdk {

// Columns of a chunk travel as floats. One that no operator wrote leads to some column.
RDK_HOST_DEVICE int column_in_chunk(float column) {
  return column >= 0.0f && column < static_cast<float>(kChunk) ? static_cast<int>(column) : 0;
}

// A try and the token it kept, so that the least is that of the first try.
RDK_HOST_DEVICE int64_t kept_at(int attempt, int64_t token) {
  return static_cast<int64_t>(attempt) << 32 | token;
}
RDK_HOST_DEVICE int64_t token_of(int64_t kept, int64_t target_size) {
  const int64_t token = kept & 0xffffffff;
  return kept >= 0 && token < target_size ? token : -1;
}

}  // namespace rdk
