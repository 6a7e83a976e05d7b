// SPDX-License-Identifier: Apache-2.0
// A row of given scores in memory, and what of it passes.
//
//     position            0 . . lead            end = lead + width
//     row                 x x x [0 1 2 3 4 ... width-1] x x x     position 0 is 16-byte aligned; positions outside the
//                                                                 row are never read
#pragma once

#include <cstdint>

#include "core/bf16.hpp"
#include "core/ordering.hpp"

namespace keysieve::cuda {

/// What passes: scores >= `score`, and NaN too while everything passes.
struct Threshold {
  float score = 0;
  bool everything = true;

  static __device__ __forceinline__ Threshold at_least(uint32_t ordered) {
    // Between NaN and -inf lies no score.
    return {score_of_ordered_bits(max(ordered, kOrderedNegativeInfinity)), ordered == kOrderedNan};
  }
  __device__ __forceinline__ bool passes(float candidate) const { return candidate >= score || everything; }
};

/// Scores of one row, 16 bytes at a time.
template <typename Score, bool kFresh>
struct ScoreRow {
  static constexpr int kVector = 16 / static_cast<int>(sizeof(Score));  // scores a load

  const Score* g_first;  // position 0: aligned down from the row's first score
  uint32_t lead;         // positions before the row
  uint32_t end;          // lead + width

  __device__ __forceinline__ ScoreRow(const Score* g_row, uint32_t width) {
    lead = static_cast<uint32_t>(reinterpret_cast<uintptr_t>(g_row) % 16U / sizeof(Score));
    g_first = g_row - lead;
    end = lead + width;
  }

  template <class Value>
  static __device__ __forceinline__ Value load(const Value* g_value) {
    if constexpr (kFresh) {
      return __ldcg(g_value);
    } else {
      return __ldg(g_value);
    }
  }
  static __device__ __forceinline__ float widen(float score) { return score; }
  static __device__ __forceinline__ float widen(uint16_t score) { return bf16_to_float(score); }

  __device__ __forceinline__ float score(uint32_t relative) const { return widen(load(g_first + lead + relative)); }

  /// Score `element` of a loaded vector.
  static __device__ __forceinline__ float element(const uint4& vector, int element) {
    const uint32_t words[4] = {vector.x, vector.y, vector.z, vector.w};
    if constexpr (sizeof(Score) == 4) {
      return __uint_as_float(words[element]);
    } else {
      const uint32_t word = words[element / 2];
      return __uint_as_float(element % 2 == 0 ? word << 16U : word & 0xFFFF0000U);
    }
  }

  /// Bit e: position + e lies inside [lead, stop).
  [[nodiscard]] __device__ __forceinline__ uint32_t inside(uint32_t position, uint32_t stop) const {
    constexpr uint32_t kAll = (1U << kVector) - 1U;
    const uint32_t skip = position < lead ? lead - position : 0;
    const uint32_t left = position < stop ? stop - position : 0;
    const uint32_t before_stop = left < kVector ? (1U << left) - 1U : kAll;
    return before_stop & (kAll << min(skip, static_cast<uint32_t>(kVector)));
  }

  /// Loads what lies inside [lead, stop), score by score if need be.
  [[nodiscard]] __device__ __forceinline__ uint4 load_inside(uint32_t position, uint32_t stop) const {
    const uint32_t mask = inside(position, stop);
    const Score* g_vector = g_first + position;
    if (mask == (1U << kVector) - 1U) {
      return load(reinterpret_cast<const uint4*>(g_vector));
    }
    uint32_t words[4] = {0, 0, 0, 0};
#pragma unroll
    for (int e = 0; e < kVector; ++e) {
      if ((mask >> e & 1U) != 0) {
        const Score value = load(g_vector + e);
        if constexpr (sizeof(Score) == 4) {
          words[e] = __float_as_uint(value);
        } else {
          words[e / 2] |= static_cast<uint32_t>(value) << (e % 2 * 16);
        }
      }
    }
    return {words[0], words[1], words[2], words[3]};
  }
};

}  // namespace keysieve::cuda
