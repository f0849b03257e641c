// verify_tree: from the root on, the drawn nodes that follow each other are judged as the drafts of
// a chain are. The token behind the accepted ones leads on to a fixed child, if there is one, and
// from there it begins anew (DESIGN section 2, "Trees"). Memory floor: the target logits of the
// nodes on the path and, by block, of the drawn nodes that are judged, once.

#include <algorithm>
#include <vector>

#include "operators.h"
#include "verify_methods.h"

namespace rdk::cpu {
namespace {

constexpr int32_t kNone = -1;

struct TreeScratch : VerifyScratch {
  std::vector<int32_t> drawn;  // the child of each node that counts as drawn, the root's first
};

// Nodes count from the sequence's first, the root is -1, and no child comes before its parent.
class Tree {
 public:
  // Without `drawn` all nodes are fixed.
  Tree(const VerifyTreeParams& params, int64_t sequence, std::vector<int32_t>* drawn)
      : params_(params), nodes_(owned(params.drafts, sequence)) {
    if (drawn == nullptr) return;
    drawn->assign(nodes_.count + 1, kNone);
    drawn_ = drawn->data() + 1;
    for (int32_t node = 0; node < nodes_.count; ++node) {
      const int32_t parent = params.parents[nodes_.start + node];
      if (parent < -1 || parent >= node || is_fixed(node) || token(node) == -1) continue;
      if (drawn_[parent] == kNone) drawn_[parent] = node;
    }
  }

  // Writes the drawn nodes that follow the last of `depth` nodes, and returns where they end.
  int64_t follow_drawn(int32_t* path, int64_t depth) const {
    if (drawn_ == nullptr) return depth;
    int32_t node = depth == 0 ? kNone : path[depth - 1];
    for (; depth < params_.max_draft && drawn_[node] != kNone; ++depth) {
      node = path[depth] = drawn_[node];
    }
    return depth;
  }

  // The first fixed child with this token.
  int32_t fixed_child(int32_t node, int64_t token_id) const {
    for (int32_t child = node + 1; child < nodes_.count; ++child) {
      if (params_.parents[nodes_.start + child] == node && token(child) == token_id &&
          is_fixed(child)) {
        return child;
      }
    }
    return kNone;
  }

 private:
  int64_t token(int32_t node) const { return params_.drafts.token_ids[nodes_.start + node]; }
  bool is_fixed(int32_t node) const {
    return drawn_ == nullptr || params_.draft_rows.index[nodes_.start + node] == -1;
  }

  const VerifyTreeParams& params_;
  Owned nodes_;
  int32_t* drawn_ = nullptr;
};

void verify_sequence(const VerifyTreeParams& params, int64_t sequence, const Threads& threads,
                     TreeScratch* scratch) {
  VerifyStep step(params, sequence);
  VerifyOutput output(params, sequence, threads, &scratch->raw);
  // At temperature 0 it does not matter how a node came about.
  const bool draws = params.mixed() && !step.greedy();
  const Tree tree(params, sequence, draws ? &scratch->drawn : nullptr);
  int32_t* path = params.path + sequence * params.max_draft;
  std::fill_n(path, params.max_draft, kNone);
  int64_t depth = 0;
  for (uint32_t nesting = 0;; ++nesting) {
    const int64_t end = tree.follow_drawn(path, depth);
    step.follow(path, depth, end, nesting);
    const Decided decided = decide(step, threads, scratch, &output);
    depth = decided.accepted;
    if (depth < end) std::fill(path + depth, path + end, kNone);
    if (decided.token == -1 || depth == params.max_draft) return;
    const int32_t child = tree.fixed_child(depth == 0 ? kNone : path[depth - 1], decided.token);
    if (child == kNone) return;
    path[depth] = child;
    output.accept(++depth);
  }
}

}  // namespace

void verify_tree(const VerifyTreeParams& params, const Threads& threads) {
  for_each_row<TreeScratch>(
      threads, params.sequences.count, params.target.size,
      [&](int64_t sequence, const Threads& for_sequence, TreeScratch* scratch) {
        verify_sequence(params, sequence, for_sequence, scratch);
      });
}

}  // namespace rdk::cpu
