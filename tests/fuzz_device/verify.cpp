// SPDX-License-Identifier: Apache-2.0
#include "fuzz_device/verify.hpp"

#include <algorithm>
#include <cmath>
#include <limits>

#include "core/bf16.hpp"
#include "core/ordering.hpp"
#include "support/accuracy.hpp"

namespace keysieve::test {
namespace {

constexpr float kNegativeInfinity = -std::numeric_limits<float>::infinity();

struct RowPick {
  std::vector<int64_t> keys;  // in output order
  std::vector<int32_t> blocks;
};

/// Ordered bits of a row's scores; keys outside the listed candidate blocks are left out of `keys`.
void read_row(const Inputs& inputs, const Tensor& scores, int64_t t, std::vector<uint32_t>& ordered) {
  const KeyRange range = key_range(inputs, t);
  const bool compact =
      inputs.problem.score_layout == KEYSIEVE_SCORES_COMPACT && inputs.problem.op != KEYSIEVE_SCORE_SELECT;
  const int64_t first = t * scores.stride(0) + (compact ? 0 : range.begin);
  ordered.resize(static_cast<size_t>(range.width()));
  if (scores.dtype() == Dtype::kBf16) {
    const auto* row = scores.data<uint16_t>() + first;
    std::transform(row, row + range.width(), ordered.begin(),
                   [](uint16_t x) { return ordered_bits(bf16_to_float(x)); });
  } else {
    const auto* row = scores.data<float>() + first;
    std::transform(row, row + range.width(), ordered.begin(), ordered_bits);
  }
}

std::vector<int64_t> listed_keys(const Inputs& inputs, int64_t t, int64_t width) {
  const keysieve_problem& problem = inputs.problem;
  std::vector<int64_t> keys;
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

/// The `topk` best of `keys` (ascending), lower index first among equals: one nth_element and two scans.
std::vector<int64_t> best_of(const std::vector<int64_t>& keys, const std::vector<uint32_t>& ordered, int64_t topk) {
  const int64_t count = std::min<int64_t>(topk, static_cast<int64_t>(keys.size()));
  if (count == static_cast<int64_t>(keys.size())) {
    return keys;
  }
  std::vector<uint32_t> values(keys.size());
  std::transform(keys.begin(), keys.end(), values.begin(), [&](int64_t key) { return ordered[key]; });
  std::nth_element(values.begin(), values.begin() + (count - 1), values.end(), std::greater<>());
  const uint32_t cut = values[count - 1];
  int64_t ties = count - std::count_if(values.begin(), values.begin() + count, [&](uint32_t x) { return x > cut; });
  std::vector<int64_t> picked;
  picked.reserve(static_cast<size_t>(count));
  for (const int64_t key : keys) {
    if (ordered[key] > cut || (ordered[key] == cut && ties-- > 0)) {
      picked.push_back(key);
    }
  }
  return picked;
}

std::string verify_blocks(const Inputs& inputs, const std::vector<uint32_t>& ordered, const Outputs& actual,
                          int64_t t) {
  const keysieve_problem& problem = inputs.problem;
  const auto width = static_cast<int64_t>(ordered.size());
  const int64_t num_blocks = (width + problem.cand_block - 1) / problem.cand_block;
  std::vector<uint32_t> best(static_cast<size_t>(num_blocks), 0);
  std::vector<int64_t> ids(best.size());
  for (int64_t key = 0; key < width; ++key) {
    best[key / problem.cand_block] = std::max(best[key / problem.cand_block], ordered[key]);
  }
  std::vector<int64_t> expected;
  if (num_blocks > 0) {
    ids.resize(static_cast<size_t>(num_blocks - 1));  // the newest is kept in any case
    for (size_t i = 0; i < ids.size(); ++i) {
      ids[i] = static_cast<int64_t>(i);
    }
    if (problem.cand_count > 1) {
      expected = best_of(ids, best, problem.cand_count - 1);
    }
    expected.push_back(num_blocks - 1);
  }
  for (int64_t i = 0; i < problem.cand_count; ++i) {
    const int64_t id = i < static_cast<int64_t>(expected.size()) ? expected[i] : -1;
    if (actual.cand_out.value<int32_t>(t, i) != id) {
      return "cand_out[" + std::to_string(t) + "," + std::to_string(i) + "] is " +
             std::to_string(actual.cand_out.value<int32_t>(t, i)) + ", expected " + std::to_string(id);
    }
  }
  return {};
}

std::string mismatch(const char* what, int64_t t, int64_t slot, int64_t actual, int64_t expected) {
  return std::string(what) + "[" + std::to_string(t) + "," + std::to_string(slot) + "] is " + std::to_string(actual) +
         ", expected " + std::to_string(expected);
}

/// Slots of a row in the order in which they are compared: as written, or by key where the order is free.
std::vector<int64_t> slot_order(const Inputs& inputs, const Outputs& actual, int64_t t, size_t count) {
  std::vector<int64_t> slots(count);
  for (size_t i = 0; i < count; ++i) {
    slots[i] = static_cast<int64_t>(i);
  }
  if (inputs.problem.order == KEYSIEVE_ORDER_ANY) {
    // Slots of a table are not ascending in position, so a free order is only comparable by row_indices there.
    const Tensor& key = actual.row_indices.present() ? actual.row_indices : actual.indices;
    std::sort(slots.begin(), slots.end(),
              [&](int64_t a, int64_t b) { return key.value<int32_t>(t, a) < key.value<int32_t>(t, b); });
  }
  return slots;
}

std::string verify_row(const Inputs& inputs, const Outputs& actual, int64_t t, const std::vector<int64_t>& picked,
                       const std::vector<uint32_t>& ordered) {
  const int64_t begin = key_range(inputs, t).begin;
  const int64_t topk = inputs.problem.topk;
  std::vector<int64_t> keys = picked;
  const bool sort_by_index = inputs.problem.order == KEYSIEVE_ORDER_ANY && !actual.row_indices.present();
  if (inputs.problem.order == KEYSIEVE_ORDER_SCORE) {
    std::stable_sort(keys.begin(), keys.end(), [&](int64_t a, int64_t b) { return ordered[a] > ordered[b]; });
  } else if (sort_by_index) {
    std::sort(keys.begin(), keys.end(), [&](int64_t a, int64_t b) {
      return static_cast<int32_t>(index_of_key(inputs, t, begin, a)) <
             static_cast<int32_t>(index_of_key(inputs, t, begin, b));
    });
  }
  const std::vector<int64_t> slots = slot_order(inputs, actual, t, keys.size());
  const bool repeated_slots = sort_by_index && inputs.problem.index_space == KEYSIEVE_INDEX_SLOT;
  for (int64_t i = 0; i < topk; ++i) {
    const bool filled = i < static_cast<int64_t>(keys.size());
    const int64_t slot = filled ? slots[i] : i;
    const auto index = static_cast<int32_t>(filled ? index_of_key(inputs, t, begin, keys[i]) : -1);
    if (actual.indices.value<int32_t>(t, slot) != index) {
      return mismatch("indices", t, slot, actual.indices.value<int32_t>(t, slot), index);
    }
    if (actual.row_indices.present() && actual.row_indices.value<int32_t>(t, slot) != (filled ? keys[i] : -1)) {
      return mismatch("row_indices", t, slot, actual.row_indices.value<int32_t>(t, slot), filled ? keys[i] : -1);
    }
    if (actual.top_scores.present() && !repeated_slots) {
      const uint32_t expected = filled ? ordered[keys[i]] : kOrderedNegativeInfinity;
      const uint32_t bits = ordered_bits(actual.top_scores.value<float>(t, slot));
      if (bits != expected) {
        return mismatch("ordered bits of top_scores", t, slot, bits, expected);
      }
    }
  }
  if (actual.out_count.present() && actual.out_count.value<int32_t>(t) != static_cast<int32_t>(keys.size())) {
    return mismatch("out_count", t, 0, actual.out_count.value<int32_t>(t), static_cast<int64_t>(keys.size()));
  }
  return {};
}

}  // namespace

std::string verify_selection(const Inputs& inputs, const Tensor& scores, const Outputs& actual) {
  std::vector<uint32_t> ordered;
  for (int64_t t = 0; t < inputs.problem.num_rows; ++t) {
    read_row(inputs, scores, t, ordered);
    const auto width = static_cast<int64_t>(ordered.size());
    std::vector<int64_t> keys;
    if (inputs.problem.candidates == KEYSIEVE_CANDIDATES_CONSUME) {
      keys = listed_keys(inputs, t, width);
    } else {
      keys.resize(ordered.size());
      for (int64_t key = 0; key < width; ++key) {
        keys[key] = key;
      }
    }
    std::string fault = verify_row(inputs, actual, t, best_of(keys, ordered, inputs.problem.topk), ordered);
    if (fault.empty() && actual.cand_out.present()) {
      fault = verify_blocks(inputs, ordered, actual, t);
    }
    if (!fault.empty()) {
      return fault;
    }
  }
  return {};
}

std::string verify_scores(const Inputs& inputs, const Tensor& scores, const std::string& backend, Random& random) {
  constexpr int64_t kSamples = 48;
  const keysieve_problem& problem = inputs.problem;
  const bool compact = problem.score_layout == KEYSIEVE_SCORES_COMPACT;
  for (int64_t t = 0; t < problem.num_rows; ++t) {
    const KeyRange range = key_range(inputs, t);
    const int64_t first = compact ? 0 : range.begin;
    const float* row = scores.data<float>() + t * scores.stride(0);
    for (int64_t column = 0; column < scores.shape(1); ++column) {
      if (column == first) {
        column += range.width();  // only what lies outside of the row
        if (column >= scores.shape(1)) {
          break;
        }
      }
      if (row[column] != kNegativeInfinity) {
        return "scores[" + std::to_string(t) + "," + std::to_string(column) + "] is " + std::to_string(row[column]) +
               " outside of the row, expected -inf";
      }
    }
  }
  const double c = accuracy_constant(backend, problem.num_heads, problem.head_dim);
  for (int64_t sample = 0; sample < kSamples && problem.num_rows > 0; ++sample) {
    const int64_t t = random.below(problem.num_rows);
    const int64_t width = std::min(key_range(inputs, t).width(), compact ? scores.shape(1) : INT64_MAX);
    if (width == 0) {
      continue;
    }
    const int64_t i = sample % 4 == 0 ? width - 1 : random.below(width);
    const float score = score_at(inputs, scores, t, i);
    const PairScore exact = pair_score(inputs, t, i);
    // c, the one rounding of a reference that has c = 0, and what f32 cannot hold below its normal range
    const double allowed = (c + 0x1.0p-24) * exact.bound_sum + 1e-37;
    const bool right = std::isnan(exact.score) ? std::isnan(score) : std::fabs(score - exact.score) <= allowed;
    if (!right) {
      return "score of row " + std::to_string(t) + " key " + std::to_string(i) + " is " + std::to_string(score) +
             ", the formula gives " + std::to_string(exact.score) + " +- " + std::to_string(allowed);
    }
  }
  return {};
}

std::string verify_rounding(const Tensor& halves, const Tensor& scores) {
  for (int64_t t = 0; t < halves.shape(0); ++t) {
    const uint16_t* half = halves.data<uint16_t>() + t * halves.stride(0);
    const float* score = scores.data<float>() + t * scores.stride(0);
    for (int64_t n = 0; n < halves.shape(1); ++n) {
      if (half[n] != float_to_bf16(score[n]) && !(std::isnan(score[n]) && std::isnan(bf16_to_float(half[n])))) {
        return "bf16 scores[" + std::to_string(t) + "," + std::to_string(n) + "] is " +
               std::to_string(bf16_to_float(half[n])) + ", expected " + std::to_string(score[n]) + " rounded once";
      }
    }
  }
  return {};
}

}  // namespace keysieve::test
