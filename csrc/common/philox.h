// The random stream of the whole project: Philox4x32-10 (Salmon, Moraes, Dror, Shaw, "Parallel
// random numbers: as easy as 1, 2, 3", SC 2011), keyed by the user's seed or a step's key, and
// counted by the absolute position of the token that is decided, never by a thread, block, slot or
// batch index. docs/design.md, "Random numbers", is the contract.
#pragma once

#include "host_device.h"

namespace rdk {

enum class Purpose : uint32_t {
  kStep = 0,
  kDraft = 1,
  kAccept = 2,
  kResidual = 3,
  kDirect = 4,
  kBonus = 5,
  kBlock = 6,
};

struct PhiloxWords {
  uint32_t word[4];
};

RDK_HOST_DEVICE PhiloxWords philox4x32_10(PhiloxWords counter, uint32_t key0, uint32_t key1) {
  for (int round = 0; round < 10; ++round) {
    const uint64_t product0 = 0xD2511F53ull * counter.word[0];
    const uint64_t product1 = 0xCD9E8D57ull * counter.word[2];
    counter = {{static_cast<uint32_t>(product1 >> 32) ^ counter.word[1] ^ key0,
                static_cast<uint32_t>(product1),
                static_cast<uint32_t>(product0 >> 32) ^ counter.word[3] ^ key1,
                static_cast<uint32_t>(product0)}};
    key0 += 0x9E3779B9u;
    key1 += 0xBB67AE85u;
  }
  return counter;
}

// The branch tells apart what a step decides several times at one position; its low 24 bits count.
RDK_HOST_DEVICE PhiloxWords random_words(int64_t seed, int64_t position, Purpose purpose,
                                         uint32_t attempt, uint32_t branch = 0) {
  const uint64_t key = static_cast<uint64_t>(seed);
  const uint64_t place = static_cast<uint64_t>(position);
  const PhiloxWords counter = {{static_cast<uint32_t>(place), static_cast<uint32_t>(place >> 32),
                                static_cast<uint32_t>(purpose) | branch << 8, attempt}};
  return philox4x32_10(counter, static_cast<uint32_t>(key), static_cast<uint32_t>(key >> 32));
}

// Uses 24 bits, so that the float is exact and never 1.
RDK_HOST_DEVICE float uniform(uint32_t word) {
  return static_cast<float>(word >> 8) * 5.9604644775390625e-8f;
}

// Wraps around, as the counter does; a signed sum would be undefined.
RDK_HOST_DEVICE int64_t later(int64_t position, int64_t steps) {
  return static_cast<int64_t>(static_cast<uint64_t>(position) + static_cast<uint64_t>(steps));
}

// The key of the decoding step that begins at this position, or of an inner stage of it.
RDK_HOST_DEVICE int64_t step_key(int64_t seed, int64_t position, uint32_t stage) {
  const PhiloxWords words = random_words(seed, position, Purpose::kStep, stage);
  return static_cast<int64_t>(words.word[0] | static_cast<uint64_t>(words.word[1]) << 32);
}

}  // namespace rdk
