// step_seeds: a fresh key for every decoding step (DESIGN.md, "A fresh key per decoding step").

#include "../kernels/philox.h"
#include "operators.h"

namespace rdk::cpu {

void step_seeds(const StepSeedsParams& params, int64_t begin, int64_t end) {
  for (int64_t i = begin; i < end; ++i) {
    params.step_seeds[i] = step_seed(params.seeds[i], params.positions[i]);
  }
}

}  // namespace rdk::cpu
