// The random choices of a schedule.
#pragma once

#include <cstdint>

namespace emulation {

class Random {  // SplitMix64
 public:
  explicit Random(uint64_t seed) : state_(seed) {}

  uint64_t next() {
    uint64_t x = state_ += 0x9E3779B97F4A7C15ull;
    x = (x ^ x >> 30) * 0xBF58476D1CE4E5B9ull;
    x = (x ^ x >> 27) * 0x94D049BB133111EBull;
    return x ^ x >> 31;
  }
  uint32_t below(uint32_t limit) { return static_cast<uint32_t>((next() >> 32) * limit >> 32); }
  bool coin() { return next() >> 63 != 0; }

 private:
  uint64_t state_;
};

}  // namespace emulation
