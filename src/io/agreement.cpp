// SPDX-License-Identifier: Apache-2.0
#include "io/agreement.hpp"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <limits>
#include <utility>

#include "core/bits.hpp"
#include "core/ordering.hpp"

namespace keysieve {
namespace {

/// `score` is a score that a selection may hold when the K-th is `kth`, up to `error`.
bool may_hold(float score, float kth, double error) {
  if (ordered_bits(score) >= ordered_bits(kth)) {
    return true;
  }
  return static_cast<double>(score) >= static_cast<double>(kth) - error;  // false if score is NaN
}

/// `score` is a score that a selection may miss when the K-th is `kth`, up to `error`.
bool may_miss(float score, float kth, double error) {
  if (ordered_bits(score) <= ordered_bits(kth)) {
    return true;
  }
  return static_cast<double>(score) <= static_cast<double>(kth) + error;  // false if kth is NaN
}

bool same_score(float a, float b) {
  return float_bits(a) == float_bits(b) || (std::isnan(a) && std::isnan(b));
}

using Entry = std::pair<int32_t, float>;

std::vector<Entry> entries_of(const SelectedRow& row, bool sorted) {
  std::vector<Entry> entries(static_cast<size_t>(row.topk));
  for (int64_t slot = 0; slot < row.topk; ++slot) {
    entries[static_cast<size_t>(slot)] = {row.indices[slot], row.scores != nullptr ? row.scores[slot] : 0.0F};
  }
  if (sorted) {  // keys first, ascending, then -1
    std::sort(entries.begin(), entries.end(), [](const Entry& a, const Entry& b) {
      return static_cast<uint32_t>(a.first) < static_cast<uint32_t>(b.first);
    });
  }
  return entries;
}

std::string number(float value) {
  char text[32];
  std::snprintf(text, sizeof(text), "%.9g", static_cast<double>(value));
  return text;
}

std::string keyed(int64_t key, float score) {
  return "key " + std::to_string(key) + " (score " + number(score) + ")";
}

}  // namespace

double accuracy_constant(std::string_view backend, int64_t num_heads, int64_t head_dim) {
  if (backend == "reference") {
    return 0;  // it is what the others are compared with
  }
  if (backend == "cuda") {
    return 0x1p-10;  // the short accumulator of Hopper's FP8 tensor cores
  }
  // f32 sums in any order: one rounding for each of the D + H additions, H products, the scale and the result.
  return static_cast<double>(head_dim + 2 * num_heads + 8) * 0x1p-24;
}

Verdict check_shape(const SelectedRow& row, int64_t width, int32_t order) {
  const int64_t expected = std::min(row.topk, width);
  std::vector<bool> seen(static_cast<size_t>(width), false);
  const auto fault = [](Fault kind, int64_t slot, int64_t key) {
    Verdict verdict;
    verdict.fault = kind;
    verdict.slot = slot;
    verdict.key = key;
    return verdict;
  };
  int64_t count = 0;
  for (int64_t slot = 0; slot < row.topk; ++slot) {
    const int64_t key = row.indices[slot];
    if (key == -1) {
      continue;
    }
    if (key < 0 || key >= width) {
      return fault(Fault::kOutOfRange, slot, key);
    }
    if (seen[static_cast<size_t>(key)]) {
      return fault(Fault::kDuplicate, slot, key);
    }
    seen[static_cast<size_t>(key)] = true;
    if (slot != count) {
      Verdict late = fault(Fault::kCount, slot, key);
      late.expected_count = expected;
      return late;
    }
    if (order == KEYSIEVE_ORDER_ASCENDING && slot > 0 && row.indices[slot - 1] > key) {
      return fault(Fault::kOrder, slot, key);
    }
    ++count;
  }
  Verdict verdict;
  if (count != expected) {
    verdict = fault(Fault::kCount, count, -1);
    verdict.expected_count = expected;
  }
  return verdict;
}

float kth_score(const float* scores, int64_t width, int64_t topk) {
  const int64_t count = std::min(width, topk);
  if (count <= 0) {
    return -std::numeric_limits<float>::infinity();
  }
  std::vector<uint32_t> ordered(static_cast<size_t>(width));
  std::transform(scores, scores + width, ordered.begin(), [](float score) { return ordered_bits(score); });
  const auto kth = ordered.begin() + (count - 1);
  std::nth_element(ordered.begin(), kth, ordered.end(), std::greater<>());
  return score_of_ordered_bits(*kth);
}

Verdict check_agreement(const SelectedRow& row, const float* reference_scores, int64_t width, double error) {
  Verdict verdict = check_shape(row, width, KEYSIEVE_ORDER_ANY);
  if (!verdict.ok() || width <= row.topk) {
    return verdict;
  }
  const float kth = kth_score(reference_scores, width, row.topk);
  std::vector<bool> held(static_cast<size_t>(width), false);
  int64_t worst_slot = -1;
  for (int64_t slot = 0; slot < row.topk; ++slot) {
    const int64_t key = row.indices[slot];
    held[static_cast<size_t>(key)] = true;
    if (worst_slot < 0 ||
        ordered_bits(reference_scores[key]) < ordered_bits(reference_scores[row.indices[worst_slot]])) {
      worst_slot = slot;
    }
  }
  int64_t best_missed = -1;
  for (int64_t key = 0; key < width; ++key) {
    if (!held[static_cast<size_t>(key)] &&
        (best_missed < 0 || ordered_bits(reference_scores[key]) > ordered_bits(reference_scores[best_missed]))) {
      best_missed = key;
    }
  }
  const float held_score = reference_scores[row.indices[worst_slot]];
  const float missed_score = reference_scores[best_missed];
  if (!may_hold(held_score, kth, error)) {
    verdict.fault = Fault::kHeldTooLow;
  } else if (!may_miss(missed_score, kth, error)) {
    verdict.fault = Fault::kMissedTooHigh;
  } else {
    return verdict;
  }
  verdict.slot = worst_slot;
  verdict.key = row.indices[worst_slot];
  verdict.key_score = held_score;
  verdict.missed_key = best_missed;
  verdict.missed_score = missed_score;
  verdict.kth_score = kth;
  return verdict;
}

Verdict check_exact(const SelectedRow& row, const SelectedRow& expected, int32_t order) {
  const bool as_sets = order == KEYSIEVE_ORDER_ANY;
  const std::vector<Entry> got = entries_of(row, as_sets);
  const std::vector<Entry> want = entries_of(expected, as_sets);
  const bool compare_scores = row.scores != nullptr && expected.scores != nullptr;
  Verdict verdict;
  for (size_t i = 0; i < std::min(got.size(), want.size()); ++i) {
    const bool same_key = got[i].first == want[i].first;
    if (same_key && (!compare_scores || same_score(got[i].second, want[i].second))) {
      continue;
    }
    verdict.fault = same_key ? Fault::kDifferentScore : Fault::kDifferentKey;
    verdict.slot = static_cast<int64_t>(i);
    verdict.key = got[i].first;
    verdict.key_score = got[i].second;
    verdict.missed_key = want[i].first;
    verdict.missed_score = want[i].second;
    return verdict;
  }
  if (got.size() != want.size()) {
    verdict.fault = Fault::kCount;
    verdict.slot = static_cast<int64_t>(std::min(got.size(), want.size()));
    verdict.expected_count = static_cast<int64_t>(want.size());
  }
  return verdict;
}

CutTie cut_tie(const float* scores, int64_t width, int64_t topk) {
  CutTie tie;
  const int64_t count = std::min(width, topk);
  if (count <= 0) {
    return tie;
  }
  const uint32_t kth = ordered_bits(kth_score(scores, width, topk));
  int64_t above = 0;
  for (int64_t key = 0; key < width; ++key) {
    const uint32_t ordered = ordered_bits(scores[key]);
    above += ordered > kth ? 1 : 0;
    tie.tied += ordered == kth ? 1 : 0;
  }
  tie.selected = count - above;
  return tie;
}

std::string Verdict::message() const {
  const std::string at_slot = " in slot " + std::to_string(slot);
  switch (fault) {
    case Fault::kNone: return "right";
    case Fault::kOutOfRange: return "index " + std::to_string(key) + at_slot + " is no key of the row";
    case Fault::kDuplicate: return "key " + std::to_string(key) + at_slot + " occurs twice";
    case Fault::kCount:
      return key >= 0 ? "key " + std::to_string(key) + at_slot + " comes after a -1"
                      : "holds " + std::to_string(slot) + " keys, expected " + std::to_string(expected_count);
    case Fault::kOrder: return "key " + std::to_string(key) + at_slot + " is not in ascending order";
    case Fault::kHeldTooLow:
      return "holds " + keyed(key, key_score) + at_slot + ", below the K-th score " + number(kth_score) +
             " by more than the bound; misses " + keyed(missed_key, missed_score);
    case Fault::kMissedTooHigh:
      return "misses " + keyed(missed_key, missed_score) + ", above the K-th score " + number(kth_score) +
             " by more than the bound; holds " + keyed(key, key_score) + at_slot;
    case Fault::kDifferentKey:
      return "holds " + keyed(key, key_score) + at_slot + ", expected " + keyed(missed_key, missed_score);
    case Fault::kDifferentScore:
      return "key " + std::to_string(key) + at_slot + " has score " + number(key_score) + ", expected " +
             number(missed_score);
  }
  return "unknown fault";
}

}  // namespace keysieve
