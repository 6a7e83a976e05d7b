// SPDX-License-Identifier: Apache-2.0
#include "cpu/plan.hpp"

#include <algorithm>
#include <thread>

#include "cpu/worker.hpp"

namespace keysieve::cpu {
namespace {

constexpr int64_t kMaxBlockRows = 32;
constexpr int64_t kMinSharedRows = 4;        // fewer rows would decode the keys too often
constexpr int64_t kRowBytesAim = 512 << 10;  // packed queries of a block stay in a core's own cache
constexpr double kWorkPerThread = 4e6;       // multiply-adds that are worth starting a thread

int64_t ceil_div(int64_t a, int64_t b) {
  return (a + b - 1) / b;
}

Plan empty_plan(const Problem& problem) {
  Plan plan;
  if (problem.selects()) {
    plan.topk_limit = std::min(problem.topk, problem.num_keys);
  }
  if (problem.candidates == Candidates::kPublish) {
    plan.block_limit = std::min(problem.cand_count, ceil_div(problem.num_keys, problem.cand_block));
  }
  return plan;
}

/// Scratch of one worker for plan.block_rows rows, counted by the code that takes it.
size_t measure_worker(const Problem& problem, const Isa& isa, const Plan& plan) {
  Call call;
  call.problem = problem;
  Arena counter(nullptr);
  const Worker worker(call, isa, plan, counter);
  return counter.used();
}

double multiply_adds(const Problem& problem) {
  const double pairs = static_cast<double>(problem.num_rows) * static_cast<double>(problem.num_keys);
  // Selecting from given scores costs about as much as 64 multiply-adds a score.
  return problem.scores_keys() ? pairs * static_cast<double>(problem.num_heads) * static_cast<double>(problem.head_dim)
                               : pairs * 64;
}

int max_workers(const Problem& problem, const Options& options) {
  const int machine = static_cast<int>(std::max(1U, std::thread::hardware_concurrency()));
  const int wanted = options.threads > 0 ? options.threads : machine;
  const double useful = 1 + multiply_adds(problem) / kWorkPerThread;
  return useful < wanted ? static_cast<int>(useful) : wanted;
}

void set_parts(const Problem& problem, Plan* plan) {
  const int64_t blocks = std::max<int64_t>(1, plan->num_blocks(problem.num_rows));
  const bool can_split = problem.candidates != Candidates::kConsume;
  plan->num_parts = can_split ? ceil_div(plan->num_workers, blocks) : 1;
  const int64_t entries = 2 + plan->topk_limit + plan->block_limit;
  plan->partial_bytes = plan->num_parts == 1 || !problem.selects()
                            ? 0
                            : static_cast<size_t>(problem.num_rows * plan->num_parts * entries) * sizeof(uint64_t);
}

}  // namespace

Plan minimal_plan(const Problem& problem, const Isa& isa) {
  Plan plan = empty_plan(problem);
  plan.worker_bytes = measure_worker(problem, isa, plan);
  return plan;
}

Plan preferred_plan(const Problem& problem, const Options& options, const Isa& isa) {
  Plan plan = empty_plan(problem);
  plan.num_workers = max_workers(problem, options);
  const int64_t share = ceil_div(problem.num_rows, plan.num_workers);
  plan.block_rows =
      std::clamp<int64_t>(share, std::min(kMinSharedRows, std::max<int64_t>(problem.num_rows, 1)), kMaxBlockRows);
  if (problem.scores_keys()) {
    const int64_t row_bytes = problem.num_heads * num_words(isa.words(), problem.head_dim) * 4;
    plan.block_rows = std::clamp<int64_t>(kRowBytesAim / row_bytes, 1, plan.block_rows);
  } else {
    plan.block_rows = 1;
  }
  plan.worker_bytes = measure_worker(problem, isa, plan);
  set_parts(problem, &plan);
  return plan;
}

Plan plan_for_workspace(const Problem& problem, const Options& options, const Isa& isa, size_t workspace_bytes) {
  Plan plan = preferred_plan(problem, options, isa);
  if (plan.total_bytes() <= workspace_bytes) {
    return plan;
  }
  // Fewer rows a block first, then fewer workers, and no parts.
  plan.num_parts = 1;
  plan.partial_bytes = 0;
  while (plan.total_bytes() > workspace_bytes && (plan.block_rows > 1 || plan.num_workers > 1)) {
    if (plan.block_rows > 1) {
      plan.block_rows /= 2;
      plan.worker_bytes = measure_worker(problem, isa, plan);
    } else {
      --plan.num_workers;
    }
  }
  return plan;
}

}  // namespace keysieve::cpu
