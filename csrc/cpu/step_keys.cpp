// step_keys: a fresh key for every decoding step (DESIGN, "A fresh key per decoding step").

#include "../common/philox.h"
#include "operators.h"

namespace rdk::cpu {

void step_keys(const StepKeysParams& params, const Threads&) {
  for (int64_t i = 0; i < params.count; ++i) {
    params.step_keys[i] = step_key(params.seeds[i], params.positions[i], params.stage);
  }
}

}  // namespace rdk::cpu
