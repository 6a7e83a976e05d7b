// SPDX-License-Identifier: Apache-2.0
// How a call is cut into tasks and how much scratch that takes: a function of the problem, the options and the size
// of the workspace.
//
// A task is a block of consecutive rows times a part of their keys.  Rows come in blocks so that a panel of keys is
// decoded once for all of them; keys are split only if there are fewer blocks than threads.
#pragma once

#include <cstdint>

#include "core/problem.hpp"
#include "cpu/scorer.hpp"

namespace keysieve::cpu {

struct Plan {
  int num_workers = 1;
  int64_t block_rows = 1;
  int64_t num_parts = 1;
  int64_t topk_limit = 0;    // min(K, N)
  int64_t block_limit = 0;   // candidate blocks kept, if published
  size_t worker_bytes = 0;   // scratch of one worker
  size_t partial_bytes = 0;  // top entries of all rows' parts, if there are parts

  [[nodiscard]] int64_t num_blocks(int64_t num_rows) const { return (num_rows + block_rows - 1) / block_rows; }
  [[nodiscard]] size_t total_bytes() const {
    return Arena::kAlignment + static_cast<size_t>(num_workers) * worker_bytes + partial_bytes;
  }
};

/// The plan that is fastest, and the one that fits anywhere.
Plan preferred_plan(const Problem& problem, const Options& options, const Isa& isa);
Plan minimal_plan(const Problem& problem, const Isa& isa);

/// The best plan for a workspace of at least minimal_plan's size.
Plan plan_for_workspace(const Problem& problem, const Options& options, const Isa& isa, size_t workspace_bytes);

}  // namespace keysieve::cpu
