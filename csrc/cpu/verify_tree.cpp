// verify_tree: at each node a token is drawn from the target's p, and the child that has it is
// where the walk goes on (DESIGN section 2, "Trees with fixed children"). Memory floor: the target
// logits of the nodes on the path, once.

#include <algorithm>

#include "operators.h"
#include "target_row.h"

namespace rdk::cpu {
namespace {

constexpr int64_t kNone = -1;

// The first child with this token. Nodes count from the sequence's first, the root is -1, and no
// child comes before its parent.
int64_t child_of(const VerifyTreeParams& params, const Owned& tree, int64_t node, int64_t token) {
  for (int64_t child = node + 1; child < tree.count; ++child) {
    const int64_t place = tree.start + child;
    if (params.parents[place] == node && params.nodes.token_ids[place] == token) return child;
  }
  return kNone;
}

void verify_sequence(const VerifyTreeParams& params, int64_t sequence, const Threads& threads,
                     Softmax* softmax) {
  int64_t* tokens = params.tokens + sequence * (params.max_depth + 1);
  int32_t* path = params.path + sequence * params.max_depth;
  int32_t* num_accepted = params.num_accepted + sequence;
  std::fill_n(tokens, params.max_depth + 1, -1);
  std::fill_n(path, params.max_depth, -1);
  *num_accepted = 0;

  const Owned tree = owned(params.nodes.offsets, sequence, params.nodes.count);
  const RowLimits limits(params.sequences.truncation, sequence);
  int64_t node = kNone;  // the root
  for (int64_t depth = 0;; ++depth) {
    const TargetDistribution target(params.target, tree.start + sequence + 1 + node,
                                    params.sequences.temperature[sequence], limits, threads,
                                    softmax, &threshold_of_thread());
    if (!target.valid()) return;
    const int64_t position = later(params.sequences.positions[sequence], depth);
    tokens[depth] = target.draw(
        random_words(params.sequences.step_keys[sequence], position, Purpose::kBonus, 0));
    if (depth == params.max_depth) return;
    node = child_of(params, tree, node, tokens[depth]);
    if (node == kNone) return;
    path[depth] = static_cast<int32_t>(node);
    ++*num_accepted;
  }
}

}  // namespace

void verify_tree(const VerifyTreeParams& params, const Threads& threads) {
  for_each_row<Softmax>(threads, params.sequences.count, params.target.size,
                        [&](int64_t sequence, const Threads& for_sequence, Softmax* softmax) {
                          verify_sequence(params, sequence, for_sequence, softmax);
                        });
}

}  // namespace rdk::cpu
