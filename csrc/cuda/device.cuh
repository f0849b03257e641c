// What all device code starts from.
#pragma once

#include "../common/validity.h"
#include "compat.cuh"
#include "launch.h"

namespace rdk {

constexpr unsigned kAllLanes = 0xffffffffu;

RDK_DEVICE int lane_index() { return threadIdx.x % kWarp; }
// By all lanes of a warp: the shuffle tells the compiler that they have the same, so that branches
// on it are uniform and collectives behind them need no code for lanes that went another way.
RDK_DEVICE int warp_index() {
  return __shfl_sync(kAllLanes, static_cast<int>(threadIdx.x / kWarp), 0);
}

RDK_DEVICE float infinity() { return __uint_as_float(0x7f800000u); }
RDK_DEVICE float not_a_number() { return __uint_as_float(0x7fffffffu); }

}  // namespace rdk
