// SPDX-License-Identifier: Apache-2.0
#include "support/oracle.hpp"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>

#include "core/bf16.hpp"
#include "core/ordering.hpp"

namespace keysieve::test {
namespace {

constexpr float kNegativeInfinity = -std::numeric_limits<float>::infinity();

int32_t row_value(const Tensor& tensor, int64_t t) {
  return tensor.data<int32_t>()[tensor.row_offset(t, is_grouped(tensor, 1))];
}

int64_t clamped(int64_t position, int64_t num_keys) {
  return std::min(std::max<int64_t>(position, 0), num_keys);
}

/// Row-relative keys that may be picked.
std::vector<int64_t> eligible_keys(const Inputs& inputs, int64_t t, int64_t width) {
  std::vector<int64_t> keys;
  const keysieve_problem& problem = inputs.problem;
  if (problem.candidates != KEYSIEVE_CANDIDATES_CONSUME) {
    keys.resize(static_cast<size_t>(width));
    std::iota(keys.begin(), keys.end(), 0);
    return keys;
  }
  for (int64_t i = 0; i < problem.cand_count; ++i) {
    const int64_t block = inputs.cand_in.value<int32_t>(t, i);
    if (block < 0) {
      break;
    }
    for (int64_t key = block * problem.cand_block; key < std::min(width, (block + 1) * problem.cand_block); ++key) {
      keys.push_back(key);
    }
  }
  return keys;
}

/// Block ids of a row in the order they are published.
std::vector<int32_t> best_blocks(const keysieve_problem& problem, const std::vector<float>& scores) {
  const auto width = static_cast<int64_t>(scores.size());
  const int64_t num_blocks = (width + problem.cand_block - 1) / problem.cand_block;
  std::vector<std::pair<uint32_t, int32_t>> ranked;  // best ordered score, id
  for (int64_t block = 0; block + 1 < num_blocks; ++block) {
    uint32_t best = 0;
    for (int64_t key = block * problem.cand_block; key < (block + 1) * problem.cand_block; ++key) {
      best = std::max(best, ordered_bits(scores[key]));
    }
    ranked.emplace_back(best, static_cast<int32_t>(block));
  }
  std::sort(ranked.begin(), ranked.end(),
            [](const auto& a, const auto& b) { return a.first != b.first ? a.first > b.first : a.second < b.second; });
  std::vector<int32_t> ids;
  if (num_blocks > 0) {
    ids.push_back(static_cast<int32_t>(num_blocks - 1));  // the newest block always stays
  }
  for (const auto& [best, id] : ranked) {
    if (static_cast<int64_t>(ids.size()) < problem.cand_count) {
      ids.push_back(id);
    }
  }
  std::sort(ids.begin(), ids.end());
  return ids;
}

struct RowContent {
  std::vector<std::pair<int32_t, int32_t>> entries;  // index, bits of its ordered score
  std::vector<int32_t> row_indices;
};

RowContent row_content(const Outputs& outputs, int64_t t, bool as_set) {
  RowContent content;
  const int64_t topk = outputs.indices.shape(1);
  for (int64_t slot = 0; slot < topk; ++slot) {
    const auto score =
        outputs.top_scores.present() ? static_cast<int32_t>(ordered_bits(outputs.top_scores.value<float>(t, slot))) : 0;
    content.entries.emplace_back(outputs.indices.value<int32_t>(t, slot), score);
    if (outputs.row_indices.present()) {
      content.row_indices.push_back(outputs.row_indices.value<int32_t>(t, slot));
    }
  }
  if (as_set) {
    std::sort(content.entries.begin(), content.entries.end());
    std::sort(content.row_indices.begin(), content.row_indices.end());
  }
  return content;
}

std::string describe(const char* what, int64_t t, int64_t slot, int64_t actual, int64_t expected) {
  return std::string(what) + "[" + std::to_string(t) + "," + std::to_string(slot) + "] is " + std::to_string(actual) +
         ", expected " + std::to_string(expected);
}

}  // namespace

bool is_grouped(const Tensor& tensor, size_t flat_rank) {
  return tensor.shape().size() == flat_rank + 1;
}

int64_t table_row(const Inputs& inputs, int64_t t) {
  const int64_t next_n = std::max<int64_t>(inputs.problem.next_n, 1);
  const int64_t request = inputs.row_request.present() ? row_value(inputs.row_request, t) : t / next_n;
  return request >= 0 && request < inputs.problem.num_requests ? request : -1;
}

KeyRange key_range(const Inputs& inputs, int64_t t) {
  const keysieve_problem& problem = inputs.problem;
  const int64_t num_keys = problem.num_keys;
  KeyRange range;
  range.begin = inputs.row_start.present() ? clamped(row_value(inputs.row_start, t), num_keys) : 0;
  range.end = inputs.row_end.present() ? clamped(row_value(inputs.row_end, t), num_keys) : num_keys;
  if (problem.op == KEYSIEVE_SELECT && problem.score_layout == KEYSIEVE_SCORES_COMPACT) {
    range.end = std::min(range.end, range.begin + problem.score_width);
  }
  const bool slots = problem.op != KEYSIEVE_SCORE && problem.index_space == KEYSIEVE_INDEX_SLOT;
  const bool uses_table = problem.key_layout == KEYSIEVE_KEYS_PAGED || slots;
  if (range.end < range.begin || (uses_table && table_row(inputs, t) < 0)) {
    range.end = range.begin;
  }
  return range;
}

Inputs subset_of_rows(const Inputs& inputs, const std::vector<int64_t>& rows) {
  Inputs out = inputs;
  out.problem.num_rows = static_cast<int64_t>(rows.size());
  out.q = inputs.q.rows(rows, is_grouped(inputs.q, 3));
  out.weights = inputs.weights.rows(rows, is_grouped(inputs.weights, 2));
  out.scores = inputs.scores.rows(rows, false);
  out.row_start = inputs.row_start.rows(rows, is_grouped(inputs.row_start, 1));
  out.row_end = inputs.row_end.rows(rows, is_grouped(inputs.row_end, 1));
  out.out_offset = inputs.out_offset.rows(rows, is_grouped(inputs.out_offset, 1));
  out.cand_in = inputs.cand_in.rows(rows, false);
  if (inputs.block_table.present() || inputs.slot_table.present()) {
    out.row_request = Tensor(Dtype::kI32, {out.problem.num_rows});
    for (size_t i = 0; i < rows.size(); ++i) {
      out.row_request.mutable_data<int32_t>()[i] = static_cast<int32_t>(table_row(inputs, rows[i]));
    }
  }
  out.problem.next_n = 1;
  return out;
}

float score_at(const Inputs& inputs, const Tensor& scores, int64_t t, int64_t i) {
  const bool compact = inputs.problem.score_layout == KEYSIEVE_SCORES_COMPACT;
  const int64_t column = compact ? i : key_range(inputs, t).begin + i;
  return scores.dtype() == Dtype::kBf16 ? bf16_to_float(scores.value<uint16_t>(t, column))
                                        : scores.value<float>(t, column);
}

int64_t index_of_key(const Inputs& inputs, int64_t t, int64_t begin, int64_t key) {
  const keysieve_problem& problem = inputs.problem;
  const bool paged = problem.key_layout == KEYSIEVE_KEYS_PAGED;
  switch (problem.index_space) {
    case KEYSIEVE_INDEX_ABSOLUTE: return begin + key;
    case KEYSIEVE_INDEX_OFFSET: return key + row_value(inputs.out_offset, t);
    case KEYSIEVE_INDEX_SLOT: {
      const bool from_block_table = problem.slot_page_size == 0;
      const int64_t size = from_block_table ? KEYSIEVE_PAGE_SIZE : problem.slot_page_size;
      const Tensor& table = from_block_table ? inputs.block_table : inputs.slot_table;
      const int64_t position = paged ? begin + key : key;
      return static_cast<int64_t>(table.value<int32_t>(table_row(inputs, t), position / size)) * size + position % size;
    }
    default: return key;
  }
}

Outputs select_oracle(const Inputs& inputs, const Tensor& scores, const RunSettings& settings) {
  const keysieve_problem& problem = inputs.problem;
  const int64_t topk = problem.topk;
  Outputs out;
  out.indices = Tensor(Dtype::kI32, {problem.num_rows, topk});
  out.top_scores = settings.top_scores ? Tensor(Dtype::kF32, {problem.num_rows, topk}) : Tensor();
  out.row_indices = settings.row_indices ? Tensor(Dtype::kI32, {problem.num_rows, topk}) : Tensor();
  out.out_count = settings.out_count ? Tensor(Dtype::kI32, {problem.num_rows}) : Tensor();
  if (problem.candidates == KEYSIEVE_CANDIDATES_PUBLISH) {
    out.cand_out = Tensor(Dtype::kI32, {problem.num_rows, problem.cand_count});
    out.cand_out.fill(0xFF);
  }
  out.indices.fill(0xFF);
  out.row_indices.fill(0xFF);

  for (int64_t t = 0; t < problem.num_rows; ++t) {
    const KeyRange range = key_range(inputs, t);
    std::vector<float> row(static_cast<size_t>(range.width()));
    std::vector<uint32_t> ordered(row.size());
    for (size_t i = 0; i < row.size(); ++i) {
      row[i] = score_at(inputs, scores, t, static_cast<int64_t>(i));
      ordered[i] = ordered_bits(row[i]);
    }
    std::vector<int64_t> picked = eligible_keys(inputs, t, range.width());
    std::stable_sort(picked.begin(), picked.end(), [&](int64_t a, int64_t b) { return ordered[a] > ordered[b]; });
    picked.resize(std::min<size_t>(picked.size(), static_cast<size_t>(topk)));
    if (problem.order != KEYSIEVE_ORDER_SCORE) {
      std::sort(picked.begin(), picked.end());
    }
    for (int64_t slot = 0; slot < topk; ++slot) {
      const bool filled = slot < static_cast<int64_t>(picked.size());
      if (filled) {
        out.indices.mutable_data<int32_t>()[t * topk + slot] =
            static_cast<int32_t>(index_of_key(inputs, t, range.begin, picked[slot]));
      }
      if (filled && settings.row_indices) {
        out.row_indices.mutable_data<int32_t>()[t * topk + slot] = static_cast<int32_t>(picked[slot]);
      }
      if (settings.top_scores) {
        out.top_scores.mutable_data<float>()[t * topk + slot] = filled ? row[picked[slot]] : kNegativeInfinity;
      }
    }
    if (settings.out_count) {
      out.out_count.mutable_data<int32_t>()[t] = static_cast<int32_t>(picked.size());
    }
    if (problem.candidates == KEYSIEVE_CANDIDATES_PUBLISH) {
      const std::vector<int32_t> ids = best_blocks(problem, row);
      std::copy(ids.begin(), ids.end(), out.cand_out.mutable_data<int32_t>() + t * problem.cand_count);
    }
  }
  return out;
}

std::string compare_selections(const Inputs& inputs, const Outputs& actual, const Outputs& expected) {
  const bool as_set = inputs.problem.order == KEYSIEVE_ORDER_ANY;
  for (int64_t t = 0; t < inputs.problem.num_rows; ++t) {
    const RowContent a = row_content(actual, t, as_set);
    const RowContent e = row_content(expected, t, as_set);
    for (size_t slot = 0; slot < a.entries.size(); ++slot) {
      if (a.entries[slot].first != e.entries[slot].first) {
        return describe("indices", t, static_cast<int64_t>(slot), a.entries[slot].first, e.entries[slot].first);
      }
      if (a.entries[slot].second != e.entries[slot].second) {
        return describe("ordered bits of top_scores", t, static_cast<int64_t>(slot), a.entries[slot].second,
                        e.entries[slot].second);
      }
    }
    for (size_t slot = 0; slot < a.row_indices.size() && slot < e.row_indices.size(); ++slot) {
      if (a.row_indices[slot] != e.row_indices[slot]) {
        return describe("row_indices", t, static_cast<int64_t>(slot), a.row_indices[slot], e.row_indices[slot]);
      }
    }
    if (actual.out_count.present() && actual.out_count.value<int32_t>(t) != expected.out_count.value<int32_t>(t)) {
      return describe("out_count", t, 0, actual.out_count.value<int32_t>(t), expected.out_count.value<int32_t>(t));
    }
    for (int64_t i = 0; actual.cand_out.present() && i < inputs.problem.cand_count; ++i) {
      if (actual.cand_out.value<int32_t>(t, i) != expected.cand_out.value<int32_t>(t, i)) {
        return describe("cand_out", t, i, actual.cand_out.value<int32_t>(t, i), expected.cand_out.value<int32_t>(t, i));
      }
    }
  }
  return {};
}

std::string compare_scores(const Tensor& actual, const Tensor& expected) {
  const bool bf16 = actual.dtype() == Dtype::kBf16;
  for (int64_t t = 0; t < actual.shape(0); ++t) {
    for (int64_t n = 0; n < actual.shape(1); ++n) {
      const float a = bf16 ? bf16_to_float(actual.value<uint16_t>(t, n)) : actual.value<float>(t, n);
      const float e = bf16 ? bf16_to_float(expected.value<uint16_t>(t, n)) : expected.value<float>(t, n);
      if (float_bits(a) != float_bits(e) && !(std::isnan(a) && std::isnan(e))) {
        return "scores[" + std::to_string(t) + "," + std::to_string(n) + "] is " + std::to_string(a) + ", expected " +
               std::to_string(e);
      }
    }
  }
  return {};
}

}  // namespace keysieve::test
