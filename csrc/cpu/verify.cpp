// verify: one step of each sequence, by token or by block.

#include "operators.h"
#include "verify_methods.h"

namespace rdk::cpu {

void verify(const VerifyParams& params, const Threads& threads) {
  for_each_row<VerifyScratch>(
      threads, params.sequences.count, params.affinity.target_size,
      [&](int64_t sequence, const Threads& for_sequence, VerifyScratch* scratch) {
        VerifyOutput output(params, sequence, for_sequence, &scratch->raw);
        decide(VerifyStep(params, sequence), for_sequence, scratch, &output);
      });
}

}  // namespace rdk::cpu
