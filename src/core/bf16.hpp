// SPDX-License-Identifier: Apache-2.0
// bfloat16: the upper half of a float.
#pragma once

#include <cstdint>

#include "core/bits.hpp"

namespace keysieve {

KEYSIEVE_HOST_DEVICE inline float bf16_to_float(uint16_t half) {
  return bits_float(static_cast<uint32_t>(half) << 16U);
}

/// Round to nearest even; NaN stays NaN (quiet, payload cut).
KEYSIEVE_HOST_DEVICE inline uint16_t float_to_bf16(float value) {
  const uint32_t bits = float_bits(value);
  if ((bits & 0x7FFFFFFFU) > 0x7F800000U) {
    return static_cast<uint16_t>((bits >> 16U) | 0x0040U);
  }
  return static_cast<uint16_t>((bits + 0x7FFFU + ((bits >> 16U) & 1U)) >> 16U);
}

}  // namespace keysieve
