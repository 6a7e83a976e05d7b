// SPDX-License-Identifier: Apache-2.0
// The best candidate blocks of a row (contract section 7), from scores that arrive in key order.
#pragma once

#include <algorithm>
#include <cstdint>
#include <limits>

#include "core/ordering.hpp"
#include "cpu/top_k.hpp"

namespace keysieve::cpu {

struct BlockRanking {
  TopK top;  // of block ids
  int64_t block_keys = 8;
  int64_t open_block = -1;  // the one whose keys are arriving
  uint32_t open_best = 0;

  void reset() {
    top.reset();
    open_block = -1;
    open_best = 0;
  }

  /// `first_index` counts from the row's first key.
  void offer(const float* scores, int64_t count, int64_t first_index) {
    for (int64_t i = 0; i < count; ++i) {
      const int64_t block = (first_index + i) / block_keys;
      if (block != open_block) {
        push_open(open_best);
        open_block = block;
        open_best = 0;
      }
      open_best = std::max(open_best, ordered_bits(scores[i]));
    }
  }

  /// Ends the stream of a row of `row_width` keys, or of a part of it.  The row's newest block always stays.
  void finish(int64_t row_width) {
    const bool is_newest = open_block == (row_width - 1) / block_keys;
    push_open(is_newest ? std::numeric_limits<uint32_t>::max() : open_best);
    open_block = -1;
    top.cut(0);
  }

 private:
  void push_open(uint32_t ordered) {
    if (open_block >= 0) {
      top.push(rank_of(ordered, open_block));
    }
  }
};

}  // namespace keysieve::cpu
