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
  const uint64_t differing = in_all ^ in_any;
  int shift = 64 - std::countl_zero(differing);
  uint64_t prefix = in_all;
  uint64_t prefix_mask = shift == 64 ? 0 : ~uint64_t{0} << shift;
  while (shift > 0) {
    shift = std::max(shift - 8, 0);
    int64_t bins[257] = {};  // the last one takes the entries outside the prefix
    for (int64_t i = 0; i < count; ++i) {
      const uint64_t digit = ranks[i] >> shift & 0xFFU;
      ++bins[((ranks[i] ^ prefix) & prefix_mask) == 0 ? digit : 256U];
    }
    uint64_t digit = 255;
    for (; bins[digit] < n; --digit) {
      n -= bins[digit];
    }
    const uint64_t digit_mask = uint64_t{0xFF} << shift;
    prefix = (prefix & ~digit_mask) | digit << shift;
    prefix_mask |= digit_mask;
    if (bins[digit] - n <= slack) {
      break;
    }
  }
  return prefix & prefix_mask;
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
