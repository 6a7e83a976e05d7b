// SPDX-License-Identifier: Apache-2.0
// The order of scores (contract section 3) as an order of unsigned integers:
//     +inf > finite > -inf > NaN,   -0.0 == +0.0,   NaN's sign and payload do not matter.
#pragma once

#include "core/bits.hpp"

namespace keysieve {

inline constexpr uint32_t kOrderedNan = 0;
inline constexpr uint32_t kOrderedNegativeInfinity = 0x007FFFFFU;
inline constexpr uint32_t kOrderedInfinity = 0xFF800000U;

/// Monotone map of a score to 32 bits: a ranks above b exactly if ordered_bits(a) > ordered_bits(b).
KEYSIEVE_HOST_DEVICE inline uint32_t ordered_bits(float score) {
  const uint32_t bits = float_bits(score);
  const uint32_t magnitude = bits & 0x7FFFFFFFU;
  const uint32_t flipped = (bits & 0x80000000U) != 0 ? ~bits : bits | 0x80000000U;
  const uint32_t number = magnitude == 0 ? 0x80000000U : flipped;  // selects, not branches: this is in inner loops
  return magnitude > 0x7F800000U ? kOrderedNan : number;
}

/// The score of ordered bits: the inverse up to the sign of zero and the payload of NaN.
KEYSIEVE_HOST_DEVICE inline float score_of_ordered_bits(uint32_t ordered) {
  if (ordered == kOrderedNan) {
    return bits_float(0x7FC00000U);
  }
  return bits_float((ordered & 0x80000000U) != 0 ? ordered & 0x7FFFFFFFU : ~ordered);
}

/// True if key `index_a` with ordered score `a` is picked before key `index_b` with ordered score `b`.
KEYSIEVE_HOST_DEVICE inline bool ranks_before(uint32_t a, int64_t index_a, uint32_t b, int64_t index_b) {
  return a != b ? a > b : index_a < index_b;
}

}  // namespace keysieve
