// SPDX-License-Identifier: Apache-2.0
// Rounding of floats to the small formats of the inputs; core/fp8.hpp decodes them.
#pragma once

#include <cmath>
#include <cstdint>

#include "core/bits.hpp"

namespace keysieve {

/// To e4m3fn, round to nearest even, saturating at 448; NaN and infinity become NaN (0x7F).
inline uint8_t float_to_e4m3(float value) {
  const auto sign = static_cast<uint8_t>(float_bits(value) >> 24U & 0x80U);
  const float magnitude = std::fabs(value);
  if (!(magnitude < INFINITY)) {
    return sign | 0x7FU;
  }
  if (magnitude >= 448.0F) {
    return sign | 0x7EU;
  }
  if (magnitude < 0.015625F) {  // below 2^-6: multiples of 2^-9; 8 of them are the smallest normal number
    return sign | static_cast<uint8_t>(std::nearbyint(magnitude * 512.0F));
  }
  const uint32_t bits = float_bits(magnitude);
  const uint32_t rounded = bits + 0x0007FFFFU + (bits >> 20U & 1U);
  return sign | static_cast<uint8_t>((rounded >> 20U) - (120U << 3U));
}

/// To e2m1, round to nearest, ties to the even code, saturating at 6; NaN becomes 6.
inline uint8_t float_to_e2m1(float value) {
  // Half-way points between 0, .5, 1, 1.5, 2, 3, 4, 6.
  constexpr float kMidpoints[] = {0.25F, 0.75F, 1.25F, 1.75F, 2.5F, 3.5F, 5.0F};
  const auto sign = static_cast<uint8_t>(float_bits(value) >> 28U & 8U);
  const float magnitude = std::fabs(value);
  uint8_t code = 0;
  while (code < 7 && !(magnitude < kMidpoints[code] || (magnitude == kMidpoints[code] && code % 2 == 0))) {
    ++code;
  }
  return sign | code;
}

}  // namespace keysieve
