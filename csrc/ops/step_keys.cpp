#include <limits>

#include "backend.h"
#include "checks.h"
#include "registration.h"

namespace rdk::ops {

Tensor step_keys(const Tensor& seeds, const Tensor& positions, int64_t stage) {
  const Checks checks("step_keys", "seeds", seeds);
  checks.present("seeds", seeds);
  const Shape shape = shape_of(seeds);
  checks.plain("seeds", seeds, {ScalarType::Long}, shape, "any shape");
  checks.plain("positions", positions, {ScalarType::Long}, shape, "the shape of seeds");
  if (stage < 0 || stage > std::numeric_limits<uint32_t>::max()) {
    checks.refuse("stage", "is " + std::to_string(stage), "0 or more, below 2^32");
  }
  const Tensor result = empty(seeds, shape);
  const StepKeysParams params{seeds.const_data_ptr<int64_t>(), positions.const_data_ptr<int64_t>(),
                              result.mutable_data_ptr<int64_t>(), shape.product(),
                              static_cast<uint32_t>(stage)};
  run(params, seeds);
  return result;
}

}  // namespace rdk::ops

RDK_REGISTER(step_keys,
             "step_keys(Tensor seeds, Tensor positions, int stage=0) -> Tensor step_keys")
