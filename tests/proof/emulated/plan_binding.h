// Gives a pybind11 module the plans of launches, for problems of any size: nothing is allocated.
//   plan_redistribute(machine, rows=1, draft_size=1, target_size=1, dynamic_size=0, limits=False)
// and its like; machine is (multiprocessors, shared bytes, blocks of a cluster), the result a dict.
// S has an entry for each target token.
#pragma once

#include <pybind11/pybind11.h>

#include <algorithm>
#include <tuple>

#include "cuda/plan.h"

namespace emulation {

using MachineFacts = std::tuple<int64_t, int64_t, int64_t>;

template <typename Launch>
pybind11::dict planned(const MachineFacts& machine, Launch* launch) {
  const auto [multiprocessors, shared_bytes, cluster] = machine;
  const rdk::Workspace workspace = plan({multiprocessors, shared_bytes, cluster, false}, launch);
  using pybind11::arg;
  return pybind11::dict(
      arg("kernel") = kernel_name(*launch), arg("blocks") = launch->shape.blocks,
      arg("threads") = launch->shape.threads, arg("shared_bytes") = launch->shape.shared_bytes,
      arg("workspace_bytes") = workspace.bytes(), arg("ticket_bytes") = launch->shape.ticket_bytes,
      arg("cluster") = std::max<int64_t>(1, launch->shape.cluster),
      arg("allowed_bytes") = launch->shape.allowed_bytes);
}

inline rdk::DraftColumns draft_columns(int64_t draft_size, int64_t dynamic_size) {
  rdk::DraftColumns columns{};
  columns.draft_size = draft_size;
  columns.dynamic_size = dynamic_size;
  return columns;
}

inline void bind_plans(pybind11::module_& module) {
  using pybind11::arg;
  module.def(
      "plan_redistribute",
      [](const MachineFacts& machine, int64_t rows, int64_t draft_size, int64_t target_size,
         int64_t dynamic_size, bool limits) {
        rdk::RedistributeLaunch launch{};
        launch.params.truncation.given = limits;
        launch.params.rows = rows;
        launch.params.draft = draft_columns(draft_size, dynamic_size);
        launch.params.affinity.target_size = target_size;
        launch.params.affinity.entries = target_size;
        pybind11::dict result = planned(machine, &launch);
        result["tiles"] = launch.tiles;
        result["tile"] = launch.tile;
        result["group"] = launch.group;
        result["shared_weights"] = launch.shared_weights;
        return result;
      },
      arg("machine"), arg("rows") = 1, arg("draft_size") = 1, arg("target_size") = 1,
      arg("dynamic_size") = 0, arg("limits") = false);
  module.def(
      "plan_draft",
      [](const MachineFacts& machine, int64_t rows, int64_t draft_size, int64_t dynamic_size,
         bool limits) {
        rdk::DraftLaunch launch{};
        launch.params.truncation.given = limits;
        launch.params.rows = rows;
        launch.params.draft = draft_columns(draft_size, dynamic_size);
        pybind11::dict result = planned(machine, &launch);
        result["splits"] = launch.splits;
        return result;
      },
      arg("machine"), arg("rows") = 1, arg("draft_size") = 1, arg("dynamic_size") = 0,
      arg("limits") = false);
  module.def(
      "plan_verify",
      [](const MachineFacts& machine, int64_t sequences, int64_t num_drafts, int64_t max_draft,
         int64_t draft_size, int64_t target_size, int64_t dynamic_size, int64_t rank) {
        rdk::VerifyLaunch launch{};
        launch.params.sequences.count = sequences;
        launch.params.drafts.count = num_drafts;
        launch.params.max_draft = max_draft;
        launch.params.draft = draft_columns(draft_size, dynamic_size);
        launch.params.affinity.target_size = target_size;
        launch.params.affinity.rank = rank;
        pybind11::dict result = planned(machine, &launch);
        result["splits"] = launch.splits;
        return result;
      },
      arg("machine"), arg("sequences") = 1, arg("num_drafts") = 1, arg("max_draft") = 1,
      arg("draft_size") = 1, arg("target_size") = 1, arg("dynamic_size") = 0, arg("rank") = 0);
  module.def(
      "plan_verify_tree",
      [](const MachineFacts& machine, int64_t sequences, int64_t target_size, bool drawn,
         bool by_block) {
        const int32_t row = 0;
        rdk::VerifyTreeLaunch launch{};
        launch.params.sequences.count = sequences;
        launch.params.target.size = target_size;
        launch.params.affinity.target_size = target_size;
        launch.params.draft_rows.index = drawn ? &row : nullptr;
        launch.params.method = by_block ? rdk::Method::kBlock : rdk::Method::kToken;
        return planned(machine, &launch);
      },
      arg("machine"), arg("sequences") = 1, arg("target_size") = 1, arg("drawn") = false,
      arg("by_block") = false);
  module.def(
      "plan_sum_shard",
      [](const MachineFacts& machine, int64_t sequences, int64_t max_draft, int64_t chunks) {
        rdk::SumShardLaunch launch{};
        launch.params.sequences = sequences;
        launch.params.max_draft = max_draft;
        launch.params.shard.count = chunks;
        pybind11::dict result = planned(machine, &launch);
        result["splits"] = launch.splits;
        return result;
      },
      arg("machine"), arg("sequences") = 1, arg("max_draft") = 1, arg("chunks") = 1);
  module.def(
      "plan_verify_shard",
      [](const MachineFacts& machine, int64_t sequences) {
        rdk::VerifyShardLaunch launch{};
        launch.params.sequences.count = sequences;
        return planned(machine, &launch);
      },
      arg("machine"), arg("sequences") = 1);
  module.def(
      "plan_overlap",
      [](const MachineFacts& machine, int64_t rows, int64_t draft_size, int64_t target_size) {
        rdk::OverlapLaunch launch{};
        launch.params.rows = rows;
        launch.params.draft = draft_columns(draft_size, 0);
        launch.params.target.size = target_size;
        pybind11::dict result = planned(machine, &launch);
        result["shared_weights"] = launch.shared_weights;
        return result;
      },
      arg("machine"), arg("rows") = 1, arg("draft_size") = 1, arg("target_size") = 1);
  module.def(
      "plan_overlap_backward",
      [](const MachineFacts& machine, int64_t rows, int64_t draft_size, int64_t target_size) {
        rdk::OverlapBackwardLaunch launch{};
        launch.params.rows = rows;
        launch.params.draft = draft_columns(draft_size, 0);
        launch.params.draft.target_size = target_size;
        pybind11::dict result = planned(machine, &launch);
        result["splits"] = launch.splits;
        result["shared_below"] = launch.shared_below;
        return result;
      },
      arg("machine"), arg("rows") = 1, arg("draft_size") = 1, arg("target_size") = 1);
  module.def(
      "plan_gather_logits",
      [](const MachineFacts& machine, int64_t rows, int64_t tokens_per_row) {
        rdk::GatherLogitsLaunch launch{};
        launch.params.rows = rows;
        launch.params.tokens_per_row = tokens_per_row;
        pybind11::dict result = planned(machine, &launch);
        result["splits"] = launch.splits;
        result["together"] = launch.together;
        return result;
      },
      arg("machine"), arg("rows") = 1, arg("tokens_per_row") = 1);
}

}  // namespace emulation
