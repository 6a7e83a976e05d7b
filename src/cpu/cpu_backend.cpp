// SPDX-License-Identifier: Apache-2.0
// The CPU backend: cuts a call into tasks, runs them on threads and writes what they found.
#include <algorithm>
#include <atomic>
#include <cstdio>
#include <functional>
#include <limits>
#include <thread>

#include "core/backend.hpp"
#include "core/ordering.hpp"
#include "cpu/parallel_for.hpp"
#include "cpu/plan.hpp"
#include "cpu/worker.hpp"

namespace keysieve {
namespace cpu {
namespace {

/// A part's entries, kept until all parts of the row are there: two counts, then ranks of keys and of blocks.
class Partials {
 public:
  Partials(const Plan& plan, uint64_t* memory)
      : memory_(memory),
        num_parts_(plan.num_parts),
        topk_limit_(plan.topk_limit),
        entries_(2 + plan.topk_limit + plan.block_limit) {}

  void save(const RowSlot& slot, int64_t part) const {
    uint64_t* entry = at(slot.t, part);
    entry[0] = static_cast<uint64_t>(slot.top.count);
    entry[1] = static_cast<uint64_t>(slot.blocks.top.count);
    std::copy_n(slot.top.ranks, slot.top.count, entry + 2);
    std::copy_n(slot.blocks.top.ranks, slot.blocks.top.count, entry + 2 + topk_limit_);
  }

  /// Parts are merged in key order, so the entries stay in key order.
  void merge_into(RowSlot& slot, int64_t t) const {
    slot.top.reset();
    slot.blocks.reset();
    for (int64_t part = 0; part < num_parts_; ++part) {
      const uint64_t* entry = at(t, part);
      const uint64_t* keys = entry + 2;
      const uint64_t* blocks = keys + topk_limit_;
      std::for_each_n(keys, entry[0], [&slot](uint64_t rank) { slot.top.push(rank); });
      std::for_each_n(blocks, entry[1], [&slot](uint64_t rank) { slot.blocks.top.push(rank); });
    }
    slot.top.cut(0);
    slot.blocks.top.cut(0);
  }

 private:
  [[nodiscard]] uint64_t* at(int64_t t, int64_t part) const { return memory_ + (t * num_parts_ + part) * entries_; }

  uint64_t* memory_;
  int64_t num_parts_;
  int64_t topk_limit_;
  int64_t entries_;
};

/// Writes every output of row t.  `top` holds the row's best keys in key order.
void write_row(const Call& call, int64_t t, TopK& top, const TopK& blocks) {
  const Problem& problem = call.problem;
  const int64_t begin = row_range(call, t).begin;
  if (problem.order == Order::kScore) {
    std::sort(top.ranks, top.ranks + top.count, std::greater<>());
  }
  int32_t* indices = call.indices.row(t);
  float* top_scores = call.top_scores ? call.top_scores.row(t) : nullptr;
  int32_t* row_indices = call.row_indices ? call.row_indices.row(t) : nullptr;
  for (int64_t slot = 0; slot < problem.topk; ++slot) {
    const bool filled = slot < top.count;
    const int64_t index = filled ? index_of(top.ranks[slot]) : -1;
    indices[slot] = filled ? output_index(call, t, begin, begin + index) : -1;
    if (top_scores != nullptr) {
      top_scores[slot] =
          filled ? score_of_ordered_bits(ordered_of(top.ranks[slot])) : -std::numeric_limits<float>::infinity();
    }
    if (row_indices != nullptr) {
      row_indices[slot] = static_cast<int32_t>(index);
    }
  }
  if (call.out_count) {
    *call.out_count.row(t) = static_cast<int32_t>(top.count);
  }
  for (int64_t i = 0; problem.candidates == Candidates::kPublish && i < problem.cand_count; ++i) {
    call.cand_out.row(t)[i] = i < blocks.count ? static_cast<int32_t>(index_of(blocks.ranks[i])) : -1;
  }
}

class Run {
 public:
  Run(const Call& call, const Isa& isa, const Plan& plan) : call_(call), isa_(isa), plan_(plan) {
    const auto address = reinterpret_cast<uintptr_t>(call.workspace);
    const uintptr_t aligned = (address + Arena::kAlignment - 1) / Arena::kAlignment * Arena::kAlignment;
    workers_memory_ = call.workspace + (aligned - address);
    partials_memory_ = workers_memory_ + static_cast<size_t>(plan.num_workers) * plan.worker_bytes;
  }

  void run() {
    const int64_t num_rows = call_.problem.num_rows;
    const int64_t num_tasks = plan_.num_blocks(num_rows) * plan_.num_parts;
    parallel_for(plan_.num_workers, num_tasks, [this](int worker, int64_t task) { run_task(worker, task); });
    if (call_.problem.selects() && plan_.num_parts > 1) {
      parallel_for(plan_.num_workers, num_rows, [this](int worker, int64_t t) { merge_row(worker, t); });
    }
    if (call_.stats != nullptr) {
      call_.stats[1 * call_.stats_stride] += num_candidates_;
      call_.stats[2 * call_.stats_stride] += num_rescans_;
    }
  }

 private:
  [[nodiscard]] Worker worker_of(int index) const {
    Arena arena(workers_memory_ + static_cast<size_t>(index) * plan_.worker_bytes);
    return Worker(call_, isa_, plan_, arena);
  }

  void run_task(int worker_index, int64_t task) {
    Worker worker = worker_of(worker_index);
    const int64_t part = task % plan_.num_parts;
    const int64_t first_row = task / plan_.num_parts * plan_.block_rows;
    const int64_t last_row = std::min(first_row + plan_.block_rows, call_.problem.num_rows);
    if (!call_.problem.selects()) {
      worker.score_task(first_row, last_row, part);
      return;
    }
    worker.select_task(first_row, last_row, part);
    uint64_t candidates = 0;
    for (int64_t t = first_row; t < last_row; ++t) {
      RowSlot& slot = worker.slot(t - first_row);
      candidates += slot.top.num_let_in;
      if (plan_.num_parts == 1) {
        write_row(call_, t, slot.top, slot.blocks.top);
      } else {
        partials().save(slot, part);
      }
    }
    num_candidates_ += candidates;
    num_rescans_ += worker.num_rescans();
  }

  void merge_row(int worker_index, int64_t t) {
    Worker worker = worker_of(worker_index);
    RowSlot& slot = worker.slot(0);
    partials().merge_into(slot, t);
    write_row(call_, t, slot.top, slot.blocks.top);
  }

  [[nodiscard]] Partials partials() const { return Partials(plan_, reinterpret_cast<uint64_t*>(partials_memory_)); }

  const Call& call_;
  const Isa& isa_;
  const Plan& plan_;
  std::byte* workers_memory_;
  std::byte* partials_memory_;
  std::atomic<uint64_t> num_candidates_{0};
  std::atomic<uint64_t> num_rescans_{0};
};

class CpuBackend final : public Backend {
 public:
  [[nodiscard]] const char* name() const noexcept override { return "cpu"; }
  [[nodiscard]] DeviceType device_type() const noexcept override { return DeviceType::kCpu; }
  [[nodiscard]] Status available() const noexcept override { return {}; }

  void describe(char* text, size_t capacity) const noexcept override {
    Isa isa;
    const Status status = choose_isa(nullptr, &isa);
    if (status.ok()) {
      std::snprintf(text, capacity, "%s, tile of %d heads x %d keys, %u threads", isa.name, isa.f32.group_heads,
                    isa.f32.panel_keys, std::max(1U, std::thread::hardware_concurrency()));
    } else {
      std::snprintf(text, capacity, "%s", status.message());
    }
  }

  [[nodiscard]] Status supports(const Problem& /*problem*/, const Options& options) const noexcept override {
    Isa isa;
    return choose_isa(options.config, &isa);
  }

  [[nodiscard]] WorkspaceSize workspace_size(const Problem& problem, const Options& options) const noexcept override {
    Isa isa;
    if (!choose_isa(options.config, &isa).ok()) {
      return {};
    }
    return {minimal_plan(problem, isa).total_bytes(), preferred_plan(problem, options, isa).total_bytes()};
  }

  void explain(const Problem& problem, const Options& options, char* text, size_t capacity) const noexcept override {
    Isa isa;
    if (!choose_isa(options.config, &isa).ok()) {
      return;
    }
    const Plan plan = preferred_plan(problem, options, isa);
    std::snprintf(text, capacity, "%s: tile of %d heads x %d keys, %d threads, blocks of %lld rows, %lld parts",
                  isa.name, isa.f32.group_heads, isa.f32.panel_keys, plan.num_workers,
                  static_cast<long long>(plan.block_rows), static_cast<long long>(plan.num_parts));
  }

  [[nodiscard]] Status run(const Call& call) const noexcept override {
    Isa isa;
    KEYSIEVE_RETURN_IF_ERROR(choose_isa(call.options.config, &isa));
    const Plan plan = plan_for_workspace(call.problem, call.options, isa, call.workspace_bytes);
    Run(call, isa, plan).run();
    return {};
  }
};

}  // namespace
}  // namespace cpu

const Backend& cpu_backend() noexcept {
  static const cpu::CpuBackend kBackend;
  return kBackend;
}

}  // namespace keysieve
