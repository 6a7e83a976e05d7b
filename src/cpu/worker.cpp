// SPDX-License-Identifier: Apache-2.0
#include "cpu/worker.hpp"

#include <algorithm>
#include <cmath>
#include <limits>

#include "core/bf16.hpp"
#include "core/ordering.hpp"

namespace keysieve::cpu {
namespace {

constexpr int64_t kWidenedScores = 1024;
// Parts of a row start at multiples of this, so that no candidate block (8 or 16 keys) is in two parts.
constexpr int64_t kPartKeys = 16;

RowRange part_of(RowRange row, int64_t part, int64_t num_parts) {
  const auto cut = [&](int64_t p) {
    const int64_t keys = (row.width() * p / num_parts + kPartKeys - 1) / kPartKeys * kPartKeys;
    return row.begin + std::min(keys, row.width());
  };
  return {cut(part), cut(part + 1)};
}

/// Calls run(begin, end) for the keys of the blocks that a row's candidate list names, in key order.
template <class Run>
void for_each_candidate_run(const Call& call, const RowSlot& slot, const Run& run) {
  const int64_t block_keys = call.problem.cand_block;
  const int32_t* ids = call.cand_in.row(slot.t);
  int64_t previous = -1;
  for (int64_t i = 0; i < call.problem.cand_count; ++i) {
    const int64_t id = ids[i];
    if (id <= previous) {  // -1 ends the list; one that is not ascending is cut where it breaks
      return;
    }
    const int64_t begin = slot.keys.begin + id * block_keys;
    if (begin >= slot.keys.end) {
      return;
    }
    run(begin, std::min(begin + block_keys, slot.keys.end));
    previous = id;
  }
}

/// The row's keys are all picked, in key order, and nobody asks how they scored.
bool scores_do_not_matter(const Call& call, const RowSlot& slot) {
  const Problem& problem = call.problem;
  return problem.selects() && slot.row.width() <= problem.topk && problem.candidates == Candidates::kNone &&
         problem.order != Order::kScore && !call.top_scores;
}

void store_scores(const Call& call, int64_t t, int64_t column, const float* scores, int64_t count) {
  const int64_t offset = t * call.score_row_stride + column;
  if (call.problem.score_dtype == Dtype::kBf16) {
    std::transform(scores, scores + count, static_cast<uint16_t*>(call.scores) + offset, float_to_bf16);
  } else {
    std::copy_n(scores, count, static_cast<float*>(call.scores) + offset);
  }
}

void fill_scores(const Call& call, int64_t t, int64_t first_column, int64_t last_column) {
  constexpr float kMinusInfinity = -std::numeric_limits<float>::infinity();
  const int64_t offset = t * call.score_row_stride + first_column;
  const int64_t count = last_column - first_column;
  if (call.problem.score_dtype == Dtype::kBf16) {
    std::fill_n(static_cast<uint16_t*>(call.scores) + offset, count, float_to_bf16(kMinusInfinity));
  } else {
    std::fill_n(static_cast<float*>(call.scores) + offset, count, kMinusInfinity);
  }
}

}  // namespace

RowRange scored_range(const Call& call, int64_t t) {
  RowRange range = row_range(call, t);
  if (call.problem.compact_scores && call.problem.op != Op::kScoreSelect) {
    range.end = std::min(range.end, range.begin + call.problem.score_width);
  }
  return range;
}

Worker::Worker(const Call& call, const Isa& isa, const Plan& plan, Arena& arena)
    : call_(&call), isa_(&isa), num_parts_(plan.num_parts), slots_(arena.take<RowSlot>(plan.block_rows)) {
  const Problem& problem = call.problem;
  if (problem.scores_keys()) {
    scorer_.emplace(call, isa, plan.block_rows, arena);
  } else {
    widened_ = arena.take<float>(kWidenedScores);
  }
  for (int64_t i = 0; i < plan.block_rows && problem.selects(); ++i) {
    RowSlot slot;
    slot.top.limit = plan.topk_limit;
    slot.top.capacity = TopK::capacity_for(plan.topk_limit);
    slot.top.ranks = arena.take<uint64_t>(slot.top.capacity);
    if (problem.candidates == Candidates::kPublish) {
      slot.blocks.block_keys = problem.cand_block;
      slot.blocks.top.limit = plan.block_limit;
      slot.blocks.top.capacity = TopK::capacity_for(plan.block_limit);
      slot.blocks.top.ranks = arena.take<uint64_t>(slot.blocks.top.capacity);
    }
    if (arena.has_memory()) {
      slots_[i] = slot;
    }
  }
}

void Worker::open_rows(int64_t first_row, int64_t last_row, int64_t part) {
  num_slots_ = last_row - first_row;
  for (int64_t i = 0; i < num_slots_; ++i) {
    RowSlot& slot = slots_[i];
    slot.t = first_row + i;
    slot.request = call_->problem.paged ? request_of_row(*call_, slot.t) : 0;
    slot.row = scored_range(*call_, slot.t);
    slot.keys = part_of(slot.row, part, num_parts_);
    slot.top.reset();
    slot.blocks.reset();
    if (scores_do_not_matter(*call_, slot)) {
      for (int64_t position = slot.keys.begin; position < slot.keys.end; ++position) {
        slot.top.push(rank_of(0, position - slot.row.begin));
      }
      slot.keys.end = slot.keys.begin;
    }
    if (scorer_ && slot.keys.width() > 0) {
      scorer_->load_row(i, slot.t);
    }
  }
}

// ---- Scores ----

/// Calls emit(slot, position, scores, count) for all keys of the open rows; a row's keys come in ascending order.
template <class Emit>
void Worker::score_rows(const Emit& emit) {
  if (call_->problem.candidates == Candidates::kConsume) {
    for (int64_t i = 0; i < num_slots_; ++i) {
      score_candidates(i, emit);
    }
    return;
  }
  for (int64_t first = 0, last = 0; first < num_slots_; first = last) {
    while (last < num_slots_ && slots_[last].request == slots_[first].request) {
      ++last;
    }
    stream_keys(first, last, emit);
  }
}

/// Rows of one request: every panel of keys that one of them needs is decoded once.
template <class Emit>
void Worker::stream_keys(int64_t first_slot, int64_t last_slot, const Emit& emit) {
  constexpr int64_t kNone = std::numeric_limits<int64_t>::max();
  int64_t positions[kMaxPanelKeys];
  float scores[kMaxPanelKeys];
  for (int64_t position = 0;;) {
    int64_t begin = kNone;
    int64_t end = 0;
    for (int64_t i = first_slot; i < last_slot; ++i) {
      const RowRange& keys = slots_[i].keys;
      if (position < keys.end && keys.width() > 0) {
        begin = std::min(begin, std::max(position, keys.begin));
        end = std::max(end, keys.end);
      }
    }
    if (begin == kNone) {
      return;
    }
    const int count = static_cast<int>(std::min<int64_t>(end - begin, scorer_->panel_keys()));
    for (int lane = 0; lane < count; ++lane) {
      positions[lane] = begin + lane;
    }
    scorer_->load_keys(slots_[first_slot].request, positions, count);
    for (int64_t i = first_slot; i < last_slot; ++i) {
      const int64_t first = std::max(begin, slots_[i].keys.begin);
      const int64_t last = std::min(begin + count, slots_[i].keys.end);
      if (first < last) {
        scorer_->score(i, scores);
        emit(slots_[i], first, scores + (first - begin), last - first);
      }
    }
    position = begin + count;
  }
}

/// A row with its own list of keys: panels are gathered.
template <class Emit>
void Worker::score_candidates(int64_t slot_index, const Emit& emit) {
  RowSlot& slot = slots_[slot_index];
  int64_t positions[kMaxPanelKeys];
  float scores[kMaxPanelKeys];
  int count = 0;
  const auto flush = [&] {
    scorer_->load_keys(slot.request, positions, count);
    scorer_->score(slot_index, scores);
    for (int first = 0, last = 1; first < count; first = last++) {
      while (last < count && positions[last] == positions[last - 1] + 1) {
        ++last;
      }
      emit(slot, positions[first], scores + first, last - first);
    }
    count = 0;
  };
  for_each_candidate_run(*call_, slot, [&](int64_t begin, int64_t end) {
    for (int64_t position = begin; position < end; ++position) {
      positions[count++] = position;
      if (count == scorer_->panel_keys()) {
        flush();
      }
    }
  });
  if (count > 0) {
    flush();
  }
}

void Worker::score_task(int64_t first_row, int64_t last_row, int64_t part) {
  open_rows(first_row, last_row, part);
  const bool compact = call_->problem.compact_scores;
  const auto column_of = [compact](const RowSlot& slot, int64_t position) {
    return compact ? position - slot.row.begin : position;
  };
  for (int64_t i = 0; i < num_slots_; ++i) {
    const RowSlot& slot = slots_[i];
    if (part == 0) {
      fill_scores(*call_, slot.t, 0, column_of(slot, slot.row.begin));
    }
    if (part == num_parts_ - 1) {
      fill_scores(*call_, slot.t, column_of(slot, slot.row.end), call_->problem.score_width);
    }
  }
  score_rows([&](const RowSlot& slot, int64_t position, const float* scores, int64_t count) {
    store_scores(*call_, slot.t, column_of(slot, position), scores, count);
  });
}

// ---- Selection ----

void Worker::select_task(int64_t first_row, int64_t last_row, int64_t part) {
  open_rows(first_row, last_row, part);
  if (scorer_) {
    score_rows([this](RowSlot& slot, int64_t position, const float* scores, int64_t count) {
      offer(slot, position, scores, count);
    });
  } else {
    for (int64_t i = 0; i < num_slots_; ++i) {
      offer_given(slots_[i]);
    }
  }
  for (int64_t i = 0; i < num_slots_; ++i) {
    RowSlot& slot = slots_[i];
    slot.top.cut(0);
    if (call_->problem.candidates == Candidates::kPublish) {
      slot.blocks.finish(slot.row.width());
    }
  }
}

void Worker::offer(RowSlot& slot, int64_t position, const float* scores, int64_t count) {
  isa_->offer(slot.top, scores, count, position - slot.row.begin);
  if (call_->problem.candidates == Candidates::kPublish) {
    slot.blocks.offer(scores, count, position - slot.row.begin);
  }
}

/// `select`: offers a row of the caller's scores.
void Worker::offer_given(RowSlot& slot) {
  if (call_->problem.candidates == Candidates::kConsume) {
    for_each_candidate_run(*call_, slot, [&](int64_t begin, int64_t end) { offer_given_run(slot, begin, end); });
    return;
  }
  const bool floor_is_a_guess = raise_floor_from_sample(slot);
  offer_given_run(slot, slot.keys.begin, slot.keys.end);
  if (floor_is_a_guess && slot.top.count < slot.top.limit) {
    ++num_rescans_;
    slot.top.reset();
    slot.blocks.reset();
    offer_given_run(slot, slot.keys.begin, slot.keys.end);
  }
}

void Worker::offer_given_run(RowSlot& slot, int64_t begin, int64_t end) {
  const int64_t offset = slot.t * call_->score_row_stride - (call_->problem.compact_scores ? slot.row.begin : 0);
  if (call_->problem.score_dtype != Dtype::kBf16) {
    offer(slot, begin, static_cast<const float*>(call_->scores) + offset + begin, end - begin);
    return;
  }
  const auto* halves = static_cast<const uint16_t*>(call_->scores) + offset;
  for (int64_t first = begin; first < end; first += kWidenedScores) {
    const int64_t count = std::min(kWidenedScores, end - first);
    std::transform(halves + first, halves + first + count, widened_, bf16_to_float);
    offer(slot, first, widened_, count);
  }
}

float Worker::given_score(const RowSlot& slot, int64_t position) const {
  const int64_t column = call_->problem.compact_scores ? position - slot.row.begin : position;
  const int64_t offset = slot.t * call_->score_row_stride + column;
  return call_->problem.score_dtype == Dtype::kBf16 ? bf16_to_float(static_cast<const uint16_t*>(call_->scores)[offset])
                                                    : static_cast<const float*>(call_->scores)[offset];
}

/// Guesses from evenly spaced scores what the limit-th best is, a little too low, so that few entries get in whatever
/// the order of the scores.  If the guess was too high after all, too few get in, and the caller starts again.
bool Worker::raise_floor_from_sample(RowSlot& slot) const {
  TopK& top = slot.top;
  const int64_t width = slot.keys.width();
  const int64_t sample_size = std::min<int64_t>(top.capacity, 4096);
  const int64_t stride = width / sample_size;
  if (width < 4 * top.limit || stride < 4) {
    return false;
  }
  for (int64_t i = 0; i < sample_size; ++i) {
    top.ranks[i] = rank_of(ordered_bits(given_score(slot, slot.keys.begin + i * stride)), 0);
  }
  const double expected =
      static_cast<double>(top.limit) * static_cast<double>(sample_size) / static_cast<double>(width);
  const auto n = static_cast<int64_t>(expected + 4 * std::sqrt(expected) + 8);
  const uint64_t sampled = nth_largest(top.ranks, sample_size, std::min(n, sample_size), 0);
  const uint64_t lowest_tie = sampled & ~uint64_t{UINT32_MAX};
  top.floor = lowest_tie == 0 ? 0 : lowest_tie - 1;
  return true;
}

}  // namespace keysieve::cpu
