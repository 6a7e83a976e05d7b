// SPDX-License-Identifier: Apache-2.0
// The best `limit` of a stream of scored indices, exactly, in memory that does not grow with the stream.
//
// An entry is one 64-bit rank: the ordered score above the complement of the index, so that a larger rank is picked
// first and no two are equal.  The buffer holds whatever may still be picked, in the order of its arrival.  When it
// is full it is cut to about `limit` entries, and from then on only ranks above the cut (`floor`) are let in.
#pragma once

#include <algorithm>
#include <bit>
#include <cstdint>
#include <functional>

#include "core/ordering.hpp"

namespace keysieve::cpu {

inline uint64_t rank_of(uint32_t ordered, int64_t index) {
  return uint64_t{ordered} << 32U | static_cast<uint32_t>(~index);
}
inline uint32_t ordered_of(uint64_t rank) {
  return static_cast<uint32_t>(rank >> 32U);
}
inline int64_t index_of(uint64_t rank) {
  return static_cast<uint32_t>(~rank);
}

/// The ranks that agree with `bits` where `mask` is set.
struct RankPrefix {
  uint64_t bits = 0;
  uint64_t mask = 0;

  [[nodiscard]] bool matches(uint64_t rank) const { return ((rank ^ bits) & mask) == 0; }
};

inline constexpr int kDigitBins = 256;

/// bins[digit]: how many of the ranks with the prefix have this value in the eight bits from `shift`.
inline void count_digits(const uint64_t* ranks, int64_t count, RankPrefix prefix, int shift,
                         int64_t (&bins)[kDigitBins]) {
  // Four sets, so that equal digits in a row do not wait for each other; the last bin takes ranks without the prefix.
  constexpr int kSets = 4;
  uint32_t sets[kSets][kDigitBins + 1] = {};
  for (int64_t i = 0; i < count; ++i) {
    const uint64_t digit = ranks[i] >> shift & (kDigitBins - 1);
    ++sets[i % kSets][prefix.matches(ranks[i]) ? digit : uint64_t{kDigitBins}];
  }
  for (int digit = 0; digit < kDigitBins; ++digit) {
    bins[digit] = int64_t{sets[0][digit]} + sets[1][digit] + sets[2][digit] + sets[3][digit];
  }
}

/// The n-th largest of the few ranks with the prefix.
inline uint64_t nth_largest_of_few(const uint64_t* ranks, int64_t count, RankPrefix prefix, int64_t n) {
  uint64_t few[kDigitBins];
  int64_t num_few = 0;
  for (int64_t i = 0; i < count; ++i) {
    few[num_few] = ranks[i];
    num_few += prefix.matches(ranks[i]) ? 1 : 0;
  }
  std::nth_element(few, few + n - 1, few + num_few, std::greater<>());
  return few[n - 1];
}

/// Largest rank of which at least `n` entries are no smaller, or a smaller one with at most n + slack such entries.
/// 0 < n <= count.  Sorts the entries into bins by eight bits at a time, from the highest bit in which they differ, and
/// follows the bin that holds the n-th.
inline uint64_t nth_largest(const uint64_t* ranks, int64_t count, int64_t n, int64_t slack) {
  uint64_t in_all = ~uint64_t{0};
  uint64_t in_any = 0;
  for (int64_t i = 0; i < count; ++i) {
    in_all &= ranks[i];
    in_any |= ranks[i];
  }
  int shift = 64 - std::countl_zero(in_all ^ in_any);
  RankPrefix prefix;
  prefix.mask = shift == 64 ? 0 : ~uint64_t{0} << shift;
  prefix.bits = in_all & prefix.mask;
  while (shift > 0) {
    shift = std::max(shift - 8, 0);
    int64_t bins[kDigitBins];
    count_digits(ranks, count, prefix, shift, bins);
    uint64_t digit = kDigitBins - 1;
    for (; bins[digit] < n; --digit) {
      n -= bins[digit];
    }
    const uint64_t digit_mask = uint64_t{kDigitBins - 1} << shift;
    prefix.bits = (prefix.bits & ~digit_mask) | digit << shift;
    prefix.mask |= digit_mask;
    if (bins[digit] - n <= slack) {
      break;
    }
    if (bins[digit] < kDigitBins) {
      return nth_largest_of_few(ranks, count, prefix, n);
    }
  }
  return prefix.bits;
}

struct TopK {
  uint64_t* ranks = nullptr;  // [capacity]
  int64_t capacity = 0;
  int64_t limit = 0;
  int64_t count = 0;
  uint64_t floor = 0;  // entries at or below it are not among the best
  uint64_t num_let_in = 0;

  /// Room for `limit` entries and enough others that a cut is rare.
  static int64_t capacity_for(int64_t limit) { return 2 * limit + 1024; }

  void reset() {
    count = 0;
    floor = 0;
    num_let_in = 0;
  }

  void push(uint64_t rank) {
    if (rank <= floor) {
      return;
    }
    if (count == capacity) {
      cut((capacity - limit) / 4);
    }
    ranks[count++] = rank;
    ++num_let_in;
  }

  /// Keeps the best `limit` entries, and at most `slack` others, in order of arrival.
  void cut(int64_t slack) {
    if (count <= limit) {
      return;
    }
    const uint64_t last_kept = nth_largest(ranks, count, limit, slack);
    int64_t kept = 0;
    for (int64_t i = 0; i < count; ++i) {
      const uint64_t rank = ranks[i];
      ranks[kept] = rank;
      kept += rank >= last_kept ? 1 : 0;
    }
    count = kept;
    floor = last_kept - 1;
  }
};

}  // namespace keysieve::cpu
