// SPDX-License-Identifier: Apache-2.0
// What one worker does with one task: takes a block of rows through a part of their keys.
#pragma once

#include <cstdint>
#include <optional>

#include "core/problem.hpp"
#include "cpu/block_ranking.hpp"
#include "cpu/plan.hpp"
#include "cpu/scorer.hpp"
#include "cpu/top_k.hpp"

namespace keysieve::cpu {

/// A row of the block in hand.
struct RowSlot {
  int64_t t = 0;
  int64_t request = 0;
  RowRange row;   // all its keys
  RowRange keys;  // those of the task's part
  TopK top;
  BlockRanking blocks;
};

class Worker {
 public:
  Worker(const Call& call, const Isa& isa, const Plan& plan, Arena& arena);

  /// Writes the scores of rows [first_row, last_row) with part `part` of their keys.
  void score_task(int64_t first_row, int64_t last_row, int64_t part);

  /// Leaves the best of part `part` of rows [first_row, last_row) in slot(0), slot(1), ...
  void select_task(int64_t first_row, int64_t last_row, int64_t part);

  [[nodiscard]] RowSlot& slot(int64_t i) { return slots_[i]; }
  [[nodiscard]] uint64_t num_rescans() const { return num_rescans_; }

 private:
  void open_rows(int64_t first_row, int64_t last_row, int64_t part);
  template <class Emit>
  void score_rows(const Emit& emit);
  template <class Emit>
  void stream_keys(int64_t first_slot, int64_t last_slot, const Emit& emit);
  template <class Emit>
  void score_candidates(int64_t slot_index, const Emit& emit);
  void offer(RowSlot& slot, int64_t position, const float* scores, int64_t count);
  void offer_given(RowSlot& slot);
  void offer_given_run(RowSlot& slot, int64_t begin, int64_t end);
  [[nodiscard]] float given_score(const RowSlot& slot, int64_t position) const;
  [[nodiscard]] bool raise_floor_from_sample(RowSlot& slot) const;

  const Call* call_;
  const Isa* isa_;
  int64_t num_parts_;
  std::optional<Scorer> scorer_;
  RowSlot* slots_;  // [block_rows]
  int64_t num_slots_ = 0;
  float* widened_ = nullptr;  // bf16 scores as f32
  uint64_t num_rescans_ = 0;
};

/// Keys of a row for the backend: the row's range, cut to the columns that compact scores have.
RowRange scored_range(const Call& call, int64_t t);

}  // namespace keysieve::cpu
